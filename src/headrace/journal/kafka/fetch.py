"""Reads stretches of partitions beside the group: ledgers, and single events that are open."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from headrace import errors
from headrace.journal.kafka.client import (
    APPEARS_S_MAX,
    NO_ERRORS,
    REQUEST_TIMEOUT_S,
    STUCK,
    Cluster,
    Doing,
    answered,
    coded,
    reading,
)
from headrace.ports import Clock

T = TypeVar("T")
#: A stretch that does not arrive in this time: a transaction left open by a worker that died ends it within
#: its time-out (10 s), all else is an outage.
STRETCH_S_MAX = 30.0
_POLL_S = 0.2
_AGAIN_S = 0.05
_BURST = 500
#: Errors that are asked again: leaders and partitions are not where the library's client takes them to be.
MOVED = frozenset(
    {
        # A broker is not the leader that it was, or does not know yet that it is: they hear of an election
        # one after the other.
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        # The partition has no leader, as one that was just made or moves to another broker.
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        # The library names its own errors so: no partition has a leader; what it has heard lacks the topic,
        # or has it without that partition.
        KafkaError._NOENT,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
    }
)


def offsets_of(admin: Any, where: Iterable[tuple[str, int]], spec: object) -> dict[tuple[str, int], int]:
    """Return an offset of each partition, as a spec names it; raises `KafkaException`.

    Of leaders and partitions the library's client goes by what it has heard, for minutes, whatever the
    brokers answer (tried: each restart of a broker is the election of a leader).  Asking for all topics tells
    it the news.
    """
    asked = {TopicPartition(*at): spec for at in where}
    try:
        return _listed(admin, asked)
    except KafkaException as fault:
        if fault.args[0].code() not in MOVED:
            raise
    admin.list_topics(timeout=REQUEST_TIMEOUT_S)
    return _listed(admin, asked)


def _listed(admin: Any, asked: dict[TopicPartition, object]) -> dict[tuple[str, int], int]:
    answers = admin.list_offsets(asked, request_timeout=REQUEST_TIMEOUT_S)
    return {(at.topic, at.partition): int(answered(answer).offset) for at, answer in answers.items()}


class Fetcher:
    """Reads committed records by offset; to be used by one thread at a time."""

    def __init__(self, cluster: Cluster, name: str, clock: Clock) -> None:
        self._address, self._clock = cluster.address, clock
        # A group is asked for by the library; nothing is committed under it.
        self._consumer = Consumer(reading(cluster, f"{name}.fetch", **{"enable.partition.eof": True}))
        self._admin: Any = AdminClient(dict(cluster.config))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset that is kept, and the one that the next record gets."""
        where = TopicPartition(topic, partition)
        low, _ = self._watermarks(where)
        return low, self._asked(topic, lambda: self._end(topic, partition))

    def _end(self, topic: str, partition: int) -> int:
        # Committed readers are told the end of what is committed; here the real end is asked for.
        spec: Any = OffsetSpec
        return offsets_of(self._admin, [(topic, partition)], spec.latest())[topic, partition]

    def stable(self, topic: str, partition: int) -> int:
        """Return the offset up to which nothing is under way: committed readers get there without waiting."""
        return self._watermarks(TopicPartition(topic, partition))[1]

    def _watermarks(self, where: TopicPartition) -> tuple[int, int]:
        """Return the first offset that is kept, and the end of what is committed."""
        low, end = self._asked(
            where.topic, lambda: self._consumer.get_watermark_offsets(where, timeout=REQUEST_TIMEOUT_S)
        )
        return int(low), int(end)

    def _asked(self, topic: str, ask: Callable[[], T]) -> T:
        """Ask; the leader of a partition that was just made, or has moved, is not known to all at once."""
        deadline = self._clock.boot_ns() + int(APPEARS_S_MAX * 1e9)
        while True:
            try:
                return ask()
            except KafkaException as fault:
                if fault.args[0].code() not in MOVED or self._clock.boot_ns() > deadline:
                    raise coded(fault, self._address, Doing("read", topic=topic)) from fault
                self._clock.nap(_AGAIN_S)
            self._hear()

    def _hear(self) -> None:
        """Have the consumer hear the news of all topics, as `offsets_of` does; or that nobody is there.

        Of a broker that is gone the library says first that it does not know the partition.
        """
        try:
            self._consumer.list_topics(timeout=REQUEST_TIMEOUT_S)
        except KafkaException as fault:
            raise coded(fault, self._address) from fault

    def read(self, topic: str, partition: int, start: int, end: int) -> Iterator[Message]:
        """Yield the committed records from ``start`` to before ``end``, waiting for open transactions.

        What is deleted already, or not written yet, is left out.
        """
        low, high = self.bounds(topic, partition)
        start, end = max(start, low), min(end, high)
        if start >= end:
            return
        deadline = self._clock.boot_ns() + int(STRETCH_S_MAX * 1e9)
        where = TopicPartition(topic, partition, start)
        self._consumer.assign([where])
        try:
            while True:
                first = self._consumer.consume(1, _POLL_S)  # one is waited for, the others are there
                for message in first + (self._consumer.consume(_BURST, 0) if first else []):
                    error = message.error()
                    if error is not None and error.code() not in NO_ERRORS:
                        raise coded(error, self._address, Doing("read", topic=topic))
                    if error is None and (message.offset() or 0) < end:
                        yield message
                (reached,) = self._consumer.position([where])
                if reached.offset >= end:
                    return
                if self._clock.boot_ns() > deadline:
                    problem = f"{topic}/{partition} is not readable up to offset {end}."
                    raise errors.JournalUnavailable(problem, path=self._address, hint=STUCK)
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()
