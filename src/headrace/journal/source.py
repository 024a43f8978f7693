"""A journal in SQLite that is copied into another: looked at only, and left as it is."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace import errors
from headrace.codec.head import decode_head, decode_stamp
from headrace.codec.ledger import OpenEntry, Range
from headrace.event.envelope import Head, Stamp
from headrace.journal.allotment import Interval, holds
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.versions import info_of
from headrace.ports import Attempt, Clock, OpenState, VersionInfo

#: Rows of one query.
PAGE_ROWS = 1_000


class SourceTopic(NamedTuple):
    """A topic and what it holds."""

    id: int
    name: str
    partitions: int
    events: int
    size_bytes: int
    largest_bytes: int
    #: When its oldest event was published; 0 where there is none.
    oldest_us: int


class SourceEvent(NamedTuple):
    """One event, its stamp in words."""

    seq: int
    topic: int
    partition: int
    event_id: bytes
    depth: int
    head: Head
    stamp: Stamp
    body: bytes


class SourcePart(NamedTuple):
    """One partition of a subscription; all offsets are those of the source."""

    partition: int
    start: int
    high: int
    taken: int
    done: int
    dead: int
    ranges: list[Range]
    open: list[OpenEntry]


class SourceSubscription(NamedTuple):
    """A handler's progress over its topic."""

    handler: str
    topic: int
    parts: list[SourcePart]
    #: Partition, offset, version.
    exceptions: list[tuple[int, int, str]]


class SourceReplay(NamedTuple):
    """History that went, or is going, through a version."""

    #: What tells it from the others of this journal.
    number: int
    #: How far it has come; of its handler's name.
    progress: SourceSubscription
    version: str
    side: str | None
    again: str | None
    wanted: str
    follow: bool
    skipped: dict[str, int]
    emitted: int
    begun_us: int
    #: What it was allotted, by partition; where both ends are the same none, but so far was looked.
    allotted: dict[int, list[Interval]]


class SourceLetter(NamedTuple):
    """A dead letter that nobody has decided on."""

    id: int
    handler: str
    version: str
    event: SourceEvent
    reason: str
    code: str
    error: str
    traceback: str
    attempt: Attempt
    trace: bytes
    type: str
    died_us: int
    #: The number of the replay that it died in; 0 for live.
    replay: int


class Source:
    """What is copied; opened read-only."""

    def __init__(self, path: str, clock: Clock) -> None:
        self._reader = Reader(path)
        self._queries: Any = load("source.sql")
        self._clock, self.path = clock, path
        self._stamps: dict[int, Stamp] = {}
        ((made,),) = self._rows(self._queries.made)
        #: What tells this journal from others, wherever its file lies.
        self.name = str(made)

    def close(self) -> None:
        """Close the file."""
        self._reader.close()

    def _rows(self, sql: str, *bindings: Any) -> list[Any]:
        return self._reader.rows(sql, bindings)

    def check_idle(self) -> None:
        """Raise `CopyRefused` while a worker lives: what it does meanwhile would be lost."""
        now = self._clock.boot_ns()
        for pid, until_ns in self._rows(self._queries.alive, self._clock.boot_id(), now):
            problem = (
                f"worker {pid} of {self.path} is alive, or died less than a lease ago"
                f" ({(until_ns - now) / 1e9:.0f} s left)"
            )
            raise errors.CopyRefused(problem=problem, hint="stop its workers and publishers first")

    def marks(self) -> tuple[int, ...]:
        """Return numbers that are others as soon as anybody has worked on the journal."""
        return tuple(self._rows(self._queries.marks)[0])

    def topics(self) -> list[SourceTopic]:
        """Return all topics."""
        rows = self._rows(self._queries.topics)
        return [SourceTopic._make((*row, self._oldest_us(row[0]))) for row in rows]

    def _oldest_us(self, topic: int) -> int:
        rows = self._rows(self._queries.first_of_topic, topic)
        return self._head(rows[0][0], "its oldest event").time_us if rows else 0

    def count_to(self, seq: int) -> int:
        """Return how many events there are up to an offset."""
        return int(self._rows(self._queries.count_to, seq)[0][0])

    def events(self, after: int) -> list[SourceEvent]:
        """Return the next events of all topics, causes before effects."""
        return [self._event(row) for row in self._rows(self._queries.events, after, PAGE_ROWS)]

    def events_of(self, topic: int) -> Iterator[SourceEvent]:
        """Yield the events of one topic."""
        after = 0
        while rows := self._rows(self._queries.events_of_topic, topic, after, PAGE_ROWS):
            for row in rows:
                yield self._event(row)
            after = rows[-1][0]

    def _event(self, row: tuple[Any, ...]) -> SourceEvent:
        seq, tp, event_id, depth, packed, body = row
        head = self._head(packed, f"the event at offset {seq}")
        return SourceEvent(seq, tp >> 10, tp & 1023, event_id, depth, head, self._stamp(head.stamp), body)

    def _head(self, packed: bytes, what: str) -> Head:
        try:
            return decode_head(packed)
        except ValueError as fault:  # msgspec's errors are ValueErrors
            problem = f"{what} cannot be read ({fault})"
            hint = "headrace status --verify lists what is damaged"
            raise errors.CopyRefused(problem=problem, hint=hint) from fault

    def _stamp(self, number: int) -> Stamp:
        found = self._stamps.get(number)
        if found is None:
            rows = self._reader.rows(load("reader.sql").stamp_value, (number,))
            found = self._stamps[number] = decode_stamp(rows[0][0]) if rows else Stamp(f"#{number}", "", 0)
        return found

    # --- handlers -----------------------------------------------------------------------------

    def versions(self) -> list[tuple[VersionInfo, str | None]]:
        """Return all versions in the order in which they became known, with what their models declare."""
        return [(info_of(row), row[6]) for row in self._rows(self._queries.versions)]

    def trials(self) -> set[int]:
        """Return the numbers of the versions that replays alone know."""
        return {number for (number,) in self._rows(self._queries.trials)}

    def active(self) -> dict[str, int]:
        """Return the number of the active version of each handler."""
        return dict(self._rows(self._queries.active))

    def subscriptions(self) -> list[SourceSubscription]:
        """Return the progress of each handler, all at one moment; of one that changed its topic the last."""
        names = {info.id: info.name for info, _ in self.versions()}
        found: dict[str, SourceSubscription] = {}
        with self._reader.snapshot():
            for sub, handler, topic in self._rows(self._queries.subscriptions):
                if handler not in found:
                    found[handler] = self._subscription(sub, handler, topic, names)
        return list(found.values())

    def replays(self) -> list[SourceReplay]:
        """Return the replays of the handlers, finished or not, oldest first, all at one moment."""
        names = {info.id: info.name for info, _ in self.versions()}
        with self._reader.snapshot():
            return [self._replay(row, names) for row in self._rows(self._queries.replays)]

    def _replay(self, row: tuple[Any, ...], names: dict[int, str]) -> SourceReplay:
        sub, handler, topic, version, side, again, wanted, follow, skipped, emitted, begun_us = row
        allotted: dict[int, list[Interval]] = {}
        for tp, after, upto in self._rows(self._queries.allotted, sub):
            allotted.setdefault(tp & 1023, []).append((after, upto))
        progress = self._subscription(sub, handler, topic, names, allotted)
        name = names.get(version, f"#{version}")
        return SourceReplay(
            sub, progress, name, side, again, wanted, bool(follow), json.loads(skipped), emitted, begun_us,
            allotted,
        )  # fmt: skip

    def _subscription(
        self,
        sub: int,
        handler: str,
        topic: int,
        names: dict[int, str],
        allotted: dict[int, list[Interval]] | None = None,
    ) -> SourceSubscription:
        queries = self._queries
        ranges: dict[int, list[Range]] = {}
        for tp, after, version in self._rows(queries.ranges, sub):
            ranges.setdefault(tp, []).append(Range(after, names.get(version, f"#{version}")))
        opened = self._opened(sub, allotted)
        parts = [
            SourcePart(tp & 1023, start, high, taken, done, dead, ranges.get(tp, []), opened.get(tp, []))
            for tp, start, high, _, taken, done, dead in self._rows(queries.positions, sub)
        ]
        for part in parts:
            if part.taken != part.done + part.dead + len(part.open):
                problem = f"the counts of {handler}, partition {part.partition}, do not add up"
                raise errors.CopyRefused(problem=problem, hint="headrace status --verify")
        exceptions = [
            (tp & 1023, seq, names.get(version, f"#{version}"))
            for tp, seq, version in self._rows(queries.exceptions, sub)
        ]
        return SourceSubscription(handler, topic, parts, exceptions)

    def _opened(self, sub: int, allotted: dict[int, list[Interval]] | None) -> dict[int, list[OpenEntry]]:
        """Return what is open; what a worker had in hand that died is a suspect, as a take-over makes it."""
        found: dict[int, list[OpenEntry]] = {}
        for tp, seq, state, attempts, crashes, generation, due_us, told in self._rows(
            self._queries.open, sub
        ):
            died = state == OpenState.RUNNING
            entry = OpenEntry(
                seq,
                OpenState.RETRY.value if died else state,
                attempts,
                crashes + died,
                generation,
                tuple(json.loads(told)),
                0 if died else due_us,
            )
            found.setdefault(tp, []).append(entry)
        for tp, seq in self._rows(self._queries.claimed, sub):
            if allotted is not None and not holds(allotted.get(tp & 1023, ()), seq):
                continue
            found.setdefault(tp, []).append(OpenEntry(seq, OpenState.RETRY.value, 1, 1, 0, (), 0))
        return {tp: sorted(entries, key=lambda one: one.offset) for tp, entries in found.items()}

    # --- dead letters -------------------------------------------------------------------------

    def letter_counts(self) -> tuple[int, int]:
        """Return how many dead letters nobody has decided on, and how many were redriven or dropped."""
        undecided, decided = self._rows(self._queries.letter_counts)[0]
        return int(undecided), int(decided)

    def letter_topics(self) -> dict[int, tuple[int, int, int]]:
        """Return, by topic, bytes of undecided dead letters, of the largest, and when the oldest died."""
        return {
            topic: (size, largest, oldest)
            for topic, size, largest, oldest in self._rows(self._queries.letter_topics)
        }

    def letters(self, after: int, limit: int) -> list[SourceLetter]:
        """Return the next dead letters that nobody has decided on."""
        names = {info.id: info.name for info, _ in self.versions()}
        return [self._letter(row, names) for row in self._rows(self._queries.letters, after, limit)]

    def _letter(self, row: tuple[Any, ...], names: dict[int, str]) -> SourceLetter:
        (
            number, handler, tp, seq, generation, version, reason, code, error, traceback, attempts, crashes,
            told, event_id, kind, trace, head, body, died_us, depth, replay,
        ) = row  # fmt: skip
        attempt = Attempt(attempts, crashes, generation, tuple(json.loads(told)))
        return SourceLetter(
            number, handler, names.get(version, f"#{version}"),
            self._event((seq, tp, event_id, depth, head, body)),
            reason, code, error, traceback, attempt, trace, kind, died_us, replay,
        )  # fmt: skip
