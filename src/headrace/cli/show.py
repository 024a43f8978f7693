"""``headrace show``: one event in full, and the chain it belongs to."""

from __future__ import annotations

from typing import Any

import typer

from headrace.cli.options import EventId, Journal, Json, TopicName, examples
from headrace.cli.output import Exit, counted, paint, put, put_json

_EPILOG = examples("headrace show 01a22a41-9f19-79cd", "headrace show mail-4711 --topic tickets --json")


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("show", epilog=_EPILOG)(_show)


def _show(event: EventId, topic: TopicName = None, journal: Journal = None, as_json: Json = False) -> int:
    """Print an event: payload, envelope, and the tree of all that was caused, with models and timings."""
    from headrace.cli.access import reading
    from headrace.cli.events import put_event, tree_lines
    from headrace.journal.reader import PAGE_ROWS_MAX

    with reading(journal) as reader:
        found = reader.find(event, topic=topic)
        chain = reader.chain(found)
    if as_json:
        put_json(_document(found, chain, whole=len(chain) < PAGE_ROWS_MAX))
        return Exit.DONE
    put_event(found)
    put()
    put(paint(f"chain of {counted(len(chain), 'event')}", "bold"))
    for line in tree_lines(chain, found.envelope.event_id):
        put(f"  {line}")
    if len(chain) == PAGE_ROWS_MAX:
        put(f"  ... the first {PAGE_ROWS_MAX:,}; there are more")
    return Exit.DONE


def _document(event: Any, chain: list[Any], *, whole: bool) -> dict[str, Any]:
    from headrace.cli.events import after_ms, event_json

    times = {one.envelope.event_id: one.envelope.time for one in chain}
    steps: list[dict[str, Any]] = [
        {
            "event_id": one.envelope.event_id,
            "type": one.envelope.type,
            "topic": one.envelope.topic,
            "offset": one.envelope.offset,
            "parent_ids": list(one.envelope.parent_ids),
            "depth": one.envelope.depth,
            "handler": one.envelope.handler,
            "model": one.envelope.model,
            "confidence": one.envelope.confidence,
            "time": one.envelope.time,
            "after_ms": after_ms(one, times),
        }
        for one in chain
    ]
    return event_json(event) | {"chain": steps, "chain_whole": whole}
