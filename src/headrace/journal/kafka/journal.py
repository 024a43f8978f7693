"""The journal of the runtime on Kafka: topics, stamps, publishing, versions, subscriptions."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import errors
from headrace.event.envelope import Head, Stamp
from headrace.journal.kafka.client import Cluster
from headrace.journal.kafka.consumer import KafkaConsumer
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.produce import Out, Transactions, Unsure
from headrace.journal.kafka.replays import KafkaReplays
from headrace.journal.kafka.rows import Emitted, offset_of, partition_of, written
from headrace.journal.kafka.share import KafkaWorker, Wish
from headrace.journal.kafka.topics import OWN, Elsewhere
from headrace.ports import (
    Chance,
    Clock,
    Faults,
    Keep,
    NewEvent,
    Offered,
    Receipt,
    Row,
    Subscription,
    TopicInfo,
    VersionInfo,
    VersionOffer,
    Worker,
)
from headrace.ports.index import Index


class KafkaJournal:
    """Events and ledgers on a cluster; first positions, claims and versions in an index."""

    def __init__(
        self, cluster: Cluster, index: Index, *, clock: Clock, chance: Chance, faults: Faults
    ) -> None:
        #: The cluster and the index, for those who look into the journal.
        log = self.log = self._log = Log(cluster, index, clock=clock, chance=chance, faults=faults)
        self.address = cluster.address
        self._latest: set[str] = set()
        self._units: Transactions | None = None
        self._replays = KafkaReplays(log)

    async def open(self) -> None:
        """Connect; raises `JournalUnavailable` when no broker answers.  Harmless when that is done."""
        if self._units is None:
            await self._log.open()
            self._units = Transactions(self._log.cluster, f"{OWN}.publish", self._log.chance)

    async def close(self) -> None:
        """Finish what was accepted and disconnect; harmless when that is done."""
        units, self._units = self._units, None
        if units is not None:
            units.close()
            await self._replays.close()
            await self._log.close()

    def replays(self) -> KafkaReplays:
        """Return the replays of this journal."""
        return self._replays

    # --- topics and stamps --------------------------------------------------------------------

    async def topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        """Return a topic, creating it when it is new."""
        return await self._log.topic(name, partitions)

    async def intern(self, stamps: Sequence[Stamp]) -> list[int]:
        """Return the numbers of stamps, in order."""
        return [self._log.stamps.number(stamp) for stamp in stamps]

    async def stamp(self, number: int) -> Stamp | None:
        """Return the stamp of a number, or ``None`` when nobody interned it."""
        return self._log.stamps.stamp(number)

    def place(self, topic: TopicInfo, partition: int) -> int:
        """Return topic and partition as one number."""
        return self._log.place(topic, partition)

    @staticmethod
    def decode_head(head: object, /) -> Head:
        """Return the envelope of a row; raises `ValueError` for one that could not be read."""
        if isinstance(head, Head):
            return head
        raise ValueError(getattr(head, "problem", "it is no envelope"))

    @staticmethod
    def where(row: Row, /) -> str:
        """Return where an event lies, for people."""
        return f"partition {partition_of(row[0])}, offset {offset_of(row[0])}"

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
        units = self._units
        if units is None:
            raise errors.JournalClosed
        depths = await self._depths(unit)
        records = [self._record(event, depth) for event, depth in zip(unit, depths, strict=True)]
        if len(records) == 1:
            await self._log.publisher.publish(records[0])
        elif records:
            try:
                await units.commit(records)
            except Unsure as fault:
                problem = "It is not known whether the unit was written: under the same ids it may be again."
                raise errors.JournalUnavailable(problem, path=self.address) from fault
        return [Receipt(event.event_id, duplicate=False) for event in unit]

    async def _depths(self, unit: Sequence[NewEvent]) -> list[int]:
        """Return how far events are from the first of their chain, and note that in their envelopes.

        Parents are looked up in the unit, then in the index.  One that is not indexed yet counts as the first
        of its chain: whether it is there at all is found out before the event is handled.
        """
        known: dict[bytes, tuple[bytes, int]] = {}
        depths: list[int] = []
        for event in unit:
            head, depth = event.head, 0
            if head.parents:
                causes = [known.get(one) or await self._cause(one) for one in head.parents]
                head.root, depth = causes[0][0], 1 + max(cause[1] for cause in causes)
            known.setdefault(event.event_id, (head.root or event.event_id, depth))
            depths.append(depth)
        return depths

    async def _cause(self, parent: bytes) -> tuple[bytes, int]:
        places = await self._log.index.find(parent)
        return (places[0].root, places[0].depth) if places else (parent, 0)

    def _record(self, event: NewEvent, depth: int) -> Out:
        new = event.place, event.event_id, depth, event.head, event.body
        return written(new, self._log.topic_names, self._log.stamps)

    # --- versions and subscriptions -----------------------------------------------------------

    async def offer(self, offer: VersionOffer) -> Offered:
        """Make a version known; one never seen before becomes the active one."""
        self._log.opened()
        return await self._log.versions.offer(offer)

    async def activate(self, handler: str, version: str) -> VersionInfo:
        """Make a known version the active one."""
        self._log.opened()
        return await self._log.versions.activate(handler, version)

    async def subscribe(
        self, handler: str, topic: str, *, latest: bool = False, was: str | None = None
    ) -> Subscription:
        """Return the live subscription of a handler; a new one starts at the earliest retained event."""
        info = await self.topic(topic)
        if was is not None:
            known = (await self._log.versions.catch_up()).handlers()
            if was in known and handler not in known:
                problem = "a consumer group of Kafka cannot be renamed"
                raise errors.RenameRefused(handler=handler, was=was, problem=problem)
        if latest:
            self._latest.add(handler)
        return Subscription(info.id, handler, info)

    def sweeper(self, app: str, rules: Sequence[Keep], window_us: int) -> Elsewhere:
        """Return what says that retention is Kafka's own affair."""
        del app, window_us
        return Elsewhere(rules)

    async def join(self, lease_ms: int) -> Worker:
        """Make this process known as a worker; it is the groups that know whether it lives."""
        self._log.opened()
        return KafkaWorker(self._log.chance.bytes(16).hex(), lease_ms)

    def consumer(
        self, worker: Worker, subscription: Subscription, *, at_least_once: bool = False
    ) -> KafkaConsumer:
        """Return this worker's share of a subscription."""
        assert isinstance(worker, KafkaWorker)
        if subscription.replay:
            return self._replays.consumer(worker, subscription)
        wish = Wish(subscription.handler in self._latest, at_least_once)
        return KafkaConsumer(self._log, worker, subscription, wish)
