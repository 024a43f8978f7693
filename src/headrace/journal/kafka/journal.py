"""The journal of the runtime on Kafka: topics, stamps, publishing, versions, subscriptions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import uuid4

from headrace import errors
from headrace.event.envelope import Head, Stamp
from headrace.journal.kafka.client import Admin, Cluster, Topic
from headrace.journal.kafka.consumer import KafkaConsumer
from headrace.journal.kafka.fetch import Fetcher
from headrace.journal.kafka.outcome import DEAD_SUFFIX
from headrace.journal.kafka.produce import Out, Publisher, Transactions
from headrace.journal.kafka.rows import PARTITION_BITS, Emitted, Reading, Rows, Stamps, written
from headrace.ports import (
    Chance,
    Clock,
    Faults,
    NewEvent,
    Offered,
    Receipt,
    Subscription,
    TopicInfo,
    VersionInfo,
    VersionOffer,
    Worker,
)
from headrace.ports.index import Claim, Index, Looked, Stretch

#: Topics of our own begin like this.
OWN = "headrace"


class KafkaJournal:
    """Events and ledgers on a cluster; first positions, claims and versions in an index."""

    def __init__(
        self, cluster: Cluster, index: Index, *, clock: Clock, chance: Chance, faults: Faults
    ) -> None:
        self.cluster, self.index = cluster, index
        self.clock, self.chance, self.faults = clock, chance, faults
        self.address = cluster.address
        self.stamps = Stamps()
        #: Names of topics by the number that stands in places.
        self.topic_names: dict[int, str] = {}
        self._topics: dict[str, tuple[TopicInfo, Topic]] = {}
        self._latest: set[str] = set()
        self._admin: Admin | None = None

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Connect; raises `JournalUnavailable` when no broker answers.  Harmless when that is done."""
        if self._admin is not None:
            return
        admin = Admin(self.cluster)
        await admin.check()
        await self.index.open()
        self._admin = admin
        self._publisher = Publisher(self.cluster)
        self._units = Transactions(self.cluster, f"{OWN}.publish")
        self._fetcher: Fetcher | None = None
        self._fetching = asyncio.Lock()

    async def close(self) -> None:
        """Finish what was accepted and disconnect; harmless when that is done."""
        if self._admin is None:
            return
        self._admin = None
        await asyncio.to_thread(self._publisher.close)
        self._units.close()
        if self._fetcher is not None:
            self._fetcher.close()
        await self.index.close()

    def _open(self) -> Admin:
        if self._admin is None:
            raise errors.JournalClosed
        return self._admin

    # --- topics and stamps --------------------------------------------------------------------

    async def topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        """Return a topic, creating it when it is new."""
        known = self._topics.get(name)
        if known is None:
            found = await self._open().make(name, partitions)
            number = len(self._topics) + 1
            known = self._topics[name] = TopicInfo(number, name, found.partitions), found
            self.topic_names[number] = name
        if partitions is not None and known[0].partitions != partitions:
            raise errors.TopicMismatch(topic=name, found=known[0].partitions, asked=partitions)
        return known[0]

    def found(self, topic: TopicInfo) -> Topic:
        """Return a topic as the cluster has it."""
        return self._topics[topic.name][1]

    def group_of(self, handler: str) -> str:
        """Return the consumer group of a subscription."""
        return f"{OWN}.{handler}"

    async def ledger_of(self, handler: str, topic: TopicInfo) -> str:
        """Return the ledger topic of a subscription, and see that it and the dead letters' topic exist."""
        name = f"{OWN}.{handler}.ledger"
        admin = self._open()
        await admin.make(name, topic.partitions, **{"cleanup.policy": "compact"})
        await admin.make(topic.name + DEAD_SUFFIX, topic.partitions)
        return name

    async def rows_of(self, topic: TopicInfo) -> Rows:
        """Return what reads the records of a topic."""
        info, found = self._topics[topic.name]
        default = Stamp(topic.name, f"kafka:{topic.name}", 1)
        return Rows(found, info.id << PARTITION_BITS, self.stamps, default)

    async def intern(self, stamps: Sequence[Stamp]) -> list[int]:
        """Return the numbers of stamps, in order."""
        return [self.stamps.number(stamp) for stamp in stamps]

    async def stamp(self, number: int) -> Stamp | None:
        """Return the stamp of a number, or ``None`` when nobody interned it."""
        return self.stamps.stamp(number)

    def place(self, topic: TopicInfo, partition: int) -> int:
        """Return topic and partition as one number."""
        return topic.id << PARTITION_BITS | partition

    @staticmethod
    def decode_head(head: object, /) -> Head:
        """Return the envelope of a row; raises `ValueError` for one that could not be read."""
        if isinstance(head, Head):
            return head
        raise ValueError(getattr(head, "problem", "it is no envelope"))

    @staticmethod
    def emitted(
        place: int, event_id: bytes, chain: object, depth: int, head: Head, body: bytes, /
    ) -> Emitted:
        """Return an emitted event in the form that `Outcome.emitted` holds."""
        del chain
        return place, event_id, depth, head, body

    # --- events -------------------------------------------------------------------------------

    async def publish(self, unit: Sequence[NewEvent]) -> list[Receipt]:
        """Write events, all or none; returns when all replicas that have to have them have them."""
        self._open()
        records = [self._record(event) for event in unit]
        if len(records) == 1:
            await self._publisher.publish(records[0])
        elif records:
            await self._units.commit(records)
        return [Receipt(event.event_id, duplicate=False) for event in unit]

    def _record(self, event: NewEvent) -> Out:
        new = event.place, event.event_id, 0, event.head, event.body
        return written(new, self.topic_names, self.stamps)

    async def look(
        self, handler: str, topic: TopicInfo, stretches: Sequence[Stretch], claims: Sequence[Claim]
    ) -> Looked:
        """Ask the index; what it does not have yet, of before, is read and indexed first."""
        while True:
            try:
                return await self.index.look(handler, stretches, claims)
            except errors.IndexGap:
                for stretch in stretches:
                    await self._fill(handler, topic, stretch)

    async def _fill(self, handler: str, topic: TopicInfo, stretch: Stretch) -> None:
        """Index the records of a partition from where the index ends to where a stretch begins."""
        rows, partition = await self.rows_of(topic), stretch.partition
        start = await self.index.indexed(stretch.topic_id, partition)
        if start >= stretch.after:
            return
        async with self._fetching:
            found = await asyncio.to_thread(self._read, rows, topic.name, partition, start, stretch.after)
        seen = [reading.seen for reading in found]
        await self.index.look(handler, [Stretch(stretch.topic_id, partition, start, stretch.after, seen)])

    def _read(self, rows: Rows, topic: str, partition: int, start: int, end: int) -> list[Reading]:
        self._fetcher = self._fetcher or Fetcher(self.cluster, OWN)
        return [rows.read(message) for message in self._fetcher.read(topic, partition, start, end)]

    async def read_one(self, rows: Rows, topic: TopicInfo, partition: int, offset: int) -> Reading | None:
        """Return the record at an offset, or ``None`` when it is gone."""
        async with self._fetching:
            found = await asyncio.to_thread(self._read, rows, topic.name, partition, offset, offset + 1)
        return found[0] if found else None

    # --- versions and subscriptions -----------------------------------------------------------

    async def offer(self, offer: VersionOffer) -> Offered:
        """Make a version known; one never seen before becomes the active one."""
        self._open()
        return await self.index.offer(offer)

    async def activate(self, handler: str, version: str) -> VersionInfo:
        """Make a known version the active one."""
        self._open()
        return await self.index.activate(handler, version)

    async def subscribe(self, handler: str, topic: str, *, latest: bool = False) -> Subscription:
        """Return the live subscription of a handler; a new one starts at the earliest retained event."""
        info = await self.topic(topic)
        if latest:
            self._latest.add(handler)
        return Subscription(info.id, handler, info)

    async def join(self, lease_ms: int) -> Worker:
        """Make this process known as a worker; it is the groups that know whether it lives."""
        self._open()
        return KafkaWorker(uuid4().hex, lease_ms)

    def consumer(self, worker: Worker, subscription: Subscription) -> KafkaConsumer:
        """Return this worker's share of a subscription."""
        assert isinstance(worker, KafkaWorker)
        latest = subscription.handler in self._latest
        return KafkaConsumer(self, worker, subscription, latest=latest)


class KafkaWorker:
    """A process that works; its members of the groups are kept alive by the library's own threads."""

    id = 0

    def __init__(self, name: str, lease_ms: int) -> None:
        self.name = name
        #: So long a silent member keeps its partitions.
        self.lease_ms = lease_ms

    def renew(self) -> bool:
        """Do nothing: heartbeats are the library's."""
        return True

    async def leave(self) -> None:
        """Do nothing: consumers leave their groups when they are released."""
