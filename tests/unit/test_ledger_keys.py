"""What the records of a ledger on Kafka are about, as their keys say it."""

from __future__ import annotations

import pytest

from headrace.codec.ledger import EXCEPTION, FATE, POSITION, Key, read_key, write_key

TOPIC = "0123456789abcdef" * 2


@pytest.mark.parametrize(
    "key",
    [
        Key(POSITION, 0),
        Key(POSITION, 15),
        Key(EXCEPTION, 3, 0, TOPIC),
        Key(FATE, 3, 17, TOPIC),
        Key(FATE, 3, 17),
    ],
)
def test_a_key_is_read_as_it_was_written(key: Key) -> None:
    """Also one of before, that names no topic."""
    assert read_key(write_key(key)) == key


@pytest.mark.parametrize(
    "found",
    [
        None, b"", b"position", b"position:", b"position:1:2", b"fate:1", b"fate:1:-2", b"fate:1:2:",
        b"fate:1:2:xyz", b"fate:1:2:" + b"a" * 33, b"other:1:2", "fate:1:2",
    ],
)  # fmt: skip
def test_other_keys_are_passed_over(found: object) -> None:
    """Whoever has written them, nothing is made of them."""
    assert read_key(found) is None


def test_a_record_counts_for_the_topic_that_it_names() -> None:
    """One of before names none, and counts for either."""
    here, there = bytes.fromhex(TOPIC), bytes(16)
    named, of_before = Key(FATE, 3, 17, TOPIC), Key(FATE, 3, 17)
    assert [one.fits(at) for one in (named, of_before) for at in (here, there)] == [True, False, True, True]
