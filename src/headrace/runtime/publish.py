"""From an event of the user to a record for the journal: validate, encode, place, envelope."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, TypedDict
from uuid import UUID

from headrace import errors
from headrace.event.contract import Contract, Event, check_key
from headrace.event.envelope import (
    Envelope,
    Head,
    Trace,
    check_headers,
    parse_traceparent,
)
from headrace.event.lineage import id_of, partition_of, uuid7
from headrace.ports import Chance, Journal, NewEvent, World

ParentRef = UUID | str | bytes | Envelope
#: Parents of one event: a join of more is better done step by step.
PARENTS_MAX = 64
#: Events of one publish, as many as one handling may emit; and their payloads and headers.  All of them are
#: one transaction, for which other writers wait: 10,000 small ones some 30 ms, 64 MiB some 200 (measured).
UNIT_EVENTS_MAX, UNIT_BYTES_MAX = 10_000, 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a publisher may say of an event beside its content."""

    event_id: UUID | str | bytes | None = None
    parents: Sequence[ParentRef] = ()
    traceparent: str | None = None
    tracestate: str = ""
    headers: Mapping[str, bytes] | None = None

    def __post_init__(self) -> None:
        """Refuse what is of the wrong kind, where it is said; what is wrong inside is found on publishing."""
        for name, (kinds, wanted) in _KINDS.items():
            if not isinstance(value := getattr(self, name), kinds):
                raise errors.EnvelopeInvalid(attribute=name, problem=_unlike(value, wanted))
        if self.parents:
            _check_parents(self.parents)


_ID = (UUID, str, bytes)
_PARENT = (*_ID, Envelope)
#: What each option may be, and how that is told.  The likely kinds stand first: asking an abstract one takes
#: ten times as long.
_KINDS: dict[str, tuple[tuple[type[Any], ...], str]] = {
    "event_id": ((NoneType, *_ID), "a UUID, text or 16 bytes"),
    "parents": ((tuple, list, Sequence), "a list of ids or envelopes"),
    "traceparent": ((NoneType, str), "text"),
    "tracestate": ((str,), "text"),
    "headers": ((NoneType, dict, Mapping), "a mapping of text to bytes"),
}


def _unlike(value: object, wanted: str) -> str:
    return f"it is {value if value is None else type(value).__name__}, and should be {wanted}"


def _check_parents(parents: Sequence[object]) -> None:
    if isinstance(parents, (str, bytes)):
        problem = "it is one id, and should be a list of ids or envelopes"
        raise errors.EnvelopeInvalid(attribute="parents", problem=problem, hint="parents=[...]")
    for at, one in enumerate(parents):
        if not isinstance(one, _PARENT):
            hint = "the id of what was published stands in its receipt: ``receipt.event_id``"
            problem = _unlike(one, "an id or an envelope")
            raise errors.EnvelopeInvalid(attribute=f"parents[{at}]", problem=problem, hint=hint)


class Said(TypedDict, total=False):
    """The same as keywords of a call."""

    event_id: UUID | str | None
    parents: Sequence[ParentRef]
    traceparent: str | None
    tracestate: str
    headers: Mapping[str, bytes] | None


#: Events of one unit, each with its options or without.
Several = Sequence[Event | tuple[Event, Options]]


class Unit:
    """The records of one publish: all or none, so there is a bound on them."""

    def __init__(self, count: int, path: str) -> None:
        if count > UNIT_EVENTS_MAX:
            raise errors.UnitTooLarge(path=path, size=f"{count:,} events", limit=f"{UNIT_EVENTS_MAX:,}")
        self.records: list[NewEvent] = []
        self._count, self._path = count, path
        self._bytes = 0

    def add(self, record: NewEvent, type_name: str) -> None:
        """Take one more; raises `UnitTooLarge`.  A payload by itself has its own bound, the setting."""
        self.records.append(record)
        if self._count == 1:
            return
        self._bytes += record.size_bytes
        if self._bytes > UNIT_BYTES_MAX:
            place = f"[{len(self.records) - 1}] ({type_name})"
            raise errors.UnitTooLarge(
                f"Event {place} passes it.", path=self._path, size="more bytes", limit=f"{UNIT_BYTES_MAX:,}"
            )


@dataclass(frozen=True, slots=True)
class Publisher:
    """Who publishes, and into which journal."""

    journal: Journal
    world: World
    source: str
    principal: str
    bytes_max: int

    async def prepare(self, contract: Contract, event: Event, options: Options, stamp: int) -> NewEvent:
        """Return the record of an event; raises the `EventError` family, and then nothing was written."""
        body = contract.encode(event)
        if len(body) > self.bytes_max:
            raise errors.PayloadTooLarge(type=contract.type, size_bytes=len(body), limit_bytes=self.bytes_max)
        key = contract.key_of(event)
        check_key(contract.type, key)
        now_us, chance, given = self.world.clock.wall_us(), self.world.chance, options.event_id
        event_id = uuid7(now_us, chance.bytes(10)) if given is None else id_of(given, self.source)
        head = _head(contract, options, self.source, self.principal, chance)
        head.stamp, head.key, head.time_us = stamp, key, now_us
        topic = await self.journal.topic(contract.topic)
        place = self.journal.place(topic, partition_of(key, event_id, topic.partitions))
        return NewEvent(contract.topic, place, event_id, head, body, may_exist=given is not None)


def _head(contract: Contract, options: Options, source: str, principal: str, chance: Chance) -> Head:
    if len(options.parents) > PARENTS_MAX:
        raise errors.EnvelopeInvalid(attribute="parents", problem=f"there are more than {PARENTS_MAX}")
    headers = dict(options.headers) if options.headers else None
    if headers:
        check_headers(contract.type, headers)
    trace = _trace(options, chance)
    return Head(
        stamp=0,
        parents=tuple(dict.fromkeys(_parent(one, source, at) for at, one in enumerate(options.parents))),
        root=b"",
        trace=trace.trace,
        span=trace.span,
        flags=trace.flags,
        input_hash=b"",
        time_us=0,
        principal=principal,
        key=None,
        tracestate=trace.state,
        headers=headers,
    )


def _parent(ref: ParentRef, source: str, at: int) -> bytes:
    return ref.event_id.bytes if isinstance(ref, Envelope) else id_of(ref, source, f"parents[{at}]")


def _trace(options: Options, chance: Chance) -> Trace:
    """Continue the caller's trace, with a span of our own; a missing or broken one starts a new trace."""
    span = chance.bytes(8)
    found = parse_traceparent(options.traceparent, options.tracestate) if options.traceparent else None
    if found is None:
        return Trace(chance.bytes(16), span, 1)
    return found._replace(span=span)
