"""Text and numbers as tensors: the same in every process, quick, and bounded."""

from __future__ import annotations

import os
import subprocess
import sys
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import InputRefused
from headrace.model import encoders
from headrace.model.encoders import HashedNGrams, Slot, Tensor, identity, split_words

ANY_TEXT = st.text(st.characters(codec=None, exclude_categories=()), max_size=200)


def encoder(**more):
    """Return a small encoder."""
    return HashedNGrams(**{"buckets": 1_000, "features_max": 64, **more})


def row(text, **more):
    """Return the bucket numbers of one text, without the padding."""
    numbers = encoder(**more)([text])["features"][0]
    return numbers[numbers > 0].tolist()


# --- words --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("   \t\n\0 ", []),
        ("Hello, World!", ["hello", "world"]),
        ("what's up", ["whats", "up"]),
        ("what\u2019s up", ["whats", "up"]),
        ("a-b/c_d", ["a", "b", "c", "d"]),
        ("$1,150.00", ["1", "150", "00"]),
        ("ÄRGER straße", ["ärger", "straße"]),
        ("\uff28\uff25llo \ufb01ne", ["hello", "fine"]),
        ("日本 語", ["日本", "語"]),
        ("e\u0301", ["\u00e9"]),
        ("a\ud800b", ["a", "b"]),
        ("🙂 ok", ["🙂", "ok"]),
    ],
)
def test_words_are_plain(text, words):
    """Words are small letters and digits; punctuation separates; forms of one character are one."""
    assert words == [word.decode() for word in split_words(text)]


@given(ANY_TEXT)
def test_any_text_has_a_row(text):
    """Whatever the text, surrogates and control characters too, there is a row within the bounds."""
    numbers = encoder()([text])["features"]

    assert numbers.dtype == np.int32
    assert numbers.shape[0] == 1
    assert 1 <= numbers.shape[1] <= 64
    assert numbers.min() >= 0
    assert numbers.max() < 1_000


# --- n-grams ------------------------------------------------------------------------------------


def bucket(data, before=0):
    """Return the bucket of some bytes, as the documentation says."""
    return 1 + crc32(data, before) % 999


def test_a_text_is_its_words_pairs_and_trigrams():
    """The features of a text are exactly those that the encoder promises."""
    expected = [
        bucket(b" <  to "),
        *map(bucket, [b" to ", b" to", b"to "]),
        bucket(b" to  me "),
        *map(bucket, [b" me ", b" me", b"me "]),
        bucket(b" me  > "),
    ]

    assert expected == row("To me!")


def test_what_is_repeated_counts_once():
    """A word, a pair or a trigram said again adds nothing."""
    assert row("no no no no") == row("no no no")
    assert set(row("no no no")) == {*row("no no"), bucket(b" no  no ")}
    assert len(row("ha" * 500)) == len(row("ha" * 3))


def test_a_second_look_is_the_same():
    """A word that has been seen before has the same features as at first."""
    one = encoder()

    assert one(["a b a", "b"])["features"].tolist() == one(["a b a", "b"])["features"].tolist()


def test_neighbours_do_not_matter():
    """A text has the same features alone as in a batch; the rest is padding."""
    one, texts = encoder(), ["short", "", "a much longer text with many words"]
    together = one(texts)["features"]

    for text, numbers in zip(texts, together, strict=True):
        alone = one([text])["features"][0]
        assert alone.tolist() == numbers[: len(alone)].tolist()
        assert not numbers[len(alone) :].any()


def test_every_process_counts_alike():
    """Another process with another hash seed gives the same numbers."""
    text = "Where is my order, \u00e9?"
    code = (
        "from headrace.model.encoders import HashedNGrams as H;"
        f"print(H(buckets=1000, features_max=64)([{text!a}])['features'].tolist())"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "42")
    }

    here = encoder()([text])["features"].tolist()
    assert told == {f"{here}\n"}


def test_numbers_have_not_changed():
    """These numbers are in trained weights: a change of the encoder needs a new id."""
    assert HashedNGrams.id == "hashed-ngrams/1"
    assert row("Café, don\u2019t!") == [38, 932, 88, 99, 445, 463, 144, 657, 516, 785, 142, 55, 709, 712]


@pytest.mark.parametrize("text", ["a" * 2**20, "ab " * 2**19, "\ufdfa" * 2**20, "é" * 2**20, " " * 2**20])
def test_a_giant_text_costs_no_more_than_a_long_one(text):
    """A text of a megabyte is read as far as the bound, and gives no more features than the bound."""
    assert len(row(text)) <= 64
    assert split_words(text) == split_words(text[: encoders.TEXT_CHARS_MAX])


def test_features_beyond_the_bound_are_the_last():
    """What does not fit is left out from the end of the text."""
    text = "one two three four five six"

    assert row(text, features_max=500)[:9] == row(text, features_max=9)


def test_the_cache_is_bounded(monkeypatch):
    """Words that never come again do not fill the memory."""
    monkeypatch.setattr(encoders, "WORDS_CACHED_MAX", 10)
    one = encoder()
    for number in range(100):
        one([f"word{number} {'x' * 100}"])

    assert len(one._cache) <= 10
    assert all(len(word) <= encoders.WORD_BYTES_CACHED_MAX for word in one._cache)


@pytest.mark.parametrize("value", [None, 3, b"text", ["text"], 1.5])
def test_what_is_no_text_is_refused(value):
    """Anything but text is refused, with the name of the model."""
    with pytest.raises(InputRefused, match=r"intent.*takes text"):
        encoder(model="intent")(["text", value])


@pytest.mark.parametrize(
    "wrong",
    [{"buckets": 1}, {"buckets": 2**40}, {"buckets": "9"}, {"features_max": 0}, {"features_max": True}],
)
def test_parameters_are_bounded(wrong):
    """A file cannot ask for a table that no machine holds."""
    with pytest.raises(ValueError, match="must be a number"):
        encoder(**wrong)


# --- tensors ------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2), min_size=1))
def test_rows_are_stacked_as_they_are(rows):
    """What goes in as rows is what the model sees."""
    slot = Slot("X", "tensor(float)", (None, 2))

    assert rows == Tensor(slot, "m")(rows)["X"].tolist()


@given(
    st.one_of(st.none(), st.text(), st.integers(), st.floats(), st.lists(st.integers()), st.complex_numbers())
)
def test_any_value_is_taken_or_refused(value):
    """No value of an event brings another error than the coded one."""
    for kind in ("tensor(float)", "tensor(int8)", "tensor(bool)", "tensor(string)"):
        try:
            Tensor(Slot("X", kind, (None,)), "m")([value])
        except InputRefused:
            continue


# --- identity -----------------------------------------------------------------------------------


def test_an_encoder_is_what_it_is_and_how_it_is_set():
    """Encoders with other parameters are other encoders."""
    assert identity(encoder()) == identity(encoder(slot="other"))
    assert identity(encoder()) != identity(encoder(features_max=65))


class Custom:
    """An encoder as a user may write it."""

    version = 3

    def __call__(self, inputs):
        """Encode nothing."""
        return {}


def test_a_users_encoder_is_its_name_and_version():
    """Functions and callable objects are known by module, qualified name and version."""
    assert identity(Custom()) == identity(Custom())
    assert identity(Custom())["name"] == "Custom"
    assert identity(Custom())["version"] == "3"
    assert identity(len) != identity(abs)
