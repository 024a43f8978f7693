"""Compares a copy with its source event by event, and tells where each of them lies."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping
from itertools import zip_longest
from typing import NamedTuple

from headrace import errors
from headrace.codec.copied import chained, digest
from headrace.codec.ledger import OpenEntry, Position, Range
from headrace.event.envelope import Head
from headrace.event.lineage import text_of
from headrace.journal.kafka.fetch import Fetcher
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.rows import Reading
from headrace.journal.kafka.target import chunks
from headrace.journal.source import Source, SourceEvent, SourcePart, SourceTopic
from headrace.ports.index import Stretch

#: Tells of a step: its name, how many events are done, of how many.
Step = Callable[[str, int, int], None]


class Matched(NamedTuple):
    """The events of one partition, by number: where they lie here and there, and what they add up to."""

    here: array[int]
    there: array[int]
    checksum: int

    def offset(self, seq: int) -> int:
        """Return where the last event up to an offset of the source lies; -1 before the first."""
        count = bisect_right(self.here, seq)
        return self.there[count - 1] if count else -1


NONE = Matched(array("q"), array("q"), 0)
#: Partitions of a topic of the source, by topic number and partition.
Map = Mapping[tuple[int, int], Matched]


class Matcher:
    """Looks at every event, here and there."""

    def __init__(self, source: Source, log: Log, fetcher: Fetcher, step: Step) -> None:
        self._source, self._log, self._fetcher, self._step = source, log, fetcher, step

    async def match(self) -> Map:
        """Compare every event with its copy, and index it; raises `CopyDiffers` at the first difference."""
        matched: dict[tuple[int, int], Matched] = {}
        total = sum(topic.events for topic in self._source.topics())
        done = 0
        for topic in self._source.topics():
            here: list[tuple[array[int], array[int]]] = [
                (array("q"), array("Q")) for _ in range(topic.partitions)
            ]
            for event in self._source.events_of(topic.id):
                seqs, sums = here[event.partition]
                seqs.append(event.seq)
                sums.append(_digest(event))
            for partition, (seqs, sums) in enumerate(here):
                there, checksum = await self._match_part(topic, partition, sums)
                matched[topic.id, partition] = Matched(seqs, there, checksum)
                done += len(seqs)
                self._step("compared", done, total)
        return matched

    async def _match_part(
        self, topic: SourceTopic, partition: int, sums: array[int]
    ) -> tuple[array[int], int]:
        info = await self._log.topic(topic.name)
        rows, topic_id = self._log.rows_of(info), self._log.found(info).topic_id
        there, checksum = array("q"), 0
        for start, upto, messages in chunks(self._fetcher, topic.name, partition):
            readings = [rows.read(message) for message in messages]
            expected = sums[len(there) : len(there) + len(readings)]
            for reading, wanted in zip_longest(readings, expected):
                if wanted is None or self._digest(reading) != wanted:
                    offset = reading.seen.offset
                    what = f"{topic.name}, partition {partition}, offset {offset}"
                    problem = f"{what}: event {text_of(reading.row[2])} is another one than in the source"
                    raise errors.CopyDiffers(problem=problem)
                checksum = chained(checksum, wanted)
                there.append(reading.seen.offset)
            stretch = Stretch(topic_id, partition, start, upto, [one.seen for one in readings])
            await self._log.look("", info, [stretch], [])
        if len(there) != len(sums):
            problem = f"{topic.name}, partition {partition}: {len(there):,} events of {len(sums):,} are there"
            raise errors.CopyDiffers(problem=problem)
        return there, checksum

    def _digest(self, reading: Reading) -> int:
        row, head = reading.row, reading.row[5]
        stamp = self._log.stamps.stamp(head.stamp) if isinstance(head, Head) else None
        return -1 if stamp is None else digest(row[2], row[4], head, stamp, row[6])


def _digest(event: SourceEvent) -> int:
    return digest(event.event_id, event.depth, event.head, event.stamp, event.body)


def position_of(part: SourcePart, matched: Matched, topic_id: bytes) -> Position:
    """Return a position in offsets of the target."""
    start = matched.offset(part.start) + 1
    opened = [
        OpenEntry(
            matched.offset(one.offset),
            one.state,
            one.number,
            one.crashes,
            one.generation,
            one.errors,
            one.due_us,
        )
        for one in part.open
    ]
    return Position(
        high=max(matched.offset(part.high), start - 1),
        start=start,
        topic_id=topic_id,
        open=opened,
        ranges=_ranges(part.ranges, matched),
        taken=part.taken,
        done=part.done,
        dead=part.dead,
    )


def _ranges(ranges: Iterable[Range], matched: Matched) -> list[Range]:
    """Return ranges in offsets of the target; of those that took nothing the last stays."""
    found: dict[int, str] = {}
    for one in ranges:
        found[matched.offset(one.after)] = one.version
    return [Range(after, version) for after, version in sorted(found.items())]
