"""Reads stretches of partitions beside the group: ledgers, and single events that are open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from headrace import errors
from headrace.journal.kafka.client import NO_ERRORS, REQUEST_TIMEOUT_S, Cluster, Doing, coded
from headrace.ports import Clock

#: A stretch that does not arrive in this time: a transaction left open by a worker that died ends it within
#: its time-out (10 s), all else is an outage.
STRETCH_S_MAX = 30.0
_POLL_S = 0.2
_BURST = 500
#: The leader of a partition that was just made, or has moved, is not known to all brokers at once.
BOUNDS_TRIES_MAX = 10
_AGAIN_S = 0.2


class Fetcher:
    """Reads committed records by offset; to be used by one thread at a time."""

    def __init__(self, cluster: Cluster, name: str, clock: Clock) -> None:
        self._address, self._clock = cluster.address, clock
        config: dict[str, Any] = {
            **cluster.config,
            "group.id": f"{name}.fetch",  # asked for by the library; nothing is committed under it
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 10,
        }
        self._consumer = Consumer(config)
        self._admin: Any = AdminClient(dict(cluster.config))

    def bounds(self, topic: str, partition: int) -> tuple[int, int]:
        """Return the first offset that is kept, and the one that the next record gets."""
        for _ in range(BOUNDS_TRIES_MAX - 1):
            with suppress(errors.JournalUnavailable):
                return self._bounds(TopicPartition(topic, partition))
            self._clock.nap(_AGAIN_S)
        return self._bounds(TopicPartition(topic, partition))

    def _bounds(self, where: TopicPartition) -> tuple[int, int]:
        try:
            low, _ = self._consumer.get_watermark_offsets(where, timeout=REQUEST_TIMEOUT_S)
            # Committed readers are told the end of what is committed; here the real end is asked for.
            spec: Any = OffsetSpec
            asked = self._admin.list_offsets({where: spec.latest()}, request_timeout=REQUEST_TIMEOUT_S)
            return int(low), int(asked[where].result(REQUEST_TIMEOUT_S).offset)
        except KafkaException as fault:
            raise coded(fault, self._address, Doing("read", topic=where.topic)) from fault

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
                    raise errors.JournalUnavailable(problem, path=self._address)
        finally:
            self._consumer.unassign()

    def close(self) -> None:
        """Disconnect."""
        self._consumer.close()
