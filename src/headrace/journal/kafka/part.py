"""What a worker keeps in mind of one partition of Kafka, and how the ledger says it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from confluent_kafka import Message

from headrace.codec.ledger import OpenEntry, Position, Range
from headrace.journal.held import Held, Open
from headrace.journal.kafka.allotted import Allotted
from headrace.journal.kafka.rows import Reading, number_of, offset_of
from headrace.ports import Clock, DeadLetter, Row
from headrace.ports.index import First

#: A replay passes over so many records in one go, beside those that it was allotted.
PASS_RECORDS_MAX = 2_000


@dataclass(slots=True)
class Fetched:
    """Records of a partition that were fetched and not claimed yet."""

    #: In order.
    records: deque[Reading] = field(default_factory=deque[Reading])
    #: The index has looked at so many of them; up to this offset.
    looked: int = 0
    upto: int = 0
    #: Where their ids were seen first, for those that are not the first themselves.
    copies: dict[int, First] = field(default_factory=dict[int, First])
    #: For a replay: all that it was allotted below this offset was fetched, whatever comes after it.
    reached: int = 0

    def pop(self) -> First | None:
        """Take the first record; return where its id was seen first, if that was not here."""
        reading = self.records.popleft()
        self.looked = max(0, self.looked - 1)
        return self.copies.pop(reading.seen.offset, None) if self.copies else None


@dataclass(slots=True)
class Part:
    """One partition, as its owner knows it."""

    held: Held
    partition: int
    start: int
    topic_id: bytes
    ranges: list[Range]
    taken: int = 0
    done: int = 0
    dead: int = 0
    expired: int = 0
    #: How many of the taken belong to the claim that has no outcome yet.
    claimed: int = 0
    #: False until what is open, and what a dead owner had in hand, is known.
    ready: bool = False
    #: Up to this offset events were in the hand of an owner that died: they come back as suspects.
    suspect_upto: int = 0
    waiting: Fetched = field(default_factory=Fetched)
    #: Dead letters that no handler has made (conflicts, what retention has eaten), for the next transaction.
    buried: list[DeadLetter] = field(default_factory=list[DeadLetter])
    #: Has something changed that is to be written down without an outcome?
    changed: bool = False
    #: Were attempts noted in the index since it was last told what is closed?
    tried: bool = False
    #: Rows of the open offsets, by number.
    rows: dict[int, Row] = field(default_factory=dict[int, Row])
    #: Of open offsets that were redriven, the offset of the dead letter.
    letters: dict[int, int] = field(default_factory=dict[int, int])
    #: How often the partition was given to a worker, this time included.
    assigned: int = 1
    #: The first command that is not carried out; and those that were fetched and are not.
    commands: int = 0
    asked: deque[Message] = field(default_factory=deque[Message])
    #: What is to be handled, where that is not everything; and how many events have followed from it.
    allotted: Allotted | None = None
    emitted: int = 0

    def copy(self) -> Part:
        """Return a copy to change until a transaction has committed; what is fetched is shared."""
        return replace(
            self,
            held=self.held.copy(),
            ranges=self.ranges.copy(),
            buried=self.buried.copy(),
            rows=self.rows.copy(),
            letters=self.letters.copy(),
        )

    def open(self, row: Row, entry: Open) -> None:
        """Keep an offset open, and its row at hand."""
        self.rows[entry.seq] = row
        self.held.add(entry)

    def close(self, number: int) -> None:
        """Forget an offset that is finished."""
        self.held.close(number)
        self.rows.pop(number, None)
        self.letters.pop(number, None)

    def skip_to(self, low: int, lost: int) -> None:
        """Go on behind what was deleted before it was taken, of which so many were events."""
        held = self.held
        held.high = held.stored = held.claimed_after = number_of(self.partition, low - 1)
        self.taken += lost
        self.expired += lost
        self.changed = True

    def wants(self, offset: int) -> bool:
        """Return whether an offset is to be handled."""
        return self.allotted is None or self.allotted.has(self.partition, offset)

    def some(self, readings: Iterable[Reading], count: int) -> list[Reading]:
        """Return the first of some records, so many that at most ``count`` of them are to be handled."""
        if self.allotted is None:
            return list(islice(readings, count))
        found: list[Reading] = []
        for reading in islice(readings, PASS_RECORDS_MAX):
            count -= self.wants(reading.seen.offset)
            if count < 0:
                break
            found.append(reading)
        return found

    def wanted(self, readings: list[Reading]) -> int:
        """Return how many of some records are to be handled."""
        if self.allotted is None:
            return len(readings)
        return sum(self.wants(one.seen.offset) for one in readings)

    def may_end(self) -> bool:
        """Return whether nothing is left of a replay, though the position does not say so yet."""
        if self.allotted is None or self.held.unsettled or self.waiting.records:
            return False
        stop = self.allotted.stop(self.partition)
        return self.waiting.reached >= stop > offset_of(self.held.high) + 1

    def end(self) -> None:
        """Move the position to the end of what a replay was allotted."""
        assert self.allotted is not None, "live has no end"
        held, stop = self.held, self.allotted.stop(self.partition)
        held.high = held.stored = held.claimed_after = number_of(self.partition, stop - 1)
        self.changed = True

    def position(self, clock: Clock) -> Position:
        """Return what the ledger is to say.

        What was claimed and has no outcome yet is left out: a successor has to find it after the position.
        """
        held = self.held
        high, taken = (
            (held.claimed_after, self.taken - self.claimed) if held.unsettled else (held.high, self.taken)
        )
        now_ns, now_us = clock.boot_ns(), clock.wall_us()
        wait_us = {one.seq: max(0, one.due_ns - now_ns) // 1000 for one in held.open.values()}
        opened = [
            OpenEntry(
                offset_of(one.seq),
                one.state.value,
                one.attempt.number,
                one.attempt.crashes,
                one.attempt.generation,
                one.attempt.errors,
                now_us + wait_us[one.seq] if wait_us[one.seq] else 0,
                self.letters.get(one.seq, -1),
                wait_us[one.seq],
            )
            for one in sorted(held.open.values(), key=lambda one: one.seq)
            if one.seq <= high
        ]
        return Position(
            high=offset_of(high),
            start=self.start,
            topic_id=self.topic_id,
            open=opened,
            ranges=self.ranges,
            taken=taken,
            done=self.done,
            dead=self.dead,
            assigned=self.assigned,
            commands=self.commands,
            expired=self.expired,
            emitted=self.emitted,
        )

    def claim_under(self, version: str) -> None:
        """Have what is claimed next belong to a version; ranges of which nothing was finished are dropped.

        Such a one is left by a worker that claimed under another version and died.
        """
        after = offset_of(self.held.high)
        while self.ranges and self.ranges[-1].after >= after:
            self.ranges.pop()
        if not self.ranges or self.ranges[-1].version != version:
            self.ranges.append(Range(after, version))

    def version_of(self, offset: int) -> str:
        """Return the version in whose range an offset lies."""
        return next((one.version for one in reversed(self.ranges) if one.after < offset), "")


def part_of(partition: int, place: int, epoch: int, position: Position) -> Part:
    """Return a partition as the ledger says it is; its open offsets are still to be read."""
    high = number_of(partition, position.high) if position.high >= 0 else -1
    held = Held(place, epoch, high, 0, high, high)
    return Part(
        held,
        partition,
        position.start,
        position.topic_id,
        list(position.ranges),
        position.taken,
        position.done,
        position.dead,
        position.expired,
        assigned=position.assigned + 1,
        commands=position.commands,
        emitted=position.emitted,
    )
