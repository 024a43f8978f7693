"""Which version of a handler has handled which offsets: ranges and exceptions, counted."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.versions import info_of
from headrace.ports import VersionInfo


class Range(NamedTuple):
    """Offsets of one partition that were taken by one version."""

    partition: int
    version: VersionInfo
    #: The first and the last offset, both included.
    first: int
    last: int
    #: Finished by this version.
    handled: int
    #: Taken and not finished.
    unfinished: int
    #: Finished by another version (a retry after an upgrade, a second run after a crash): offset, version.
    exceptions: tuple[tuple[int, VersionInfo], ...]


class History(NamedTuple):
    """The versions of one handler and what each has handled."""

    handler: str
    active: VersionInfo | None
    versions: list[VersionInfo]
    ranges: list[Range]
    #: Finished by each version, by its number; exceptions counted where they belong.
    handled: dict[int, int]
    taken: int
    unfinished: int
    #: Taken offsets that no range covers; anything but 0 is a fault.
    neither: int

    @property
    def both(self) -> int:
        """How many more were finished than taken: counted twice; anything but 0 is a fault."""
        return max(0, sum(self.handled.values()) + self.unfinished + self.neither - self.taken)


def histories(reader: Reader, handler: str | None = None) -> list[History]:
    """Return the history of a handler, or of all; an unknown one has none."""
    queries: Any = load("history.sql")
    with reader.snapshot():
        return [
            _history(reader, queries, name, active)
            for name, active in reader.rows(queries.handlers, (handler,))
        ]


def _history(reader: Reader, queries: Any, handler: str, active: int | None) -> History:
    versions = {row[0]: info_of(row) for row in reader.rows(queries.versions, (handler,))}
    ranges = [_range(reader, queries, versions, row) for row in reader.rows(queries.ranges, (handler,))]
    handled: Counter[int] = Counter()
    for one in ranges:
        handled[one.version.id] += one.handled
        handled.update(by.id for _, by in one.exceptions)
    ((taken, neither),) = reader.rows(queries.taken, (handler,))
    return History(
        handler=handler,
        active=versions.get(active) if active is not None else None,
        versions=list(versions.values()),
        ranges=ranges,
        handled={number: handled[number] for number in versions},
        taken=taken,
        unfinished=sum(one.unfinished for one in ranges),
        neither=neither,
    )


def _range(reader: Reader, queries: Any, versions: dict[int, VersionInfo], row: tuple[int, ...]) -> Range:
    sub, tp, after, upto, version = row
    ((taken, unfinished),) = reader.rows(queries.range_counts, (sub, tp, after, upto))
    exceptions = tuple(
        (seq, versions.get(by) or _lost(by))
        for seq, by in reader.rows(queries.range_exceptions, (sub, tp, after, upto))
    )
    return Range(
        partition=tp & 1023,
        version=versions.get(version) or _lost(version),
        first=after + 1,
        last=upto,
        handled=taken - unfinished - len(exceptions),
        unfinished=unfinished,
        exceptions=exceptions,
    )


def _lost(number: int) -> VersionInfo:
    """Return a name for a version that the journal no longer has: `verify` reports it."""
    return VersionInfo(number, "?", f"#{number}", None, None, None)
