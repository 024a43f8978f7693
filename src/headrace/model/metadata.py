"""What a model tells Headrace in its metadata, under keys that begin with ``headrace.``."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple, cast

LABELS_MAX = 100_000  # more classes than the largest public classifiers have
LIBRARIES_MAX = 16  # of custom operators
WORD_CHARS_MAX = 100  # of a name or version: both stand in the envelope of every event that follows

_PREFIX = "headrace."
_WORD = re.compile(r"[\w.-]+", re.ASCII)  # "+", "@" and ":" join the parts of a version's name


class Unfit(ValueError):
    """A value cannot be used; the text says why and names the key."""


class Told(NamedTuple):
    """What is known of a model besides its graph; ``None`` where nobody said anything."""

    version: str | None = None
    labels: tuple[str, ...] | None = None
    temperature: float = 1.0
    encoder: str | None = None
    encoder_parameters: Mapping[str, Any] = MappingProxyType({})
    #: Libraries of custom operators, beside the model.
    custom_ops: tuple[str, ...] = ()


def read_told(properties: Mapping[str, str]) -> Told:
    """Return what a file says; raises `Unfit`."""
    mine = {key.removeprefix(_PREFIX): value for key, value in properties.items() if key.startswith(_PREFIX)}
    version, labels = mine.get("version"), _parsed(mine, "labels")
    return Told(
        version=None if version is None else check_word("version", version),
        labels=None if labels is None else check_labels(labels),
        temperature=check_temperature(_parsed(mine, "temperature", 1.0)),
        encoder=mine.get("encoder"),
        encoder_parameters=_mapping(_parsed(mine, "encoder_parameters", {})),
        custom_ops=_names("custom_ops", _parsed(mine, "custom_ops", []), LIBRARIES_MAX),
    )


def libraries(properties: Mapping[str, str]) -> tuple[str, ...]:
    """Return the libraries that a file names, or nothing where it cannot be read."""
    try:
        return read_told(properties).custom_ops
    except Unfit:
        return ()


def check_word(key: str, value: object) -> str:
    """Return a name or version that can stand in the name of a handler's version."""
    if isinstance(value, str) and len(value) <= WORD_CHARS_MAX and _WORD.fullmatch(value):
        return value
    raise Unfit(f"{key} must be letters, digits, '.', '_' and '-', at most {WORD_CHARS_MAX}")


def check_labels(value: object) -> tuple[str, ...]:
    """Return the names of the classes, in the order of the outputs."""
    labels = _names("labels", value, LABELS_MAX)
    if not labels:
        raise Unfit("labels are an empty list")
    return labels


def check_temperature(value: object) -> float:
    """Return what logits are divided by."""
    if isinstance(value, int | float) and math.isfinite(value) and value > 0:
        return float(value)
    raise Unfit("temperature must be a number above 0")


def _names(key: str, value: object, count_max: int) -> tuple[str, ...]:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise Unfit(f"{key} must be a list of names")
    names = tuple(cast("Sequence[object]", value))
    if len(names) > count_max:
        raise Unfit(f"{key} has {len(names)} names, the limit is {count_max}")
    if not all(map(_is_text, names)):
        raise Unfit(f"{key} must be a list of names")
    return cast("tuple[str, ...]", names)


def _is_text(name: object) -> bool:
    # Half a character, which JSON can spell, is no text: no journal and no file system takes it.
    return isinstance(name, str) and not any("\ud800" <= char <= "\udfff" for char in name)


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Unfit("encoder_parameters must be an object")
    return cast("dict[str, Any]", value)


def _parsed(mine: Mapping[str, str], key: str, default: object = None) -> object:
    if key not in mine:
        return default
    try:
        return json.loads(mine[key])
    except (ValueError, RecursionError) as error:
        raise Unfit(f"{key} is no JSON") from error
