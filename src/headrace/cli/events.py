"""Events as commands show them: as JSON, as one line, in full, as a tree of causes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from headrace.cli.output import paint, plain, put, put_facts, shortened, width_of
from headrace.event.envelope import Envelope
from headrace.ports.look import StoredEvent


def event_json(event: StoredEvent) -> dict[str, Any]:
    """Return an event with stable keys: its envelope by CloudEvents names, then its payload."""
    one = event.envelope
    found: dict[str, Any] = {
        "offset": one.offset,
        "topic": one.topic,
        "partition": one.partition,
        "event_id": one.event_id,
        "type": one.type,
        "key": one.key,
        "time": one.time,
        "source": one.source,
        "schema_version": one.schema_version,
        "causality_id": one.causality_id,
        "parent_ids": list(one.parent_ids),
        "depth": one.depth,
        "traceparent": one.traceparent,
        "tracestate": one.tracestate,
        "principal": one.principal,
        "handler": one.handler,
        "side": one.side,
        "model": one.model,
        "confidence": one.confidence,
        "lane": one.lane,
        "input_hash": one.input_hash,
        "headers": {name: value.decode("utf-8", "backslashreplace") for name, value in one.headers.items()},
        **({"payload": None, "removed": event.removed} if event.removed else payload_json(event.payload)),
    }
    if event.problem:
        found["problem"] = event.problem
    return found


def payload_json(body: bytes) -> dict[str, Any]:
    """Return a payload under ``payload``, or, when it is not JSON, its bytes under ``payload_base64``."""
    try:
        return {"payload": json.loads(body)}
    except (ValueError, RecursionError):
        return {"payload_base64": base64.b64encode(body).decode("ascii")}


def payload_text(body: bytes) -> str:
    """Return a payload on one line."""
    return plain(body.decode("utf-8", "backslashreplace"))


def clock_text(time: datetime) -> str:
    """Return a time for people: UTC, to the millisecond."""
    return time.strftime("%Y-%m-%d %H:%M:%S.") + f"{time.microsecond // 1000:03d}Z"


def event_line(event: StoredEvent) -> str:
    """Return an event on one line of the terminal."""
    one = event.envelope
    place = f"{one.topic}/{one.partition}:{one.offset}"
    start = f"{clock_text(one.time)}  {place:<20}  {plain(one.type):<12}  {one.event_id}"
    room = max(20, width_of() - len(start) - 2)
    rest = f"(its envelope cannot be read: {event.problem})" if event.problem else payload_text(event.payload)
    return f"{start}  {paint(shortened(plain(rest), room), 'dim')}"


def put_event(event: StoredEvent) -> None:
    """Print an event in full."""
    one = event.envelope
    put(f"{paint(plain(one.type), 'bold')} {one.event_id}")
    put_facts(
        {
            "place": f"{one.topic}, partition {one.partition}, offset {one.offset}",
            "key": one.key,
            "time": clock_text(one.time),
            "published by": None if one.handler else f"{one.principal or '?'} ({one.source})",
            "emitted by": one.handler,
            "side": one.side,
            "model": one.model,
            "confidence": None if one.confidence is None else f"{one.confidence:.3f}",
            "caused by": ", ".join(str(parent) for parent in one.parent_ids),
            "chain": f"{one.causality_id}, depth {one.depth}",
            "schema": one.schema_version,
            "trace": one.traceparent,
            "tracestate": one.tracestate,
            "input hash": one.input_hash,
            "headers": ", ".join(
                f"{name}={value.decode('utf-8', 'backslashreplace')}" for name, value in one.headers.items()
            ),
            "problem": event.problem,
        }
    )
    put()
    if event.removed:
        put(paint(gone_text(event), "yellow"))
        return
    found = payload_json(event.payload)
    text = json.dumps(found.get("payload"), indent=2, ensure_ascii=False) if "payload" in found else ""
    put(plain(text, lines=True) or f"(not JSON) {payload_text(event.payload)}")


def gone_text(event: StoredEvent) -> str:
    """Return why the payload of an event is gone, for people."""
    return "payload erased" if event.removed == "erased" else f"payload removed by {event.removed}"


def tree(events: Sequence[StoredEvent]) -> list[tuple[int, StoredEvent]]:
    """Return events with their depth in the tree of first causes, each effect below its cause.

    An event whose first cause is not among them (the chain is longer than what is shown) stands at the left.
    """
    known = {one.envelope.event_id for one in events}
    below: dict[UUID | None, list[StoredEvent]] = {}
    for one in events:
        parents = one.envelope.parent_ids
        cause = parents[0] if parents and parents[0] in known else None
        below.setdefault(cause, []).append(one)
    found: list[tuple[int, StoredEvent]] = []
    # A stack instead of recursion: a chain may be as deep as the limit of its length.
    stack = [(0, one) for one in reversed(below.get(None, []))]
    while stack:
        level, one = stack.pop()
        found.append((level, one))
        stack += [(level + 1, child) for child in reversed(below.get(one.envelope.event_id, []))]
    return found


def after_ms(event: StoredEvent, times: dict[UUID, datetime]) -> float | None:
    """Return how long after its last cause an event was made; ``None`` for one without a known cause."""
    causes = [times[parent] for parent in event.envelope.parent_ids if parent in times]
    return round((event.envelope.time - max(causes)).total_seconds() * 1000, 3) if causes else None


def tree_lines(events: Sequence[StoredEvent], here: UUID) -> Iterator[str]:
    """Yield the tree of causes, a line per event."""
    times = {one.envelope.event_id: one.envelope.time for one in events}
    for level, event in tree(events):
        one = event.envelope
        waited = after_ms(event, times)
        branch = f"{'   ' * (level - 1)}└─ " if level else ""
        told = [_maker(one)]
        if one.side is not None:
            told.append(paint(f"side {plain(one.side)}", "cyan"))
        if waited is not None:
            told.append(f"after {waited:,.1f} ms")
        if one.confidence is not None:
            told.append(f"confidence {one.confidence:.2f}")
        if event.removed:
            told.append(gone_text(event))
        if len(one.parent_ids) > 1:
            told.append(f"{len(one.parent_ids)} causes")
        mark = paint(" <- this one", "green") if one.event_id == here else ""
        yield f"{branch}{paint(plain(one.type), 'bold')} {one.event_id}  {', '.join(told)}{mark}"


def _maker(one: Envelope) -> str:
    if one.handler is None:
        return f"published by {plain(one.principal or one.source)}"
    return plain(f"{one.handler} with {one.model}" if one.model else one.handler)
