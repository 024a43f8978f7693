"""Where a copy is written to: transactions that carry the copy's own position, under one stable name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from headrace import errors
from headrace.codec.copied import CopyState, read_state, write_state
from headrace.journal.kafka.client import Admin, Cluster, coded
from headrace.journal.kafka.fetch import Fetcher
from headrace.journal.kafka.produce import COMMIT_TRIES_MAX, Out, settings_of

#: The topic of the copies that were made into this cluster: one record each, the last one counts.
COPIES = "headrace.copies"
#: A transaction is written in one go; the broker ends one whose writer died after this long, or when the same
#: copy begins again.
TRANSACTION_MS_MAX = 60_000
#: The largest record; topics have a bound of their own, which is looked at first.
RECORD_BYTES_MAX = 256 << 20
_POLL_S = 0.05


class Timed(NamedTuple):
    """A record, and the time that it is to have."""

    out: Out
    time_ms: int


class Target:
    """Writes one copy.  Its transactional name is that of the source: a second copy of it ends the first."""

    def __init__(self, cluster: Cluster, source: str, fetcher: Fetcher) -> None:
        self._cluster, self._source, self._fetcher = cluster, source.encode(), fetcher
        self._producer: Producer | None = None
        self.state: CopyState | None = None

    async def look(self, admin: Admin) -> None:
        """Learn how far an earlier run has come; changes nothing."""
        self.state = None
        if await admin.find(COPIES) is None:
            return
        # A run that was killed may have left a transaction open; it is ended when the next one begins.
        end = self._fetcher.stable(COPIES, 0)
        for message in self._fetcher.read(COPIES, 0, 0, end):
            if message.key() == self._source:
                self.state = read_state(message.value() or b"")

    async def begin(self, admin: Admin) -> None:
        """End whatever an earlier run has left open, and go on where it was; note that a copy has begun."""
        await admin.make(COPIES, 1, **{"cleanup.policy": "compact"})
        config = settings_of(
            self._cluster,
            **{
                "transactional.id": f"{COPIES}.{self._source.decode()}",
                "transaction.timeout.ms": TRANSACTION_MS_MAX,
                "message.max.bytes": RECORD_BYTES_MAX,
                "linger.ms": 5,
            },
        )
        self._producer = Producer(config)
        try:
            self._producer.init_transactions(TRANSACTION_MS_MAX / 1000)
        except KafkaException as fault:
            raise coded(fault, self._cluster.address) from fault
        await self.look(admin)
        if self.state is None:
            self.commit([], CopyState())

    def commit(
        self,
        records: Iterable[Timed],
        state: CopyState,
        offsets: Mapping[str, Sequence[TopicPartition]] | None = None,
    ) -> None:
        """Write records, the copy's position and offsets of groups: all or none."""
        producer = self._producer
        if producer is None:
            raise errors.JournalClosed
        try:
            producer.begin_transaction()
            for out, time_ms in records:
                self._produce(producer, out, time_ms)
            self._produce(producer, Out(COPIES, 0, self._source, write_state(state)), 0)
            for group, positions in (offsets or {}).items():
                producer.send_offsets_to_transaction(list(positions), self._metadata(group))
            _commit(producer)
        except KafkaException as fault:
            # What was open is ended by the next run, which has the same name.
            self._producer = None
            raise coded(fault, self._cluster.address) from fault
        self.state = state

    def _produce(self, producer: Producer, out: Out, time_ms: int) -> None:
        topic, partition, key, value, headers = out
        more: dict[str, Any] = {"timestamp": time_ms} if time_ms > 0 else {}
        while True:
            try:
                producer.produce(topic, value, key, partition, headers=headers, **more)
                break
            except BufferError:
                producer.poll(_POLL_S)
        producer.poll(0)

    def _metadata(self, group: str) -> object:
        """Return the metadata of a group that nobody is a member of."""
        consumer = Consumer({**self._cluster.config, "group.id": group})
        try:
            return consumer.consumer_group_metadata()
        finally:
            consumer.close()


def _commit(producer: Producer) -> None:
    for tries_left in reversed(range(COMMIT_TRIES_MAX)):
        try:
            producer.commit_transaction(TRANSACTION_MS_MAX / 1000)
        except KafkaException as fault:
            error: KafkaError = fault.args[0]
            if error.fatal() or not error.retriable() or not tries_left:
                raise
        else:
            return


# --- is a topic fit for it --------------------------------------------------------------------


class Wanted(NamedTuple):
    """What a topic has to hold."""

    name: str
    partitions: int
    size_bytes: int
    largest_bytes: int
    #: 0 where nothing is to be copied into it.
    oldest_us: int


#: Envelopes take more room as headers than in the journal: times, ids and numbers are text there.
HEADERS_BYTES_MAX = 8_192
RECORD_BYTES_DEFAULT = 1_048_588
DAY_MS = 86_400_000


def settings_for(wanted: Wanted) -> dict[str, str]:
    """Return the settings of a topic that we create: it keeps everything, as the journal has done."""
    found = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}
    if wanted.largest_bytes + HEADERS_BYTES_MAX > RECORD_BYTES_DEFAULT:
        found["max.message.bytes"] = str(wanted.largest_bytes + HEADERS_BYTES_MAX)
    return found


def unfit(wanted: Wanted, settings: Mapping[str, str], now_us: int) -> str:
    """Return why a topic that there is would not keep what is copied into it, or an empty string."""
    if not wanted.oldest_us:
        return ""
    age_ms = (now_us - wanted.oldest_us) // 1000
    keep_ms, keep_bytes = int(settings["retention.ms"]), int(settings["retention.bytes"])
    room, needed = int(settings["max.message.bytes"]), wanted.largest_bytes + HEADERS_BYTES_MAX
    before_ms = int(settings.get("message.timestamp.before.max.ms", 1 << 62))
    days = f"its oldest event is {age_ms / DAY_MS:,.1f} days old"
    problems = {
        "it is compacted: of events with one key the last alone would stay": (
            settings["cleanup.policy"] != "delete"
        ),
        f"{days}, and retention.ms keeps {keep_ms / DAY_MS:,.1f} days: the brokers would delete it at once": (
            0 <= keep_ms <= age_ms + DAY_MS
        ),
        f"retention.bytes keeps {keep_bytes:,} bytes of a partition, and there are {wanted.size_bytes:,}": (
            0 <= keep_bytes < wanted.size_bytes
        ),
        f"max.message.bytes is {room:,}, and its largest event may take {needed:,}": needed > room,
        f"{days}, and message.timestamp.before.max.ms refuses what is so old": age_ms >= before_ms,
    }
    return next((problem for problem, is_one in problems.items() if is_one), "")


# --- reading back -----------------------------------------------------------------------------

#: Records of one look.
CHUNK_OFFSETS = 5_000


def chunks(
    fetcher: Fetcher, topic: str, partition: int, *, stable: bool = False
) -> Iterable[tuple[int, int, list[Any]]]:
    """Yield the committed records of a partition in stretches: first offset, first beyond, records.

    With ``stable`` what lies behind a transaction that is under way is left out, and not waited for.
    """
    low, end = fetcher.bounds(topic, partition)
    end = fetcher.stable(topic, partition) if stable else end
    start = 0
    while start < end:
        upto = min(max(start, low) + CHUNK_OFFSETS, end)
        yield start, upto, list(fetcher.read(topic, partition, start, upto))
        start = upto


def is_empty(fetcher: Fetcher, topic: str, partitions: int) -> bool:
    """Return whether nothing was ever written to a topic, or nothing is left of it."""
    bounds = [fetcher.bounds(topic, partition) for partition in range(partitions)]
    return all(low == end for low, end in bounds)
