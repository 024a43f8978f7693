"""What a Kafka journal and its consumers have in common: the cluster, the index, topics and reading."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from confluent_kafka import Message

from headrace import errors
from headrace.codec.ledger import LEDGER_PARTITION
from headrace.event.envelope import Stamp
from headrace.journal.kafka.client import Admin, Cluster, Topic
from headrace.journal.kafka.fetch import Fetcher
from headrace.journal.kafka.poll import Own
from headrace.journal.kafka.produce import Publisher
from headrace.journal.kafka.rows import PARTITION_BITS, Reading, Rows, Stamps
from headrace.journal.kafka.topics import DEAD_SUFFIX, OWN
from headrace.journal.kafka.versions import Versions
from headrace.ports import Chance, Clock, Faults, TopicInfo
from headrace.ports.index import Active, Claim, Index, Looked, Stretch

#: Records that one look of a catching up index takes: a statement of the database has its bound in time.
FILL_RECORDS_MAX = 5_000
#: Of a ledger only the last record of each key counts: small segments, cleaned early, keep it quick to read.
COMPACTED = {
    "cleanup.policy": "compact",
    "segment.bytes": str(8 << 20),
    "segment.ms": str(10 * 60 * 1000),
    "min.cleanable.dirty.ratio": "0.1",
}
#: Dead letters and decisions about them wait for people: nothing of them goes by itself.
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


def own_topics(handler: str) -> tuple[str, str]:
    """Return the names of a subscription's ledger, and of the commands about its dead letters."""
    return f"{OWN}.{handler}.ledger", f"{OWN}.{handler}.work"


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
        #: What records of topics of dead letters may weigh.
        self._bytes_max: dict[str, int] = {}
        self._admin: Admin | None = None
        self._fetcher: Fetcher | None = None
        self._fetching = asyncio.Lock()
        self._publisher: Publisher | None = None
        self.versions = Versions(self)

    async def open(self, *, make: bool = True) -> None:
        """Connect; raises `JournalUnavailable` when no broker answers, `IndexMissing`, `IndexForeign`."""
        admin = Admin(self.cluster, self.clock)
        await admin.check()
        await self.index.open(make=make)
        try:
            await self.index.view.belong(admin.cluster_id)
        except BaseException:
            await self.index.close()
            raise
        self._admin, self._publisher = admin, Publisher(self.cluster)

    async def close(self) -> None:
        """Disconnect."""
        self._admin = None
        publisher, self._publisher = self._publisher, None
        if publisher is not None:
            await asyncio.to_thread(publisher.close)
        if self._fetcher is not None:
            self._fetcher.close()
            self._fetcher = None
        await self.index.close()

    def opened(self) -> Admin:
        """Return the client for topics; raises `JournalClosed`."""
        if self._admin is None:
            raise errors.JournalClosed
        return self._admin

    @property
    def publisher(self) -> Publisher:
        """Return the producer of single records; raises `JournalClosed`."""
        if self._publisher is None:
            raise errors.JournalClosed
        return self._publisher

    async def topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        """Return a topic, creating it when it is new."""
        known = self._topics.get(name)
        if known is None:
            found = await self.opened().make(name, partitions)
            await self.index.view.know(found.topic_id, name)
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

    async def renew(self, topic: TopicInfo) -> Topic:
        """Return a topic as the cluster has it now: one that was deleted and made again is another.

        Raises `TopicMismatch` for one that has come back with another number of partitions.
        """
        found, known = await self.opened().find(topic.name), self.found(topic)
        if found is None or found.topic_id == known.topic_id:
            return known  # of one that is gone the old is all there is
        if found.partitions != topic.partitions:
            raise errors.TopicMismatch(topic=topic.name, found=found.partitions, asked=topic.partitions)
        await self.index.view.know(found.topic_id, topic.name)
        self._topics[topic.name] = topic, found
        return found

    def group_of(self, handler: str) -> str:
        """Return the consumer group of a subscription."""
        return f"{OWN}.{handler}"

    async def own_of(self, handler: str, topic: TopicInfo) -> Own:
        """Return the topics of a subscription, and see that they and the dead letters' topic exist."""
        own, admin = Own(*own_topics(handler)), self.opened()
        await admin.make(own.ledger, LEDGER_PARTITION + 1, **COMPACTED)
        await admin.make(own.commands, topic.partitions, **_KEPT)
        letters = await admin.make(topic.name + DEAD_SUFFIX, topic.partitions, **_KEPT)
        self._bytes_max[letters.name] = letters.bytes_max
        return own

    async def owned(self, handler: str, topic: str) -> set[int]:
        """Return the partitions of a topic that workers of a handler have."""
        group = self.group_of(handler)
        found = await self.opened().members([group])
        return {at for member in found[group] for name, at in member.partitions if name == topic}

    def bytes_max(self, topic: str) -> int:
        """Return what the largest record of a topic may weigh."""
        known = self._bytes_max.get(topic)
        return self._topics[topic][1].bytes_max if known is None else known

    def rows_of(self, topic: TopicInfo) -> Rows:
        """Return what reads the records of a topic."""
        info, found = self._topics[topic.name]
        return self.reading(found, info.id << PARTITION_BITS)

    def reading(self, topic: Topic, place: int = 0) -> Rows:
        """Return what reads the records of a topic as the cluster has it."""
        return Rows(topic, place, self.stamps, Stamp("", f"kafka:{topic.name}", 1))

    def place(self, topic: TopicInfo, partition: int) -> int:
        """Return topic and partition as one number."""
        return topic.id << PARTITION_BITS | partition

    async def look(
        self, handler: str, topic: TopicInfo, stretches: Sequence[Stretch], claims: Sequence[Claim]
    ) -> Looked:
        """Ask the index; what it does not have yet, of before, is read and indexed first."""
        while True:
            try:
                looked = await self.index.look(handler, stretches, claims)
            except errors.IndexGap:
                for stretch in stretches:
                    await self._fill(handler, topic, stretch)
                continue
            if not claims or not self.versions.behind(looked.upto):
                return looked
            await self.versions.catch_up()

    async def answers(self, handler: str) -> None:
        """Ask the brokers and the index; raises the `JournalError` family while one of them is away."""
        await self.opened().check()
        await self.active(handler)

    async def active(self, handler: str) -> int | None:
        """Return the number of a handler's active version, as an index that is not behind has it."""
        while True:
            found: Active = await self.index.active(handler)
            if not self.versions.behind(found.upto):
                return found.version
            await self.versions.catch_up()

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
        return [rows.read(message) for message in self._fetch().read(topic, partition, start, end)]

    async def read_on(self, topic: str, partition: int, start: int) -> list[Message]:
        """Return the records from an offset to what is the end now."""

        def read() -> list[Message]:
            fetcher = self._fetch()
            _, end = fetcher.bounds(topic, partition)
            return list(fetcher.read(topic, partition, start, end)) if start < end else []

        async with self._fetching:
            return await asyncio.to_thread(read)

    def _fetch(self) -> Fetcher:
        self._fetcher = self._fetcher or Fetcher(self.cluster, OWN, self.clock)
        return self._fetcher

    async def read_one(self, topic: str, partition: int, offset: int) -> Message | None:
        """Return the record at an offset, or ``None`` when it is gone."""

        def read() -> list[Message]:
            return list(self._fetch().read(topic, partition, offset, offset + 1))

        async with self._fetching:
            found = await asyncio.to_thread(read)
        return found[0] if found else None
