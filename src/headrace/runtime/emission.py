"""Emitting one event class, compiled: id, parents, chain, trace and provenance in one pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace import errors
from headrace.codec.head import payload_hash
from headrace.event.contract import Contract, Event, check_key
from headrace.event.envelope import Head
from headrace.event.lineage import partition_of, text_of
from headrace.ports import Clock, Journal, Row, TopicInfo

#: (row, head and span of the cause, value, event id, confidence) -> what the journal will write.
Derive = Callable[[Row, Head, bytes, Event, bytes, "float | None"], Any]
#: Keys whose place is remembered, for each class and process: short strings, a few MiB.
KEYS_KEPT = 65_536


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what a handler may emit."""

    payload_bytes_max: int = 1 << 20
    #: A chain longer than this is taken for a cycle.
    depth_max: int = 256


@dataclass(frozen=True, slots=True)
class Origin:
    """Who emits."""

    app: str
    principal: str
    limits: Limits
    clock: Clock


@dataclass(frozen=True, slots=True)
class Emission:
    """How a handler version emits one event class."""

    contract: Contract
    derive: Derive
    #: No code of the user's is in it: it may be done later, for it fails for good or not at all.
    later: bool


def emission(
    contract: Contract,
    stamp: int,
    topic: TopicInfo,
    journal: Journal,
    origin: Origin,
) -> Emission:
    """Return the emission of a class.

    Its ``derive`` raises `PayloadInvalid`, `PayloadTooLarge`, `KeyInvalid` and `DepthExceeded`.  All that
    does not change from event to event is bound here, outside of the hot path.
    """
    encode, key_of, write, now_ns = contract.encode, contract.key_of, journal.emitted, origin.clock.wall_ns
    base, partitions, principal = journal.place(topic, 0), topic.partitions, origin.principal
    bytes_max, depth_max = origin.limits.payload_bytes_max, origin.limits.depth_max

    places: dict[str, int] = {}

    def place_of(key: str) -> int:
        check_key(contract.type, key)
        if len(places) >= KEYS_KEPT:
            places.clear()  # rare, and cheaper than keeping an order of use
        place = places[key] = base + partition_of(key, b"", partitions)
        return place

    def derive(
        row: Row, head: Head, span: bytes, value: Event, event_id: bytes, confidence: float | None
    ) -> Any:
        body = encode(value)
        if len(body) > bytes_max:
            raise errors.PayloadTooLarge(type=contract.type, size_bytes=len(body), limit_bytes=bytes_max)
        depth = row[4] + 1
        if depth > depth_max:
            raise errors.DepthExceeded(event_id=text_of(event_id), depth=depth, limit=depth_max)
        key = key_of(value)
        if key is None:
            place = base + partition_of(None, event_id, partitions)
        else:
            place = places.get(key) or place_of(key)
        cause = row[2]
        # By position, in the order of `Head`: names cost as much again.
        child = Head(
            stamp,
            (cause,),
            head.root or cause,
            head.trace,
            span,
            head.flags,
            payload_hash(row[6]),
            now_ns() // 1000,
            principal,
            key,
            confidence,
            None,
            head.tracestate,
            head.headers,
        )
        return write(place, event_id, row[3], depth, child, body)

    return Emission(contract, derive, later=contract.flat)
