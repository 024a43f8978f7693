"""Envelopes: trace contexts as W3C has them, the bounds of headers, the public form of a stored one."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.codec.head import decode_head, decode_stamp, encode_head, encode_stamp
from headrace.event.envelope import (
    HEADER_CHARS_MAX,
    HEADERS_BYTES_MAX,
    TRACESTATE_CHARS_MAX,
    Head,
    Place,
    Stamp,
    check_headers,
    envelope_of,
    parse_traceparent,
)

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

HEAD = Head(
    stamp=4,
    parents=(b"p" * 16, b"q" * 16),
    root=b"r" * 16,
    trace=bytes.fromhex(TRACE),
    span=bytes.fromhex(SPAN),
    flags=1,
    input_hash=b"\x01" * 16,
    time_us=1_700_000_000_123_456,
    principal="service:shop",
    key="ada",
    confidence=0.5,
    lane=2,
    tracestate="a=b",
    headers={"route": b"\xff"},
)
STAMP = Stamp("Order", "headrace/shop", 3, "application/json", "shop.route@1", "intent@1:233be5dc586a")


@pytest.mark.parametrize("flags", ["00", "01", "ff"])
def test_a_trace_context_is_read(flags: str) -> None:
    """Trace, span and flags of version 00 come back as bytes and a number."""
    found = parse_traceparent(f"00-{TRACE}-{SPAN}-{flags}", "vendor=1")
    assert found == (bytes.fromhex(TRACE), bytes.fromhex(SPAN), int(flags, 16), "vendor=1")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01-more",  # version 00 has four parts
        f"00-{TRACE}-{SPAN}-01-",
        f"ff-{TRACE}-{SPAN}-01",  # the version that may not be
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0g",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00_{TRACE}_{SPAN}_01",
    ],
)
def test_a_broken_trace_context_starts_a_new_one(text: str) -> None:
    """W3C: whoever cannot read it restarts the trace; it is no error."""
    assert parse_traceparent(text) is None


@pytest.mark.parametrize("more", ["", "-", "-what-comes-later"])
def test_a_later_version_is_read_as_far_as_it_is_known(more: str) -> None:
    """W3C: parts behind a dash may follow in versions above 00."""
    found = parse_traceparent(f"01-{TRACE}-{SPAN}-01{more}")
    assert found is not None
    assert found.trace.hex() == TRACE


@given(st.text(max_size=70) | st.text("0123456789abcdef-", min_size=40, max_size=60))
def test_no_text_breaks_the_reader(text: str) -> None:
    """Any text gives a context of the right sizes, or none."""
    found = parse_traceparent(text)
    assert found is None or (len(found.trace), len(found.span)) == (16, 8)


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("x" * TRACESTATE_CHARS_MAX, True),
        ("x" * (TRACESTATE_CHARS_MAX + 1), False),
        ("käse=1", False),
    ],
)
def test_a_tracestate_out_of_bounds_is_dropped(state: str, kept: bool) -> None:
    """The trace goes on without it."""
    found = parse_traceparent(f"00-{TRACE}-{SPAN}-01", state)
    assert found is not None
    assert found.state == (state if kept else "")


# ------------------------------------------------------------------------------------------- headers


def test_headers_fill_their_bounds() -> None:
    """Names of 256 characters and 64 KiB in all, names counted, pass; one byte more does not."""
    name = "n" * HEADER_CHARS_MAX
    check_headers("T", {})
    check_headers("T", {name: b"x" * (HEADERS_BYTES_MAX - HEADER_CHARS_MAX)})
    with pytest.raises(errors.HeadersTooLarge) as refused:
        check_headers("T", {name: b"x" * (HEADERS_BYTES_MAX - HEADER_CHARS_MAX + 1)})
    assert refused.value.context == {"type": "T", "size_bytes": 65_537, "limit_bytes": 65_536}


def test_the_name_of_a_header_counts_in_bytes() -> None:
    """Characters of two bytes count as two."""
    with pytest.raises(errors.HeadersTooLarge):
        check_headers("T", {"ä": b"x" * (HEADERS_BYTES_MAX - 1)})


@pytest.mark.parametrize(
    "headers",
    [
        {"a": "text"},
        {"a": None},
        {"a": bytearray(b"x")},
        {1: b""},
        {b"a": b""},
        {"": b""},
        {"\ud800": b""},
        {"x" * (HEADER_CHARS_MAX + 1): b""},
    ],
)
def test_a_header_that_is_not_text_to_bytes_is_refused(headers: dict[str, bytes]) -> None:
    """`EnvelopeInvalid` names the attribute."""
    with pytest.raises(errors.EnvelopeInvalid, match="headers"):
        check_headers("T", headers)


# --------------------------------------------------------------------------------------- public form


def test_a_stored_envelope_takes_its_public_form() -> None:
    """Ids become UUIDs, time UTC to the microsecond, hashes hex; the stamp's part is filled in."""
    found = envelope_of(b"e" * 16, 7, HEAD, STAMP, Place("orders", 3, 99))

    assert found.event_id == UUID(bytes=b"e" * 16)
    assert found.causality_id == UUID(bytes=b"r" * 16)
    assert found.parent_ids == (UUID(bytes=b"p" * 16), UUID(bytes=b"q" * 16))
    assert found.time == datetime(2023, 11, 14, 22, 13, 20, 123_456, tzinfo=UTC)
    assert found.traceparent == f"00-{TRACE}-{SPAN}-01"
    assert found.input_hash == "01" * 16
    assert (found.type, found.source, found.schema_version) == ("Order", "headrace/shop", 3)
    assert (found.handler, found.model) == ("shop.route@1", "intent@1:233be5dc586a")
    assert (found.topic, found.partition, found.offset, found.depth) == ("orders", 3, 99, 7)
    assert (found.key, found.confidence, found.lane, found.tracestate) == ("ada", 0.5, 2, "a=b")
    assert (found.principal, found.headers) == ("service:shop", {"route": b"\xff"})


def test_the_first_of_a_chain_is_its_own_cause() -> None:
    """No root stands in its head: the causality id is its own, and there are no parents."""
    head = Head(0, (), b"", b"t" * 16, b"s" * 8, 0, b"", 0, "p", None)
    found = envelope_of(b"e" * 16, 0, head, Stamp("T", "s", 1), Place("t", 0, 1))
    assert found.causality_id == found.event_id
    assert (found.parent_ids, found.input_hash, found.headers, found.handler) == ((), "", {}, None)
    assert found.time == datetime(1970, 1, 1, tzinfo=UTC)


def test_an_envelope_does_not_change() -> None:
    """It is frozen: others read it too."""
    found = envelope_of(b"e" * 16, 0, HEAD, STAMP, Place("t", 0, 1))
    with pytest.raises(AttributeError):
        found.key = "other"  # type: ignore[misc]


def test_head_and_stamp_come_back_as_they_were() -> None:
    """What is stored is read as it was written, defaults included."""
    assert decode_head(encode_head(HEAD)) == HEAD
    assert decode_stamp(encode_stamp(STAMP)) == STAMP


def test_a_head_without_the_newer_attributes_is_read() -> None:
    """An envelope written before an attribute was added at the end is read with its default."""
    import msgspec

    whole = msgspec.msgpack.decode(encode_head(HEAD))
    assert decode_head(msgspec.msgpack.encode(whole[:10])).headers is None
