"""What a Kafka journal and its consumers have in common: the cluster, the index, topics and reading."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace import errors
from headrace.event.envelope import Stamp
from headrace.journal.kafka.client import Admin, Cluster, Topic
from headrace.journal.kafka.fetch import Fetcher
from headrace.journal.kafka.outcome import DEAD_SUFFIX
from headrace.journal.kafka.rows import PARTITION_BITS, Reading, Rows, Stamps
from headrace.ports import Chance, Clock, Faults, TopicInfo
from headrace.ports.index import Claim, Index, Looked, Stretch

#: Topics and groups of our own begin like this.
OWN = "headrace"
#: Records that one look of a catching up index takes: a statement of the database has its bound in time.
FILL_RECORDS_MAX = 5_000


def ledger_name(handler: str) -> str:
    """Return the ledger topic of a handler's subscription."""
    return f"{OWN}.{handler}.ledger"


class Log:
    """A cluster with an index beside it."""

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
        self._admin: Admin | None = None
        self._fetcher: Fetcher | None = None
        self._fetching = asyncio.Lock()

    async def open(self) -> None:
        """Connect; raises `JournalUnavailable` when no broker answers."""
        admin = Admin(self.cluster, self.clock)
        await admin.check()
        await self.index.open()
        self._admin = admin

    async def close(self) -> None:
        """Disconnect."""
        self._admin = None
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None
        await self.index.close()

    def opened(self) -> Admin:
        """Return the client for topics; raises `JournalClosed`."""
        if self._admin is None:
            raise errors.JournalClosed
        return self._admin

    async def topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        """Return a topic, creating it when it is new."""
        known = self._topics.get(name)
        if known is None:
            found = await self.opened().make(name, partitions)
            known = self._topics.get(name)  # somebody else may have asked meanwhile
            if known is None:
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
        name = ledger_name(handler)
        admin = self.opened()
        await admin.make(name, topic.partitions, **{"cleanup.policy": "compact"})
        await admin.make(topic.name + DEAD_SUFFIX, topic.partitions)
        return name

    def rows_of(self, topic: TopicInfo) -> Rows:
        """Return what reads the records of a topic."""
        info, found = self._topics[topic.name]
        default = Stamp("", f"kafka:{topic.name}", 1)
        return Rows(found, info.id << PARTITION_BITS, self.stamps, default)

    def place(self, topic: TopicInfo, partition: int) -> int:
        """Return topic and partition as one number."""
        return topic.id << PARTITION_BITS | partition

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
        rows, partition = self.rows_of(topic), stretch.partition
        start = await self.index.indexed(stretch.topic_id, partition)
        while start < stretch.after:
            end = min(start + FILL_RECORDS_MAX, stretch.after)
            async with self._fetching:
                found = await asyncio.to_thread(self._read, rows, topic.name, partition, start, end)
            seen = [reading.seen for reading in found]
            await self.index.look(handler, [Stretch(stretch.topic_id, partition, start, end, seen)])
            start = end

    def _read(self, rows: Rows, topic: str, partition: int, start: int, end: int) -> list[Reading]:
        self._fetcher = self._fetcher or Fetcher(self.cluster, OWN, self.clock)
        return [rows.read(message) for message in self._fetcher.read(topic, partition, start, end)]

    async def read_one(self, rows: Rows, topic: TopicInfo, partition: int, offset: int) -> Reading | None:
        """Return the record at an offset, or ``None`` when it is gone."""
        async with self._fetching:
            found = await asyncio.to_thread(self._read, rows, topic.name, partition, offset, offset + 1)
        return found[0] if found else None
