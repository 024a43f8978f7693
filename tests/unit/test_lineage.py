"""Ids and places: Kafka's partitions, RFC 9562's versions, and derived ids that never change by accident."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.event.lineage import (
    ID_CHARS_MAX,
    Derivation,
    check_text,
    foreign_id,
    id_of,
    murmur2,
    partition_of,
    partition_of_key,
    text_of,
    uuid7,
)

IDS = st.binary(min_size=16, max_size=16)
NAMES = st.text(min_size=1, max_size=20, alphabet=st.characters(exclude_categories=("Cs",)))

#: From Kafka's `UtilsTest.testMurmur2`, as Java's signed numbers.
KAFKA = {
    "21": -973932308,
    "foobar": -790332482,
    "a-little-bit-long-string": -985981536,
    "a-little-bit-longer-string": -1486304829,
    "lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    "abc": 479470107,
}

PARENT = bytes(range(16))
GOLDEN = Derivation("app.route", "1+intent@1:233be5dc586a")


@pytest.mark.parametrize(("text", "expected"), KAFKA.items())
def test_murmur2_is_that_of_kafka(text: str, expected: int) -> None:
    """The vectors of Kafka's Java client hold, as unsigned numbers."""
    assert murmur2(text.encode()) == expected % (1 << 32)


def test_a_negative_hash_becomes_a_place_as_in_kafka() -> None:
    """The sign bit is cut off, not negated: `toPositive(murmur2) % count`."""
    assert partition_of_key("21", 16) == (-973932308 & 0x7FFFFFFF) % 16


@given(st.binary(max_size=70))
def test_murmur2_is_a_32_bit_number(data: bytes) -> None:
    """Whatever the length, the hash has 32 bits and is the same again."""
    assert 0 <= murmur2(data) < 1 << 32
    assert murmur2(data) == murmur2(data)


@given(key=st.none() | NAMES, event_id=IDS, partitions=st.integers(1, 1024))
def test_a_partition_is_one_of_the_topic(key: str | None, event_id: bytes, partitions: int) -> None:
    """The place lies within the count; with a key the id has no say, without one the key has none."""
    place = partition_of(key, event_id, partitions)

    assert 0 <= place < partitions
    assert key is None or place == partition_of(key, bytes(16), partitions)


@given(time_us=st.integers(0, (1 << 48) * 1000 - 1), chance=st.binary(min_size=10, max_size=10))
def test_a_drawn_id_is_a_uuid7(time_us: int, chance: bytes) -> None:
    """Milliseconds stand in the first 48 bits; version and variant are those of RFC 9562."""
    found = UUID(bytes=uuid7(time_us, chance))

    assert (found.version, found.variant) == (7, RFC_4122)
    assert found.int >> 80 == time_us // 1000
    free = (1 << 80) - 1 ^ (0xF << 76 | 0x3 << 62)
    assert found.int & free == int.from_bytes(chance, "big") & free


@given(parent=IDS, subscription=NAMES, version=NAMES, ordinal=st.integers(0, 10_000), name=NAMES)
def test_a_derived_id_is_a_uuid8_of_the_time_of_its_parent(
    parent: bytes, subscription: str, version: str, ordinal: int, name: str
) -> None:
    """Version 8, the variant of RFC 9562, the parent's time in front; the same again elsewhere."""
    one, again = Derivation(subscription, version), Derivation(subscription, version)
    found = [one.child(parent, ordinal), one.named(parent, name)]

    for event_id in found:
        assert (UUID(bytes=event_id).version, UUID(bytes=event_id).variant) == (8, RFC_4122)
        assert event_id[:6] == parent[:6]
    assert found == [again.child(parent, ordinal), again.named(parent, name)]
    assert one.first(parent) == one.child(parent, 0)


def test_derived_ids_differ_by_all_that_they_are_derived_from() -> None:
    """Another subscription, version, parent, ordinal or name makes another id; texts do not run together."""
    derivations = [Derivation(*pair) for pair in (("a", "1"), ("a", "2"), ("b", "1"), ("a1", ""), ("", "a1"))]
    parents = [PARENT, PARENT[:15] + b"\xff"]
    found = [
        one.child(parent, ordinal) for one in derivations for parent in parents for ordinal in range(200)
    ]
    found += [
        one.named(parent, name)
        for one in derivations
        for parent in parents
        for name in ["0", "1", "#0", "=0"]
    ]

    assert len(set(found)) == len(found) == 5 * 2 * 204


def test_derived_ids_never_change() -> None:
    """A changed derivation would handle every event of a journal again: it must not happen by accident."""
    assert GOLDEN.child(PARENT, 0).hex() == "0001020304058b1a9a580ed9a7cc54f6"
    assert GOLDEN.child(PARENT, 63).hex() == "0001020304058c2bb7690968c46c6036"
    assert GOLDEN.child(PARENT, 64).hex() == "0001020304058fe0953ed37898217a20"
    assert GOLDEN.named(PARENT, "x").hex() == "0001020304058631bef7da4732065813"
    assert foreign_id("headrace/app", "order-7").hex() == "dcc13c1ea92b8e9f83249596199566fb"
    assert uuid7(1_700_000_000_123_456, bytes(range(10))).hex() == "018bcfe5687b70018203040506070809"


@given(source=NAMES, name=NAMES)
def test_a_foreign_name_becomes_a_uuid8(source: str, name: str) -> None:
    """The id is a UUIDv8, the same again, and another one for another source."""
    found = foreign_id(source, name)

    assert (UUID(bytes=found).version, UUID(bytes=found).variant) == (8, RFC_4122)
    assert found == foreign_id(source, name) != foreign_id(source + "x", name)


@given(IDS)
def test_every_form_of_an_id_is_the_same_id(event_id: bytes) -> None:
    """UUID, text with and without hyphens, URN and bytes give the same 16 bytes; text_of is UUID's text."""
    value = UUID(bytes=event_id)

    assert text_of(event_id) == str(value)
    for form in (value, str(value), value.hex, value.urn, str(value).upper(), event_id):
        assert id_of(form, "s") == event_id


def test_a_name_that_is_no_uuid_belongs_to_its_source() -> None:
    """It becomes the foreign id of the source."""
    assert id_of("order-7", "shop") == foreign_id("shop", "order-7") != id_of("order-7", "other")


@pytest.mark.parametrize("bad", [b"", b"x" * 15, b"x" * 17, "", "x" * (ID_CHARS_MAX + 1), "\ud800"])
def test_an_id_out_of_bounds_is_refused(bad: str | bytes) -> None:
    """Bytes that are not 16, text that is empty, too long or not UTF-8: the error names the attribute."""
    with pytest.raises(errors.EnvelopeInvalid, match="event_id"):
        id_of(bad, "s")


def test_the_bounds_of_a_text_are_inclusive() -> None:
    """1 and `chars_max` characters pass; characters count, not bytes."""
    check_text("a", "x", 3)
    check_text("a", "äöü", 3)
    with pytest.raises(errors.EnvelopeInvalid, match="it has 4 characters, 1 to 3 may be"):
        check_text("a", "äöüx", 3)
