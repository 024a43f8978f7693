"""Replays of a journal that is copied: what each was allotted, and how far it is, in offsets of the target.

They come along because a version handles an event once: without them the same order would go through
all of its history again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence

from headrace.codec.allotment import Allotment, write_allotment
from headrace.codec.ledger import LEDGER_PARTITION, POSITION, Key, Position, Range, write_key, write_position
from headrace.journal.allotment import Interval, union
from headrace.journal.kafka.allotter import allotments_topic
from headrace.journal.kafka.course import where_of
from headrace.journal.kafka.log import own_topics
from headrace.journal.kafka.match import NONE, Map, Matched, position_of
from headrace.journal.kafka.produce import Out
from headrace.journal.kafka.topics import replay_name, replay_number
from headrace.journal.source import SourcePart, SourceReplay


class CarriedReplay:
    """One replay, as it is to stand in the target."""

    def __init__(self, source: str, one: SourceReplay, matched: Map, topic_id: bytes) -> None:
        self._one, self._topic_id = one, topic_id
        self._matched: dict[int, Matched] = {
            at: matched.get((one.progress.topic, at), NONE) for at in one.allotted
        }
        self.number = replay_number(f"{source}:{one.number}")
        #: What it is called where a handler has its name.
        self.name = replay_name(one.progress.handler, self.number)
        #: The number of its topic in the source, and where it is to stand what it was allotted.
        self.topic, self.allotments = one.progress.topic, allotments_topic(one.progress.handler)
        self.allotment = self._allotment()
        #: For people: where its results lie.
        self.where = where_of(self.allotment)

    def records(self) -> Iterator[Out]:
        """Yield what it was allotted, and its positions."""
        yield Out(self.allotments, 0, self.number.encode(), write_allotment(self.allotment))
        ledger, _ = own_topics(self.name)
        emitted = self._one.emitted  # counted for all partitions together: the first has it
        for part in self._one.progress.parts:
            if part.partition in self.allotment.parts:
                position = self._position(part)
                position.emitted = emitted
                key = write_key(Key(POSITION, part.partition))
                yield Out(ledger, LEDGER_PARTITION, key, write_position(position))
                emitted = 0

    def _allotment(self) -> Allotment:
        one, parts = self._one, dict[int, list[Interval]]()
        for at, intervals in one.allotted.items():
            there = self._matched[at].there
            found = union((there[begin], there[end - 1] + 1) for begin, end in self._within(at, intervals))
            if found:
                parts[at] = found
        return Allotment(
            replay=self.number,
            version=one.version,
            topic=self._topic_id.hex(),
            side=one.side,
            again=one.again,
            wanted=one.wanted,
            at_us=one.begun_us,
            parts=parts,
            allotted=sum(self._events(at, intervals) for at, intervals in one.allotted.items()),
            skipped=one.skipped,
            follow=one.follow,
            looked=self._looked() if one.follow else {},
        )

    def _looked(self) -> dict[int, int]:
        """Return up to where one that follows has looked."""
        return {
            at: self._matched[at].offset(max(upto for _, upto in intervals)) + 1
            for at, intervals in self._one.allotted.items()
        }

    def _within(self, partition: int, intervals: Sequence[Interval]) -> Iterator[Interval]:
        """Yield the events that lie in intervals, by number: from the first on, and before the second."""
        here = self._matched[partition].here
        for after, upto in intervals:
            begin, end = bisect_right(here, after), bisect_right(here, upto)
            if begin < end:
                yield begin, end

    def _events(self, partition: int, intervals: Sequence[Interval], upto: int | None = None) -> int:
        """Return how many events lie in intervals, up to an offset of the source."""
        most = None if upto is None else bisect_right(self._matched[partition].here, upto)
        return sum(
            max(0, (end if most is None else min(end, most)) - begin)
            for begin, end in self._within(partition, intervals)
        )

    def _position(self, part: SourcePart) -> Position:
        """Return a position; what retention has removed since is no part of it, here as in the allotment."""
        at, start = part.partition, self.allotment.parts[part.partition][0][0]
        found = position_of(part, self._matched[at], self._topic_id)
        found.start, found.high = start, max(found.high, start - 1)
        found.taken = self._events(at, self._one.allotted[at], part.high)
        found.ranges = [Range(start - 1, self._one.version)] if found.taken else []
        found.done = found.taken - found.dead - len(found.open)
        return found
