"""One call of a handler that asks for more than its event, and the events that follow from it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from headrace import errors
from headrace.event.contract import Event
from headrace.event.envelope import Envelope, Head, Place, Stamp, envelope_of
from headrace.event.lineage import Derivation
from headrace.ports import Journal, Row
from headrace.runtime.context import Context
from headrace.runtime.flight import Flight
from headrace.runtime.gather import Ask, AskFromThread
from headrace.runtime.plan import Plan

#: Events that one handling may emit.
EMITS_MAX = 10_000

#: What a handler emitted, each with its name or ``None``.
Emitted = list[tuple[Any, str | None]]


class Caller:
    """Calls handlers with what their parameters ask for."""

    def __init__(
        self, journal: Journal, loop: asyncio.AbstractEventLoop, stamps: Mapping[int, Stamp]
    ) -> None:
        self._journal, self._loop, self._stamps = journal, loop, stamps

    async def call(self, flight: Flight, row: Row, head: Head, span: bytes, event: Event) -> list[Any]:
        """Return the events that follow, as the journal will write them."""
        plan, wants = flight.plan, flight.plan.handler.wants
        given: dict[str, Any] = {}
        ask: Ask | None = None
        ctx: Context | None = None
        if "model" in wants:
            ask = flight.ask()
            if not plan.handler.is_async:
                ask = AskFromThread(ask.gather, self._loop)
            given[wants["model"]] = ask
        if "ctx" in wants:
            ctx = given[wants["ctx"]] = self._context(flight, row, head)
        value = await plan.call(event, **given)
        values = each(value) if ctx is None else [*ctx.taken(), *each(value)]
        return derive_all(plan, row, head, span, values, ask.confidence if ask else None)

    def _context(self, flight: Flight, row: Row, head: Head) -> Context:
        plan = flight.plan
        key = UUID(bytes=Derivation(plan.born, "").named(row[2], "idempotency"))

        def made() -> Envelope:
            place = Place(plan.topic.name, row[1] - self._journal.place(plan.topic, 0), row[0])
            return envelope_of(row[2], row[4], head, self._stamps[head.stamp], place)

        return Context(plan.handler.name, key, flight.attempt_of(row).number, made)


def derive_one(
    plan: Plan, row: Row, head: Head, span: bytes, value: Any, event_id: bytes, confidence: float | None
) -> Any:
    """Return what follows from one value: nothing, one row of the journal, or a list of them."""
    if value is None:
        return None
    emission = plan.emissions.get(value.__class__)
    if emission is not None:
        return emission.derive(row, head, span, value, event_id, confidence)
    return derive_all(plan, row, head, span, each(value), confidence)


def derive_all(
    plan: Plan, row: Row, head: Head, span: bytes, values: Emitted, confidence: float | None
) -> list[Any]:
    """Return the events that follow, in the order of the calls, as the journal will write them.

    Raises `EmitRefused`, `EmitUnnamed`, `EmitsTooMany` and what `Emission.derive` raises; nothing is
    emitted then.
    """
    name_of = plan.handler.name
    if len(values) > EMITS_MAX:
        raise errors.EmitsTooMany(handler=name_of, limit=EMITS_MAX)
    names = [name for _, name in values if name is not None]
    if len(set(names)) != len(names):
        raise errors.EmitUnnamed("A name is used twice.", handler=name_of)
    found: list[Any] = []
    for ordinal, (value, name) in enumerate(values):
        emission = plan.emissions.get(value.__class__)
        if emission is None:
            allowed = ", ".join(one.contract.type for one in plan.emissions.values()) or "nothing"
            raise errors.EmitRefused(handler=name_of, emitted=type(value).__name__, allowed=allowed)
        ids = plan.derivation
        event_id = ids.child(row[2], ordinal) if name is None else ids.named(row[2], name)
        found.append(emission.derive(row, head, span, value, event_id, confidence))
    return found


def each(value: Any) -> Emitted:
    """Return the events of what a handler returned (none, one, or a list), without names."""
    if value is None:
        return []
    if isinstance(value, (list, tuple)):
        parts: list[Any] = list(value)  # pyright: ignore[reportUnknownArgumentType] - the user's
        return [(one, None) for one in parts]
    return [(value, None)]
