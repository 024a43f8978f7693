"""From the values of events to the tensors of a model; training and serving use these same functions."""

from __future__ import annotations

import functools
import math
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from struct import pack
from typing import Any, ClassVar
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InputRefused

Array = NDArray[Any]
Encode = Callable[[Sequence[object]], Mapping[str, Array]]

#: The names of ONNX Runtime for the types that numpy has, too.
DTYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(int16)": "int16",
    "tensor(int8)": "int8",
    "tensor(uint64)": "uint64",
    "tensor(uint32)": "uint32",
    "tensor(uint16)": "uint16",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
    "tensor(string)": "object",
}


class Part:
    """An encoder or decoder of the library: what it is and how it is set, for the digest of a model."""

    id: ClassVar[str]
    parameters: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Slot:
    """One input or output of a model: its name, its type, its shape (``None`` where any size fits)."""

    name: str
    kind: str
    shape: tuple[int | None, ...]

    @property
    def batched(self) -> bool:
        """Does the first axis take any number of rows?"""
        return bool(self.shape) and self.shape[0] is None

    @property
    def is_tensor(self) -> bool:
        """Has numpy the type?"""
        return self.kind in DTYPES

    @property
    def sizes(self) -> list[int]:
        """The smallest shape that fits."""
        return [1 if size is None else size for size in self.shape]

    def zeros(self) -> Array:
        """Return a tensor of the smallest shape, without content."""
        return np.full(self.sizes, "" if self.kind == "tensor(string)" else 0, DTYPES[self.kind])


# --- text ---------------------------------------------------------------------------------------

TEXT_CHARS_MAX = 2_000  # what a message is about stands at its beginning; bounds the work for one text
BUCKETS_MAX = 2**20  # larger tables are slower than they are better; bounds what a file can make us allocate
FEATURES_MAX = 4_096  # of one text; TEXT_CHARS_MAX gives about as many
WORD_BYTES_CACHED_MAX = 32  # longer words are rare: keeping them would cost more than it saves
WORDS_CACHED_MAX = 8_192  # the active vocabulary of a language; about 2 MB

# One pass over the bytes of a text: capitals become small, what is neither letter nor digit a space. Bytes of
# other scripts stay. Apostrophes go without a space, so that "what's" and "whats" are one word.
_PLAIN = bytes(b if b > 127 else ord(chr(b).lower()) if chr(b).isalnum() else 32 for b in range(256))  # noqa: PLR2004
_QUOTES = dict.fromkeys(map(ord, "\u2018\u2019\u02bc"), "'")
_FIRST, _LAST = b" < ", b" > "  # stand where the neighbour of the outer words would; no word holds them


def split_words(text: str) -> list[bytes]:
    """Return the words of a text in small letters, as UTF-8; punctuation separates."""
    text = text[:TEXT_CHARS_MAX]
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).lower().translate(_QUOTES)[:TEXT_CHARS_MAX]
    # A lone surrogate becomes "?", and so a space.
    return text.encode("utf-8", "replace").translate(_PLAIN, b"'").split()


class HashedNGrams(Part):
    """Text as the hashes of its words, pairs of words, and the trigrams of bytes within words.

    A row holds bucket numbers from 1 and is padded with 0. The hash is crc32 of UTF-8, so any process on
    any platform counts alike. Features beyond ``features_max`` are left out, from the end of the text.
    """

    id = "hashed-ngrams/1"

    def __init__(self, *, buckets: int, features_max: int, slot: str = "features", model: str = "") -> None:
        for name, value, most in (
            ("buckets", buckets, BUCKETS_MAX),
            ("features_max", features_max, FEATURES_MAX),
        ):
            if type(value) is not int or not 1 < value <= most:
                raise ValueError(f"{name} must be a number from 2 to {most}")
        self.parameters = {"buckets": buckets, "features_max": features_max}
        self._slot = slot
        self._model = model
        self._span = buckets - 1
        self._row_bytes_max = 4 * features_max
        self._cache: dict[bytes, bytes] = {}
        self._packed = [pack("<i", number) for number in range(buckets)]

    def __call__(self, inputs: Sequence[object]) -> dict[str, Array]:
        """Return the rows of some texts, as wide as the longest needs."""
        rows = [self._row(self._text(value)) for value in inputs]
        width = max(4, *map(len, rows))
        padded = b"".join([row.ljust(width, b"\0") for row in rows])
        return {self._slot: np.frombuffer(padded, "<i4").reshape(len(rows), -1)}

    def _text(self, value: object) -> str:
        if not isinstance(value, str):
            raise InputRefused(model=self._model, problem=f"it takes text, not {type(value).__name__}")
        return value

    def _row(self, text: str) -> bytes:
        cached, packed, span = self._cache.get, self._packed, self._span
        parts: list[bytes] = []
        before = crc32(_FIRST)
        for word in split_words(text):
            spaced = b" %b " % word
            parts.append(packed[1 + crc32(spaced, before) % span])
            parts.append(cached(word) or self._word(word, spaced))
            before = crc32(spaced)
        parts.append(packed[1 + crc32(_LAST, before) % span])
        # Each word and each pair once: to say a thing a hundred times does not make it clearer.
        return b"".join(dict.fromkeys(parts))[: self._row_bytes_max]

    def _word(self, word: bytes, spaced: bytes) -> bytes:
        grams = dict.fromkeys([spaced, *(spaced[i : i + 3] for i in range(len(spaced) - 2))])
        block = b"".join([self._packed[1 + crc32(gram) % self._span] for gram in grams])
        if len(word) <= WORD_BYTES_CACHED_MAX:
            if len(self._cache) >= WORDS_CACHED_MAX:
                self._cache.clear()
            self._cache[word] = block
        return block


# --- numbers ------------------------------------------------------------------------------------


#: Kinds of numbers that a type can take without a change of meaning; the range is looked at value by value.
_KINDS = {"f": "fiub", "i": "iub", "u": "iub", "b": "b"}


class Tensor(Part):
    """Numbers, lists and arrays, stacked along the first axis to the type and shape of one input."""

    id = "tensor/1"

    def __init__(self, slot: Slot, model: str) -> None:
        self.parameters = {}
        self._slot = slot
        self._model = model
        self._dtype = np.dtype(DTYPES[slot.kind])

    def __call__(self, inputs: Sequence[object]) -> dict[str, Array]:
        """Return the one tensor that holds every value."""
        rows = [self._value(value) for value in inputs]
        if not self._slot.batched:
            return {self._slot.name: rows[0]}
        if len({row.shape for row in rows}) > 1:
            raise self._refused("the values of one batch have different shapes")
        return {self._slot.name: np.stack(rows)}

    def _value(self, value: object) -> Array:
        raw = self._strings(value) if self._dtype.hasobject else self._number(value)
        wanted = self._slot.shape[1:] if self._slot.batched else self._slot.shape
        return self._shaped(raw, wanted)

    def _strings(self, value: object) -> Array:
        raw = np.asarray(value, self._dtype)
        if not all(isinstance(item, str) for item in raw.flat):
            raise self._refused("it takes text")
        return raw

    def _number(self, value: object) -> Array:
        try:
            raw = np.asarray(value)
        except ValueError as error:
            raise self._refused(str(error)) from None
        if raw.dtype.kind not in _KINDS[self._dtype.kind]:
            raise self._refused(f"{raw.dtype} is no {self._dtype}")
        with np.errstate(over="ignore"):
            cast = raw.astype(self._dtype)
        exact = self._dtype.kind != "f"
        kept = np.array_equal(cast, raw) if exact else np.array_equal(np.isinf(cast), np.isinf(raw))
        if not kept:
            raise self._refused(f"a value lies outside of {self._dtype}")
        return cast

    def _shaped(self, raw: Array, wanted: tuple[int | None, ...]) -> Array:
        if len(raw.shape) == len(wanted) and all(
            want in (None, size) for want, size in zip(wanted, raw.shape, strict=True)
        ):
            return raw
        # A bare number for an axis of one, a flat list for a fixed shape: there is one way to read them.
        sizes = [1 if size is None else size for size in wanted]
        if raw.size == math.prod(sizes):
            return raw.reshape(sizes)
        raise self._refused(f"its shape is {raw.shape}, the model takes {wanted}")

    def _refused(self, problem: str) -> InputRefused:
        return InputRefused(model=self._model, problem=problem)


def identity(part: object) -> dict[str, object]:
    """Return what stands for an encoder or decoder in the digest of a model.

    Of a user's function it is module, qualified name and the attribute ``version``, if there is one: change
    that when the function changes its answers.
    """
    if isinstance(part, Part):
        return {"id": part.id, "parameters": part.parameters}
    while isinstance(part, functools.partial):
        part = part.func
    kind: Any = part if hasattr(part, "__qualname__") else type(part)
    return {
        "module": kind.__module__,
        "name": kind.__qualname__,
        "version": str(getattr(part, "version", "")),
    }
