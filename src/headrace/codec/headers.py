"""The envelope as headers of a Kafka record: CloudEvents 1.0 in binary mode, readable by any Kafka tool.

Attributes of CloudEvents are headers with the prefix ``ce_``, the content type is ``content-type``
(CloudEvents Kafka protocol binding 1.0.2, section 3.2).  The key is the key of the record, the payload its
value.  The trace context stands in ``traceparent`` and ``tracestate`` (W3C), where tracing tools look for it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple, cast
from uuid import UUID

from headrace.event.envelope import Head, Stamp, Trace, parse_traceparent
from headrace.event.lineage import ID_BYTES, ID_CHARS_MAX, foreign_id, id_at, text_of

Headers = Sequence[tuple[str, bytes | None]]

#: A user's header with a name of ours, or one that begins like this, gets this in front, until it is read.
ESCAPE = "h_"
_ATTRIBUTES = (
    "specversion", "type", "source", "schemaversion", "handler", "model", "id", "time", "depth", "principal",
    "parentids", "causalityid", "inputhash", "confidence", "lane", "side",
)  # fmt: skip
_OWN = frozenset({"content-type", "traceparent", "tracestate", *(f"ce_{name}" for name in _ATTRIBUTES)})
#: What a stamp is made of.
_STAMPED = (
    "ce_type", "ce_source", "ce_schemaversion", "content-type", "ce_handler", "ce_model", "ce_side",
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Magic byte and schema number in front of what serialisers of a schema registry write.
FRAME_BYTES = 5
_TEXT_CHARS_MAX = 4_096
_PARENTS_MAX = 64


class Record(NamedTuple):
    """What a consumer of Kafka gets."""

    topic: str
    #: The topic's own id: a topic that was deleted and made again has another.
    topic_id: bytes
    partition: int
    offset: int
    time_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Found(NamedTuple):
    """A record, read."""

    event_id: bytes
    depth: int
    #: The stamp's number is the reader's to fill in.
    head: Head
    stamp: Stamp
    body: bytes
    #: Was it written by somebody who does not know Headrace?
    foreign: bool


def write_stamp(stamp: Stamp) -> list[tuple[str, bytes]]:
    """Return the headers that are the same for all events of a stamp."""
    found = [
        ("ce_specversion", b"1.0"),
        ("ce_type", stamp.type.encode()),
        ("ce_source", stamp.source.encode()),
        ("ce_schemaversion", b"%d" % stamp.schema_version),
        ("content-type", stamp.content_type.encode()),
    ]
    if stamp.handler is not None:
        found.append(("ce_handler", stamp.handler.encode()))
    if stamp.model is not None:
        found.append(("ce_model", stamp.model.encode()))
    if stamp.side is not None:
        found.append(("ce_side", stamp.side.encode()))
    return found


def write_head(
    event_id: bytes, depth: int, head: Head, constant: list[tuple[str, bytes]]
) -> list[tuple[str, bytes]]:
    """Return all headers of an event; ``constant`` is what `write_stamp` made of its stamp."""
    found = [
        *constant,
        ("ce_id", text_of(event_id).encode()),
        ("ce_time", _time(head.time_us)),
        ("ce_depth", b"%d" % depth),
        ("ce_principal", head.principal.encode()),
        ("traceparent", f"00-{head.trace.hex()}-{head.span.hex()}-{head.flags:02x}".encode()),
    ]
    parents = b""
    if head.parents:
        parents = ",".join(map(text_of, head.parents)).encode()
        found.append(("ce_parentids", parents))
    if head.root:
        first = head.parents == (head.root,)  # the first event of the chain is the cause: most are so
        found.append(("ce_causalityid", parents if first else text_of(head.root).encode()))
    if head.input_hash:
        found.append(("ce_inputhash", head.input_hash.hex().encode()))
    if head.confidence is not None:
        found.append(("ce_confidence", repr(head.confidence).encode()))
    if head.lane is not None:
        found.append(("ce_lane", b"%d" % head.lane))
    if head.tracestate:
        found.append(("tracestate", head.tracestate.encode()))
    if head.headers:
        found += [(_escaped(name), value) for name, value in head.headers.items()]
    return found


def _escaped(name: str) -> str:
    return ESCAPE + name if name in _OWN or name.startswith(ESCAPE) else name


@lru_cache(maxsize=64)
def _second(seconds: int) -> str:
    return (_EPOCH + timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S")


def _time(time_us: int) -> bytes:
    seconds, us = divmod(time_us, 1_000_000)
    return f"{_second(seconds)}.{us:06d}Z".encode()


def read_record(record: Record, default: Stamp) -> Found:
    """Return a record as an event.

    One without ``ce_id`` is an event all the same: its id follows from topic, partition and offset, its time
    is the record's, and what the headers do not say is taken from ``default``.  An id that is no UUID is that
    of its source: both are hashed.  Of a header that stands twice the last counts.

    Raises `ValueError`, with the name of the header, for one that cannot be what it says it is.
    """
    given: dict[str, bytes | None] = dict(record.headers)
    if None in given.values():
        given = {name: value for name, value in given.items() if value is not None}
    return _found(record, cast("dict[str, bytes]", given), default)


def _found(record: Record, given: dict[str, bytes], default: Stamp) -> Found:
    """Hot path: what is as we write it is read by position, all else by `_Reader`, which names faults."""
    get = given.get
    foreign = "ce_schemaversion" not in given
    stamp = _stamp(tuple(map(get, _STAMPED)), default)
    event_id = _plain_id(get("ce_id")) or _event_id(_Reader(given), record, stamp.source)
    trace = None if "tracestate" in given else _plain_trace(get("traceparent"))
    if trace is None:
        trace = _trace(_Reader(given)) or Trace(event_id, event_id[8:], 0)  # without one it begins one
    cause, root, depth = get("ce_parentids"), get("ce_causalityid"), _DEPTHS.get(get("ce_depth"))
    parent = _plain_id(cause)
    # By position, in the order of `Head`: names cost as much again.
    head = Head(
        0,
        (parent,) if parent else _parents(_Reader(given)) if cause else (),
        (_plain_id(root) or _Reader(given).id("ce_causalityid")) if root else b"",
        trace.trace,
        trace.span,
        trace.flags,
        _Reader(given).hash("ce_inputhash") if "ce_inputhash" in given else b"",
        _plain_time(get("ce_time")) or _Reader(given).time("ce_time", record.time_ms * 1000),
        _principal(get("ce_principal")) or f"kafka:{record.topic}",
        _key(record.key),
        _Reader(given).fraction("ce_confidence") if "ce_confidence" in given else None,
        _Reader(given).number("ce_lane", None) if "ce_lane" in given else None,
        trace.state,
        None if _OWN.issuperset(given) else _user_headers(given),
    )
    if depth is None:
        depth = _Reader(given).number("ce_depth", 0) or 0
    return Found(event_id, depth, head, stamp, _body(record.value, foreign=foreign), foreign)


@lru_cache(maxsize=1_024)  # a topic has a few: one for each version of each handler that writes to it
def _stamp(values: tuple[bytes | None, ...], default: Stamp) -> Stamp:
    given = dict(zip(_STAMPED, values, strict=True))
    reader = _Reader({name: value for name, value in given.items() if value is not None})
    return Stamp(
        reader.text("ce_type") or default.type,
        reader.text("ce_source") or default.source,
        reader.number("ce_schemaversion", default.schema_version) or 0,
        reader.text("content-type") or default.content_type,
        reader.text("ce_handler") or None,
        reader.text("ce_model") or None,
        reader.text("ce_side") or None,
    )


#: An id, a time and a trace context as text, and the bytes that stand in them.
_ID_CHARS, _TIME_CHARS, _TRACE_CHARS = 36, 27, 55
_DASH, _DOT, _ZULU = b"-.Z"
#: A trace id and a span id.
_TRACE_BYTES = 16 + 8
#: Numbers as we write them, ready made: depths, and the flags of a trace.
_DEPTHS: dict[bytes | None, int] = {b"%d" % depth: depth for depth in range(64)}
_FLAGS = {b"00": 0, b"01": 1}


def _plain_id(raw: bytes | None) -> bytes | None:
    """Return a UUID that stands alone in the usual form; ``None`` for all else."""
    if raw is None or len(raw) != _ID_CHARS or not raw[8] == raw[13] == raw[18] == raw[23] == _DASH:
        return None
    try:
        found = bytes.fromhex(raw.replace(b"-", b"").decode())
    except ValueError:
        return None
    return found if len(found) == ID_BYTES else None


def _plain_time(raw: bytes | None) -> int | None:
    """Return a time in the form in which we write it (microseconds since 1970); ``None`` for all else."""
    if raw is None or len(raw) != _TIME_CHARS or raw[19] != _DOT or raw[26] != _ZULU:
        return None
    seconds, fraction = _seconds(raw[:19]), raw[20:26]
    return seconds * 1_000_000 + int(fraction) if seconds is not None and fraction.isdigit() else None


@lru_cache(maxsize=64)
def _seconds(raw: bytes) -> int | None:
    """Return the seconds since 1970; records of one second come one after the other."""
    found = _RFC3339.fullmatch(raw.decode(errors="replace") + "Z")
    moment = None if found is None else _moment(found[1], found[3])
    return None if moment is None else (moment - _EPOCH) // timedelta(seconds=1)


def _plain_trace(raw: bytes | None) -> Trace | None:
    """Return a trace context of version 00 in the usual form; ``None`` for all else."""
    if raw is None or len(raw) != _TRACE_CHARS or raw[:3] != b"00-" or not raw[35] == raw[52] == _DASH:
        return None
    flags, digits = _FLAGS.get(raw[53:]), raw[3:35] + raw[36:52]
    if flags is None or digits != digits.lower():
        return None
    try:
        found = bytes.fromhex(digits.decode())
    except ValueError:
        return None
    trace, span = found[:16], found[16:]
    return Trace(trace, span, flags) if len(found) == _TRACE_BYTES and any(trace) and any(span) else None


def _trace(reader: _Reader) -> Trace | None:
    return parse_traceparent(reader.text("traceparent"), reader.text("tracestate"))


@lru_cache(maxsize=1_024)
def _principal(raw: bytes | None) -> str:
    return _Reader({"ce_principal": raw}).text("ce_principal") if raw else ""


def _parents(reader: _Reader) -> tuple[bytes, ...]:
    return tuple(_uuid("ce_parentids", word) for word in reader.words("ce_parentids"))


def _event_id(reader: _Reader, record: Record, source: str) -> bytes:
    text = reader.text("ce_id")
    if not text:
        return id_at(record.topic_id, record.partition, record.offset)
    if len(text) > ID_CHARS_MAX:
        raise ValueError(f"ce_id: {len(text)} characters, {ID_CHARS_MAX} may be")
    try:
        return UUID(text).bytes
    except ValueError:
        return foreign_id(source, text)


def _key(key: bytes | None) -> str | None:
    if key is None:
        return None
    try:
        return key.decode()
    except UnicodeDecodeError:
        return "0x" + key.hex()  # numbers, as Java's serialisers write them: a name all the same


def _body(value: bytes | None, *, foreign: bool) -> bytes:
    if value is None:
        raise ValueError("value: it is null, as those that delete a key in a compacted topic are")
    if foreign and len(value) > FRAME_BYTES and value[0] == 0 and value[FRAME_BYTES] in b'{["':
        return value[FRAME_BYTES:]  # JSON behind the frame of a schema registry
    return value


def _user_headers(given: dict[str, bytes]) -> dict[str, bytes] | None:
    found: dict[str, bytes] = {}
    for name, value in given.items():
        if name.startswith(ESCAPE):
            found[name[len(ESCAPE) :]] = value
        elif name not in _OWN:
            found[name] = value
    return found or None


_NUMBER = re.compile(r"[0-9]{1,10}")
_RFC3339 = re.compile(r"(\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?([Zz]|[+-]\d\d:\d\d)")


class _Reader:
    """Reads headers; every fault names its header."""

    def __init__(self, given: dict[str, bytes]) -> None:
        self._given = given

    def text(self, name: str) -> str:
        """Return text, empty where there is none."""
        value = self._given.get(name)
        if not value:
            return ""
        try:
            text = value.decode()
        except UnicodeDecodeError:
            raise ValueError(f"{name}: not UTF-8") from None
        if len(text) > _TEXT_CHARS_MAX:
            raise ValueError(f"{name}: {len(text)} characters, {_TEXT_CHARS_MAX} may be")
        return text

    def words(self, name: str) -> list[str]:
        """Return a list that is separated by commas."""
        found = [word for word in self.text(name).split(",") if word]
        if len(found) > _PARENTS_MAX:
            raise ValueError(f"{name}: {len(found)} of them, {_PARENTS_MAX} may be")
        return found

    def id(self, name: str) -> bytes:
        """Return an id, empty where there is none."""
        text = self.text(name)
        return _uuid(name, text) if text else b""

    def hash(self, name: str) -> bytes:
        """Return the bytes of hexadecimal digits."""
        try:
            return bytes.fromhex(self.text(name))
        except ValueError:
            raise ValueError(f"{name}: not hexadecimal") from None

    def number(self, name: str, default: int | None) -> int | None:
        """Return a number from 0 to 2^31 - 1."""
        text = self.text(name)
        if not text:
            return default
        if not _NUMBER.fullmatch(text) or int(text) >= 1 << 31:
            raise ValueError(f"{name}: {text[:60]!r} is no number from 0 to 2147483647")
        return int(text)

    def fraction(self, name: str) -> float | None:
        """Return a number from 0 to 1."""
        text = self.text(name)
        if not text:
            return None
        try:
            found = float(text)
        except ValueError:
            found = -1.0
        if not 0 <= found <= 1:
            raise ValueError(f"{name}: {text[:60]!r} is no number from 0 to 1")
        return found

    def time(self, name: str, default: int) -> int:
        """Return a time in microseconds since 1970."""
        text = self.text(name)
        if not text:
            return default
        found = _RFC3339.fullmatch(text)
        moment = None if found is None else _moment(found[1], found[3])
        if found is None or moment is None:
            raise ValueError(f"{name}: {text[:60]!r} is no time as RFC 3339 has it")
        return (moment - _EPOCH) // timedelta(microseconds=1) + int((found[2] or "").ljust(6, "0")[:6])


def _moment(text: str, zone: str) -> datetime | None:
    """Return a time to the second, or ``None`` where there is no such day or hour."""
    try:
        return datetime.fromisoformat(text.upper().replace(" ", "T") + ("+00:00" if zone in "Zz" else zone))
    except ValueError:
        return None


def _uuid(name: str, text: str) -> bytes:
    try:
        return UUID(text).bytes
    except ValueError:
        raise ValueError(f"{name}: {text[:60]!r} is no UUID") from None
