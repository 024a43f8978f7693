"""The envelope as headers of a Kafka record: there and back, foreign records, and what is refused."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from headrace.codec.headers import Found, Record, _plain_trace, read_record, write_head, write_stamp
from headrace.event.envelope import Head, Stamp, parse_traceparent
from headrace.event.lineage import foreign_id, id_at

TOPIC_ID = bytes(range(16))
DEFAULT = Stamp("Ticket", "kafka:tickets", 2)

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

ids = st.binary(min_size=16, max_size=16)
names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
stamps = st.builds(
    Stamp,
    names,
    names,
    st.integers(0, 2**31 - 1),
    st.just("application/json"),
    st.none() | names,
    st.none() | names,
    st.none() | names,
)
#: A trace of zeros is none (W3C Trace Context), so it does not come back.
traces = ids.filter(any)
spans = st.binary(min_size=8, max_size=8).filter(any)
heads = st.builds(
    Head,
    stamp=st.just(0),
    parents=st.lists(ids, max_size=4).map(tuple),
    root=st.just(b"") | ids,
    trace=traces,
    span=spans,
    flags=st.integers(0, 255),
    input_hash=st.just(b"") | ids,
    time_us=st.integers(0, 4_000_000_000_000_000),
    principal=names,
    key=st.none() | names,
    confidence=st.none() | st.floats(0, 1),
    lane=st.none() | st.integers(0, 2),
    tracestate=st.sampled_from(["", "a=1,b=2"]),
    headers=st.none()
    | st.dictionaries(names | st.sampled_from(["ce_id", "h_x", "traceparent"]), ids, min_size=1),
)


def record(headers: Any = (), value: bytes | None = b"{}", key: bytes | None = None, **given: Any) -> Record:
    """Return a record of the topic `tickets`."""
    place = {
        "topic": "tickets",
        "topic_id": TOPIC_ID,
        "partition": 3,
        "offset": 41,
        "time_ms": 1_700_000_000_123,
    }
    return Record(**{**place, **given}, key=key, value=value, headers=headers)


def read(**headers: str | bytes) -> Found:
    """Read a record with these headers."""
    return read_record(
        record([(name.replace("_type", "-type") if name == "content_type" else name,
                 value.encode() if isinstance(value, str) else value) for name, value in headers.items()]),
        DEFAULT,
    )  # fmt: skip


@given(ids, st.integers(0, 256), heads, stamps, st.binary())
def test_an_envelope_comes_back(event_id: bytes, depth: int, head: Head, stamp: Stamp, body: bytes) -> None:
    """Whatever we write, we read, user headers with our names included."""
    headers = write_head(event_id, depth, head, write_stamp(stamp))
    key = None if head.key is None else head.key.encode()
    found = read_record(record(headers, value=body, key=key), DEFAULT)
    assert found == Found(event_id, depth, head, stamp, body, foreign=False)


def test_headers_are_those_of_cloudevents() -> None:
    """Names and forms are those that other tools look for."""
    event_id = UUID("01890a5d-ac96-774b-bcce-b302099a8057")
    head = Head(0, (), b"", b"\1" * 16, b"\2" * 8, 1, b"", 1_700_000_000_000_001, "service:web", "c1", 0.25)
    found = dict(write_head(event_id.bytes, 0, head, write_stamp(Stamp("Ticket", "headrace/web", 1))))
    assert found == {
        "ce_specversion": b"1.0",
        "ce_id": b"01890a5d-ac96-774b-bcce-b302099a8057",
        "ce_type": b"Ticket",
        "ce_source": b"headrace/web",
        "ce_time": b"2023-11-14T22:13:20.000001Z",
        "ce_schemaversion": b"1",
        "ce_depth": b"0",
        "ce_principal": b"service:web",
        "ce_confidence": b"0.25",
        "content-type": b"application/json",
        "traceparent": b"00-01010101010101010101010101010101-0202020202020202-01",
    }


def test_a_record_without_headers_is_an_event() -> None:
    """Id from its place, time from the record, type and schema version as told; the same for every reader."""
    found = read_record(record(key=b"c1", value=b'{"a":1}'), DEFAULT)
    assert found.foreign
    assert found.event_id == id_at(TOPIC_ID, 3, 41)
    assert found.stamp == DEFAULT
    assert (found.head.key, found.head.time_us) == ("c1", 1_700_000_000_123_000)
    assert found.head.trace == found.event_id
    assert read_record(record(key=b"c1", value=b'{"a":1}'), DEFAULT) == found
    assert read_record(record(topic_id=bytes(16)), DEFAULT).event_id != found.event_id, (
        "another topic of the name"
    )


def test_a_foreign_id_is_that_of_its_source() -> None:
    """Two sources may use the same name; a UUID is taken as it is."""
    assert read(ce_id="mail-4711", ce_source="a").event_id == foreign_id("a", "mail-4711")
    assert read(ce_id="mail-4711", ce_source="a").event_id != read(ce_id="mail-4711", ce_source="b").event_id
    own = uuid4()
    assert read(ce_id=str(own)).event_id == own.bytes


def test_the_frame_of_a_registry_is_taken_off() -> None:
    """JSON behind magic byte and schema number is JSON; our own payloads are never touched."""
    framed = b'\0\0\0\0\7{"a":1}'
    assert read_record(record(value=framed), DEFAULT).body == b'{"a":1}'
    assert read_record(record([("ce_schemaversion", b"1")], value=framed), DEFAULT).body == framed
    avro = b"\0\0\0\0\7\2\6abc"
    assert read_record(record(value=avro), DEFAULT).body == avro


def test_headers_of_others_are_kept() -> None:
    """Also extensions of CloudEvents that we do not know; of one that stands twice the last counts."""
    found = read_record(
        record([("tenant", b"a"), ("ce_region", b"eu"), ("tenant", b"b"), ("x", None)]), DEFAULT
    )
    assert found.head.headers == {"tenant": b"b", "ce_region": b"eu"}


def test_a_key_that_is_no_text_is_a_key_all_the_same() -> None:
    """Java writes numbers as bytes."""
    assert read_record(record(key=b"\xff\0"), DEFAULT).head.key == "0xff00"


def test_a_trace_that_is_none_begins_anew() -> None:
    """W3C Trace Context: what cannot be read is ignored."""
    assert read(traceparent="00-zz", tracestate="a=1").head.tracestate == ""


@given(
    st.from_regex(r"0[01]-[0-9a-f]{32}-[0-9a-f]{16}-0[0-2]", fullmatch=True),
    st.lists(st.tuples(st.integers(0, 54), st.sampled_from("0aAfFg -_é")), max_size=3),
)
@example(TRACE, [(5, "A")])
@example(TRACE, [(35, "0")])
@example(TRACE, [(52, "0")])
@example(TRACE, [(2, "0")])
@example(TRACE, [(3, " "), (4, " ")])
@example(TRACE, [(33, " "), (34, " ")])
@example(f"00-{'0' * 32}-{'1' * 16}-01", [])
@example(f"00-{'1' * 32}-{'0' * 16}-01", [])
def test_the_quick_look_at_a_trace_sees_what_the_careful_one_does(text: str, changes: Any) -> None:
    """Whatever stands in the place of a digit or a dash."""
    for at, char in changes:
        text = text[:at] + char + text[at + 1 :]
    quick = _plain_trace(text.encode())
    assert quick is None or quick == parse_traceparent(text)
    if not changes and text[:2] == "00" and text[-2:] in {"00", "01"}:
        assert quick == parse_traceparent(text)


@pytest.mark.parametrize(
    "headers",
    [
        {"ce_type": b"\xff"},
        {"ce_time": "yesterday"},
        {"ce_time": "2023-13-14T22:13:20Z"},
        {"ce_depth": "-1"},
        {"ce_depth": "9" * 11},
        {"ce_depth": "2147483648"},
        {"ce_lane": "\u0663"},
        {"ce_confidence": "1.5"},
        {"ce_confidence": "nan"},
        {"ce_confidence": "much"},
        {"ce_parentids": "mail-4711"},
        {"ce_parentids": ",".join(str(UUID(int=n)) for n in range(65))},
        {"ce_causalityid": "x"},
        {"ce_inputhash": "xyz"},
        {"ce_id": "x" * 513},
        {"ce_source": "x" * 4_097},
    ],
    ids=lambda headers: "-".join(f"{name}-{str(value)[:12]}" for name, value in headers.items()),
)
def test_what_cannot_be_is_refused_by_name(headers: dict[str, Any]) -> None:
    """The fault names the header, for the dead letter."""
    (name,) = headers
    with pytest.raises(ValueError, match=rf"^{name}: "):
        read(**headers)


def test_a_deletion_is_no_event() -> None:
    """A null value deletes a key in a compacted topic."""
    with pytest.raises(ValueError, match=r"^value: it is null"):
        read_record(record(value=None), DEFAULT)


@given(st.lists(st.tuples(st.sampled_from(sorted(["ce_id", "ce_time", "ce_depth", "ce_type", "ce_parentids",
    "ce_confidence", "traceparent", "x"])), st.binary(max_size=40) | st.none())), st.binary() | st.none(),
    st.binary() | st.none())  # fmt: skip
def test_any_record_is_read_or_refused(headers: Any, value: bytes | None, key: bytes | None) -> None:
    """Hostile bytes end in an event or a `ValueError`, nothing else."""
    try:
        found = read_record(record(headers, value=value, key=key), DEFAULT)
    except ValueError:
        return
    assert len(found.event_id) == 16
