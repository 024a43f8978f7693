"""The index of a journal on Kafka: made again from the topics, and compared with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from headrace import errors
from headrace.journal.kafka.client import Cluster, Topic
from headrace.journal.kafka.rows import Reading
from headrace.journal.kafka.spans import At, Bounds, Span
from headrace.journal.kafka.survey import Catalogue, Survey, Surveying
from headrace.ports import Chance, Clock, Faults
from headrace.ports.index import Bound, First, Index
from headrace.ports.look import Violation
from headrace.ports.upkeep import Checked, Progressed, Rebuilt

#: Of one kind; an index that was mixed up may break a rule for every id.
VIOLATIONS_MAX = 20
#: Ids of one page.
PAGE_IDS = 5_000


class KafkaUpkeep(Surveying):
    """An index beside a journal on a cluster, opened to be made again or checked."""

    def __init__(
        self, cluster: Cluster, index: Index, *, clock: Clock, chance: Chance, faults: Faults
    ) -> None:
        super().__init__(cluster, index, clock=clock, chance=chance, faults=faults)
        self.address = index.address

    async def open(self, *, make: bool) -> None:
        """Connect; an index that is not there is made, or refused."""
        await self._connect(make=make)

    async def _catalogue(self, topics: Sequence[str] = ()) -> Catalogue:
        """Return the topics: those known, those of the ledgers, and those that are named."""
        survey = self._survey
        await survey.known()  # versions, too, follow from their topic
        catalogue = await survey.catalogue()
        await survey.ledgers(catalogue)
        by_name = {one.name: one for one in catalogue.everything.values()}
        for name in topics:
            if name not in by_name:
                there = ", ".join(sorted(catalogue.topics)) or "none that is known"
                raise errors.CommandInvalid(problem=f"there is no topic {name}", hint=f"there is {there}")
            catalogue.topics[name] = by_name[name]
            await self._log.index.view.know(by_name[name].topic_id, name)
        return catalogue

    async def rebuild(self, topics: Sequence[str], progressed: Progressed) -> Rebuilt:
        """Drop the first positions and make them again; workers that need them meanwhile make them, too.

        Ids below the beginning of a log are kept: nothing can make them again.
        """
        started_ns = self._log.clock.boot_ns()
        catalogue = await self._catalogue(topics)
        bounds = await self._survey.spans.bounds(catalogue.partitions())
        lows = {(catalogue.topics[name].topic_id, at): one.low for (name, at), one in bounds.items()}
        await self._log.index.view.forget(lows)
        ends = await self._survey.fill(catalogue.topics.values(), progressed)
        events = 0
        for topic in catalogue.topics.values():
            asked = [Bound(at, 0, ends[topic.name, at].end) for at in range(topic.partitions)]
            events += sum(await self._log.index.view.counts(topic.topic_id, asked))
        seconds = (self._log.clock.boot_ns() - started_ns) / 1e9
        return Rebuilt(sorted(catalogue.topics), len(bounds), events, round(seconds, 3))

    async def verify(self, progressed: Progressed) -> Checked:
        """Compare every first position with the record there; whatever is indexed meanwhile is left out."""
        claims = await self._log.index.view.claims()
        catalogue = await self._catalogue()
        found: list[Violation] = []
        indexed = await self._log.index.view.indexed()
        ledgers = {one.handler: one for one in await self._survey.ledgers(catalogue)}
        for one in claims:
            ledger = ledgers.get(one.subscription)
            upto = indexed.get((ledger.topic.topic_id, one.partition), 0) if ledger else one.upto
            if one.upto > upto:
                where = f"{one.subscription}, partition {one.partition}"
                found.append(
                    Violation("claim_beyond", f"{where}: claimed up to {one.upto}, indexed up to {upto}")
                )
        records = done = 0
        bounds = await self._survey.spans.bounds(catalogue.partitions())
        total = sum(one.end - one.low for one in bounds.values())
        for name, topic in sorted(catalogue.topics.items()):
            mine = {at: one for at, one in bounds.items() if at[0] == name}
            check = Check(self._survey, topic, mine, indexed)
            found += await check.run(_behind(progressed, done, total))
            done += sum(one.end - one.low for one in mine.values())
            records += check.records
        return Checked(sorted(catalogue.topics), records, found)


def _behind(progressed: Progressed, before: int, total: int) -> Progressed:
    """Return who is told of one topic of several."""
    return lambda done, _: progressed(before + done, total)


@dataclass(slots=True)
class Marks:
    """One bit for each offset of a partition."""

    low: int
    size: int
    bits: bytearray = field(init=False)
    count: int = 0

    def __post_init__(self) -> None:
        """Begin with none set."""
        self.bits = bytearray(self.size // 8 + 1)

    def add(self, offset: int) -> bool:
        """Mark an offset; return whether it was not marked before."""
        byte, bit = divmod(offset - self.low, 8)
        new = not self.bits[byte] >> bit & 1
        self.bits[byte] |= 1 << bit
        self.count += new
        return new

    def has(self, offset: int) -> bool:
        """Return whether an offset is marked."""
        byte, bit = divmod(offset - self.low, 8)
        return bool(self.bits[byte] >> bit & 1)


class Check:
    """Compares the index of one topic with its records: two bits of memory for each offset."""

    def __init__(
        self, survey: Survey, topic: Topic, bounds: dict[At, Bounds], indexed: dict[tuple[bytes, int], int]
    ) -> None:
        self._survey, self._topic, self._bounds = survey, topic, bounds
        self._upto = {at: indexed.get((topic.topic_id, at), 0) for _, at in bounds}
        self._marks: dict[int, Marks] = {}
        self._conflicts: dict[int, int] = {}
        self._found: list[Violation] = []
        self.records = 0

    async def run(self, progressed: Progressed) -> list[Violation]:
        """Return what is not as it should be."""
        spans: list[Span] = []
        for (name, at), (low, end) in self._bounds.items():
            upto = self._upto[at]
            self._marks[at] = Marks(low, max(0, min(upto, end) - low))
            self._conflicts[at] = 0
            if upto > end:
                self._tell("beyond", at, f"indexed up to {upto}, the log ends at {end}")
            spans.append(Span(name, at, low, min(upto, end)))
        rows = self._survey.log.reading(self._topic)
        async with self._survey.spans.reading(spans) as bursts:
            async for burst in bursts:
                parts: dict[int, list[Reading]] = {}
                for message in burst:
                    parts.setdefault(message.partition() or 0, []).append(rows.read(message))
                for at, readings in parts.items():
                    await self._records(at, readings)
                self.records += len(burst)
                progressed(self.records, self.records)
        for at in self._marks:
            await self._rows(at)
        return self._found

    def _tell(self, rule: str, partition: int, text: str) -> None:
        if sum(one.rule == rule for one in self._found) < VIOLATIONS_MAX:
            self._found.append(Violation(rule, f"{self._topic.name}/{partition}: {text}"))

    async def _records(self, at: int, readings: Sequence[Reading]) -> None:
        """Look each record up; what the index has of it is its first position, or an earlier one."""
        ids = [one.seen.event_id for one in readings]
        firsts = await self._survey.log.index.view.firsts(self._topic.topic_id, at, ids)
        for one in readings:
            for rule, text in self._record(at, one, firsts.get(one.seen.event_id)):
                self._tell(rule, at, f"offset {one.seen.offset}, event {one.seen.event_id.hex()}: {text}")

    def _record(self, at: int, one: Reading, first: First | None) -> Iterator[tuple[str, str]]:
        marks, seen = self._marks[at], one.seen
        if first is None:
            yield "missing", "the index does not have it"
        elif first.offset > seen.offset:
            yield "late", f"the index has it first at {first.offset}"
        elif first.offset == seen.offset:
            marks.add(seen.offset)
            if first.content != seen.content:
                yield "content", "the index has it with other content"
        else:
            self._conflicts[at] += first.content != seen.content
            if first.offset >= marks.low and not marks.has(first.offset):
                yield "early", f"the index has it first at {first.offset}, where it is not"

    async def _rows(self, at: int) -> None:
        """Go through what the index has: each id is that of one record, and none lies ahead."""
        view, topic_id, marks = self._survey.log.index.view, self._topic.topic_id, self._marks[at]
        seen, after = Marks(marks.low, marks.size), bytes(16)
        ahead: list[tuple[bytes, int]] = []
        while page := await view.ids(topic_id, at, after, PAGE_IDS):
            after = page[-1][0]
            for event_id, offset in page:
                if offset >= marks.low + marks.size:
                    ahead.append((event_id, offset))
                elif offset >= marks.low and not (marks.has(offset) and seen.add(offset)):
                    self._tell("extra", at, f"the index has {event_id.hex()} at offset {offset}")
        upto = (await view.indexed()).get((topic_id, at), 0)
        for event_id, offset in ahead:
            if offset >= upto:
                self._tell("ahead", at, f"indexed up to {upto}, but {event_id.hex()} at {offset}")
        bound = Bound(at, marks.low, marks.low + marks.size)
        (counted,) = await view.counts(topic_id, [bound])
        if counted != seen.count + self._conflicts[at]:
            told = f"{counted} events are indexed, {seen.count} ids and {self._conflicts[at]} conflicts"
            self._tell("conflicts", at, told)
