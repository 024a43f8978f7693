"""``headrace show``: one event in full, and the chain it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from headrace.cli.options import EventId, Index, Journal, Json, TopicName, examples
from headrace.cli.output import Exit, counted, paint, put, put_json

if TYPE_CHECKING:
    from headrace.ports.look import Look, StoredEvent

_EPILOG = examples("headrace show 01a22a41-9f19-79cd", "headrace show mail-4711 --topic tickets --json")


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("show", epilog=_EPILOG)(_show)


def _show(
    event: EventId,
    topic: TopicName = None,
    journal: Journal = None,
    index: Index = None,
    as_json: Json = False,
) -> int:
    """Print an event: payload, envelope, and the tree of all that was caused, with models and timings."""
    from headrace.cli.access import looked
    from headrace.cli.events import put_event, tree_lines
    from headrace.ports.look import CHAIN_EVENTS_MAX

    async def look(at: Look) -> tuple[StoredEvent, list[StoredEvent]]:
        found = await at.find(event, topic=topic)
        return found, await at.chain(found)

    found, chain = looked(journal, index, look)
    if as_json:
        put_json(_document(found, chain, whole=len(chain) < CHAIN_EVENTS_MAX))
        return Exit.DONE
    put_event(found)
    put()
    put(paint(f"chain of {counted(len(chain), 'event')}", "bold"))
    for line in tree_lines(chain, found.envelope.event_id):
        put(f"  {line}")
    if len(chain) == CHAIN_EVENTS_MAX:
        put(f"  ... the first {CHAIN_EVENTS_MAX:,}; there are more")
    return Exit.DONE


def _document(event: StoredEvent, chain: list[StoredEvent], *, whole: bool) -> dict[str, Any]:
    from headrace.cli.events import after_ms, event_json

    times = {one.envelope.event_id: one.envelope.time for one in chain}
    steps: list[dict[str, Any]] = [
        {
            "event_id": one.event_id,
            "type": one.type,
            "topic": one.topic,
            "offset": one.offset,
            "parent_ids": list(one.parent_ids),
            "depth": one.depth,
            "handler": one.handler,
            "side": one.side,
            "model": one.model,
            "confidence": one.confidence,
            "time": one.time,
            "after_ms": after_ms(stored, times),
            "removed": stored.removed or None,
        }
        for one, stored in ((stored.envelope, stored) for stored in chain)
    ]
    return event_json(event) | {"chain": steps, "chain_whole": whole}
