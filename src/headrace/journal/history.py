"""Which version of a handler has handled which offsets: ranges and exceptions, counted."""

from __future__ import annotations

from collections import Counter
from typing import Any

from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.versions import handler_unknown, info_of
from headrace.ports import VersionInfo
from headrace.ports.history import History, Range


def histories(reader: Reader, handler: str | None = None) -> list[History]:
    """Return the history of a handler, or of all; an unknown one has none."""
    queries: Any = load("history.sql")
    with reader.snapshot():
        return [
            _history(reader, queries, name, active)
            for name, active in reader.rows(queries.handlers, (handler,))
        ]


def check_handler(reader: Reader, handler: str | None) -> None:
    """Raise `HandlerUnknown` for a name that is neither the whole nor the short one of any handler."""
    queries: Any = load("history.sql")
    if handler is not None and not reader.rows(queries.handlers, (handler,)):
        raise handler_unknown(handler, [row[0] for row in reader.rows(queries.handlers, (None,))])


def _history(reader: Reader, queries: Any, handler: str, active: int | None) -> History:
    versions = {row[0]: info_of(row) for row in reader.rows(queries.versions, (handler,))}
    ranges: list[Range] = []
    total = unfinished = neither = 0
    for sub, topic, taken in reader.rows(queries.subscriptions, (handler,)):
        counts = {(tp, after): count for tp, after, count in reader.rows(queries.passed, (sub, topic))}
        open_ones: list[tuple[int, int]] = reader.rows(queries.unfinished, (sub,))
        others: list[tuple[int, int, int]] = reader.rows(queries.exceptions, (sub,))
        for tp, after, upto, number, gone in reader.rows(queries.ranges, (sub,)):
            mine = [(seq, by) for place, seq, by in others if place == tp and after < seq <= upto]
            ranges.append(
                Range(
                    partition=tp & 1023,
                    version=_of(versions, number),
                    first=after + 1,
                    last=upto,
                    taken=counts.get((tp, after), 0) + gone,
                    unfinished=sum(place == tp and after < seq <= upto for place, seq in open_ones),
                    exceptions=tuple((seq, _of(versions, by)) for seq, by in mine),
                )
            )
        total += taken
        unfinished += len(open_ones)
        neither += sum(count for (_, after), count in counts.items() if after is None)
    return History(
        handler=handler,
        active=versions.get(active) if active is not None else None,
        versions=list(versions.values()),
        ranges=ranges,
        handled=_handled(ranges, versions),
        taken=total,
        unfinished=unfinished,
        neither=neither,
        replayed=dict(reader.rows(queries.replayed, (handler,))),
    )


def _handled(ranges: list[Range], versions: dict[int, VersionInfo]) -> dict[int, int]:
    found = Counter(dict.fromkeys(versions, 0))
    for one in ranges:
        found[one.version.id] += one.handled
        found.update(by.id for _, by in one.exceptions)
    return dict(found)


def _of(versions: dict[int, VersionInfo], number: int) -> VersionInfo:
    """Return a version; for one that the journal no longer has (`verify` reports it) a name at least."""
    return versions.get(number) or VersionInfo(number, "?", f"#{number}", None, None, None)
