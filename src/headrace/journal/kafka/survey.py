"""What there is of a journal on Kafka: its topics, and how far each subscription has come by its ledger."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from confluent_kafka import Message

from headrace import errors
from headrace.codec.ledger import (
    EXCEPTION,
    LEDGER_PARTITION,
    POSITION,
    Key,
    Position,
    read_key,
    read_position,
)
from headrace.journal.kafka.client import Cluster, Topic
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.rows import Reading
from headrace.journal.kafka.spans import At, Bounds, Span, Spans
from headrace.journal.kafka.topics import OWN, split_name
from headrace.journal.kafka.versions import VERSIONS, Known
from headrace.ports import Chance, Clock, Faults
from headrace.ports.index import Claim, Index, Stretch
from headrace.ports.upkeep import Progressed

_LEDGER = re.compile(rf"{OWN}\.(.+)\.(ledger|replays)")
#: The last records about partitions are looked for in so many offsets, then in eight times as many.
LAST_OFFSETS = 1_000
#: Throughput is that of the last seconds, as the times of ledger records tell.
RATE_S = 10.0
#: An index that is set back again and again while it is filled: after so many times somebody should know.
FILLS_MAX = 20


class Catalogue(NamedTuple):
    """The topics of a journal."""

    #: Those that hold events, by name.
    topics: dict[str, Topic]
    #: The ledger topics of live subscriptions, by handler.
    ledgers: dict[str, Topic]
    #: All topics that this user may see, by the cluster's id.
    everything: dict[bytes, Topic]
    #: Handlers whose history was replayed, or is.
    replayed: list[str]
    #: The ledger topics of replays, by what a replay is called where a handler has its name.
    replays: dict[str, Topic]

    def partitions(self) -> list[At]:
        """Return the partitions of the topics that hold events."""
        return [(one.name, partition) for one in self.topics.values() for partition in range(one.partitions)]


@dataclass(slots=True)
class Ledger:
    """One subscription, as its ledger says."""

    handler: str
    topic: Topic
    #: One for each partition, also where nothing was written down yet.
    positions: dict[int, Position] = field(default_factory=dict[int, Position])
    #: By partition and offset: which version has finished it, where that is not its range's.
    exceptions: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    events_per_s: float = 0.0

    def claimed(self, claims: Iterable[Claim]) -> dict[int, int]:
        """Return the first offset, by partition, beyond what is in hand and has no outcome yet."""
        mine = {one.partition: one.upto for one in claims if one.subscription == self.handler}
        return {
            partition: max(mine.get(partition, 0), position.high + 1)
            for partition, position in self.positions.items()
        }


class Entry(NamedTuple):
    """A record of a ledger."""

    key: Key
    value: bytes
    at_ms: int


class Surveying:
    """Opens a cluster with its index, to be surveyed."""

    def __init__(
        self, cluster: Cluster, index: Index, *, clock: Clock, chance: Chance, faults: Faults
    ) -> None:
        self._log = Log(cluster, index, clock=clock, chance=chance, faults=faults)
        self._opened: Survey | None = None

    async def _connect(self, *, make: bool) -> None:
        await self._log.open(make=make)
        self._opened = Survey(self._log)

    async def close(self) -> None:
        """Disconnect."""
        survey, self._opened = self._opened, None
        if survey is not None:
            await survey.close()
            await self._log.close()

    @property
    def _survey(self) -> Survey:
        if self._opened is None:
            raise errors.JournalClosed
        return self._opened


class Survey:
    """Looks at topics and ledgers, and brings the index up to the present."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.spans = Spans(log.cluster, OWN, log.clock)

    async def close(self) -> None:
        """Disconnect."""
        await self.spans.close()

    async def known(self) -> Known:
        """Return the versions; a journal that no worker has ever served has none."""
        if await self.log.opened().find(VERSIONS) is None:
            return Known()
        return await self.log.versions.catch_up()

    async def catalogue(self) -> Catalogue:
        """Return the topics: those that apps have used, and those that subscriptions are about."""
        everything = await self.log.opened().topics()
        used = await self.log.index.view.topics()
        own = [(found, one) for one in everything if (found := _LEDGER.fullmatch(one.name))]
        ledgers = {found[1]: one for found, one in own if found[2] == "ledger"}
        replays = {name: one for name, one in ledgers.items() if split_name(name)[1]}
        live = {name: one for name, one in ledgers.items() if name not in replays}
        topics = {one.name: one for one in everything if one.topic_id in used}
        replayed = sorted(found[1] for found, _ in own if found[2] == "replays")
        return Catalogue(topics, live, {one.topic_id: one for one in everything}, replayed, replays)

    # --- ledgers ------------------------------------------------------------------------------

    async def ledgers(self, catalogue: Catalogue, *, whole: bool = False) -> list[Ledger]:
        """Return the subscriptions, by handler; with the exceptions to their version ranges if wanted."""
        records = await (self._whole if whole else self._lasts)(catalogue)
        found: list[Ledger] = []
        for handler in sorted(records):
            topic = await self._topic_of(catalogue, handler, records[handler])
            if topic is not None:
                found.append(await self._ledger(handler, topic, records[handler]))
        return found

    async def lost(self, catalogue: Catalogue) -> list[str]:
        """Return the handlers whose topic the cluster does not have any more."""
        records = await self._lasts(catalogue)
        ids = {handler: _topic_id(entries) for handler, entries in records.items()}
        return sorted(
            handler for handler, topic_id in ids.items() if topic_id and topic_id not in catalogue.everything
        )

    async def _topic_of(self, catalogue: Catalogue, handler: str, entries: list[Entry]) -> Topic | None:
        """Return what a subscription is about: by its ledger, else by what its members have."""
        found = catalogue.everything.get(_topic_id(entries))
        if found is not None:
            if found.name not in catalogue.topics:  # the index is new, and nobody has told it yet
                catalogue.topics[found.name] = found
                await self.log.index.view.know(found.topic_id, found.name)
            return found
        group = self.log.group_of(handler)
        members = (await self.log.opened().members([group]))[group]
        names = {name for member in members for name, _ in member.partitions} & catalogue.topics.keys()
        return catalogue.topics[min(names)] if names else None

    async def _ledger(self, handler: str, topic: Topic, entries: list[Entry]) -> Ledger:
        ledger = Ledger(handler, topic)
        told: dict[int, list[tuple[int, Position]]] = {}
        for key, value, at_ms in entries:
            if key.kind == POSITION:
                position = read_position(value)
                if position.topic_id == topic.topic_id:
                    told.setdefault(key.partition, []).append((at_ms, position))
            elif key.kind == EXCEPTION and key.fits(topic.topic_id):
                ledger.exceptions[key.partition, key.offset] = value.decode(errors="replace")
        now_ms = self.log.clock.wall_us() // 1000
        ledger.events_per_s = sum(_rate(records, now_ms) for records in told.values())
        silent = [(topic.name, partition) for partition in range(topic.partitions) if partition not in told]
        begins = await self.spans.bounds(silent)
        for partition in range(topic.partitions):
            if partition in told:
                ledger.positions[partition] = told[partition][-1][1]
            else:
                low = begins[topic.name, partition].low
                ledger.positions[partition] = Position(low - 1, low, topic.topic_id)
        return ledger

    async def _whole(self, catalogue: Catalogue) -> dict[str, list[Entry]]:
        """Return the last record of each key, by handler: what compaction would leave."""
        found: dict[str, dict[Key, Entry]] = {handler: {} for handler in catalogue.ledgers}
        handlers = {topic.name: handler for handler, topic in catalogue.ledgers.items()}
        where = await self.spans.bounds((name, LEDGER_PARTITION) for name in handlers)
        async with self.spans.reading([Span(*at, *bounds) for at, bounds in where.items()]) as bursts:
            async for burst in bursts:
                for message in burst:
                    entry = _entry(message)
                    if entry is not None:
                        found[handlers[message.topic() or ""]][entry.key] = entry
        return {handler: list(entries.values()) for handler, entries in found.items()}

    async def _lasts(self, catalogue: Catalogue) -> dict[str, list[Entry]]:
        """Return the last records of ledgers, by handler, the positions of all partitions among them."""
        handlers = {topic.name: handler for handler, topic in catalogue.ledgers.items()}
        where = await self.spans.bounds((name, LEDGER_PARTITION) for name in handlers)
        found: dict[str, list[Entry]] = {handler: [] for handler in catalogue.ledgers}
        offsets = LAST_OFFSETS
        while where:
            for at in where:
                found[handlers[at[0]]].clear()
            for message in await self.spans.last(where, offsets):
                entry = _entry(message)
                if entry is not None:
                    found[handlers[message.topic() or ""]].append(entry)
            where = {
                at: one
                for at, one in where.items()
                if one.end - offsets > one.low and not _complete(catalogue, found[handlers[at[0]]])
            }
            offsets *= 8
        return found

    # --- the index ----------------------------------------------------------------------------

    async def fill(
        self, topics: Iterable[Topic], progressed: Progressed = lambda _done, _total: None
    ) -> dict[At, Bounds]:
        """Index topics up to the end that they have now, and return their bounds."""
        wanted = {one.name: one for one in topics}
        where = [(one.name, at) for one in wanted.values() for at in range(one.partitions)]
        bounds = await self.spans.bounds(where)
        for _ in range(FILLS_MAX):
            try:
                await self._fill(wanted, bounds, progressed)
            except errors.IndexGap:  # set back, or forgotten to be made again, meanwhile
                continue
            return bounds
        problem = "The index is set back again and again while it is filled."
        raise errors.JournalUnavailable(problem, path=self.log.index.address)

    async def _fill(
        self, topics: Mapping[str, Topic], bounds: Mapping[At, Bounds], progressed: Progressed
    ) -> None:
        indexed = await self.log.index.view.indexed()
        reached = {at: indexed.get((topics[at[0]].topic_id, at[1]), 0) for at in bounds}
        spans = [Span(*at, max(reached[at], one.low), one.end) for at, one in bounds.items()]
        total = sum(one.end - one.start for one in spans)
        rows = {name: self.log.reading(topic) for name, topic in topics.items()}
        async with self.spans.reading(spans) as bursts:
            async for burst in bursts:
                found: dict[At, list[Reading]] = {}
                for message in burst:
                    at = (message.topic() or "", message.partition() or 0)
                    found.setdefault(at, []).append(rows[at[0]].read(message))
                ends = {at: readings[-1].seen.offset + 1 for at, readings in found.items()}
                await self._index(topics, reached, ends, found)
                progressed(total - sum(one.end - reached[one[:2]] for one in spans), total)
        rest = {at: one.end for at, one in bounds.items() if reached[at] < one.end}
        await self._index(topics, reached, rest, {})

    async def _index(
        self,
        topics: Mapping[str, Topic],
        reached: dict[At, int],
        ends: Mapping[At, int],
        found: Mapping[At, list[Reading]],
    ) -> None:
        """Index what was read, each partition up to an end, in one look for each topic."""
        for name in sorted({name for name, _ in ends}):
            topic_id = topics[name].topic_id
            seen = {at: [one.seen for one in found.get(at, ())] for at in ends if at[0] == name}
            stretches = [Stretch(topic_id, at[1], reached[at], ends[at], seen[at]) for at in seen]
            await self.log.index.look("", stretches)
        reached.update(ends)


def _rate(records: list[tuple[int, Position]], now_ms: int) -> float:
    """Return the events that a partition has closed a second, of late."""
    since_ms = now_ms - RATE_S * 1000
    before = [one for one in records if one[0] < since_ms]
    (first_ms, first), (_, last) = (before or records)[-1 if before else 0], records[-1]
    closed = (last.done + last.dead) - (first.done + first.dead)
    return closed / max(1.0, (now_ms - max(first_ms, since_ms)) / 1000) if records[-1][0] >= since_ms else 0.0


def _entry(message: Message) -> Entry | None:
    """Return a record of a ledger; ``None`` for one that a newer Headrace has written."""
    key = read_key(message.key())
    return None if key is None else Entry(key, message.value() or b"", message.timestamp()[1])


def _topic_id(entries: Iterable[Entry]) -> bytes:
    """Return the cluster's id of the topic that a ledger is about, as its last position says."""
    found = b""
    for entry in entries:
        if entry.key.kind == POSITION:
            found = read_position(entry.value).topic_id
    return found


def _complete(catalogue: Catalogue, entries: list[Entry]) -> bool:
    """Is there a position of each partition of the topic?"""
    topic = catalogue.everything.get(_topic_id(entries))
    known = {entry.key.partition for entry in entries if entry.key.kind == POSITION}
    return topic is not None and len(known) >= topic.partitions
