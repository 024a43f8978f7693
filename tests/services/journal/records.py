"""Topics of one test as a plain committed consumer sees them; what was read once is not read again."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from confluent_kafka import (
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

#: The broker answers within this time, or not at all.
ANSWER_S_MAX = 20.0
_BURST = 1_000
TRIES_MAX, _LOOK_S = 20, 0.1


@dataclass(frozen=True)
class At:
    """A record, and where it lies."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes
    headers: dict[str, bytes]

    @property
    def event_id(self) -> str:
        """The id that a publisher gave it."""
        return self.headers["ce_id"].decode()


class Records:
    """Reads what has a mark in its name."""

    def __init__(self, bootstrap: str, mark: str) -> None:
        self._mark = mark
        named = {"bootstrap.servers": bootstrap, "group.id": f"reads{mark}", "fetch.wait.max.ms": 10}
        plain = {"isolation.level": "read_committed", "enable.partition.eof": True}
        self._reader = Consumer({**named, **plain, "enable.auto.commit": False})
        self._admin: Any = AdminClient({"bootstrap.servers": bootstrap})
        self._read: dict[str, list[At]] = {}
        self._next: dict[tuple[str, int], int] = {}

    def topics(self) -> list[str]:
        """Return the names of all topics of the test."""
        found = self._admin.list_topics(timeout=ANSWER_S_MAX).topics
        return sorted(name for name in found if self._mark in name)

    def topic_id(self, topic: str) -> bytes:
        """Return the cluster's own id of a topic."""
        answer = self._admin.describe_topics(TopicCollection([topic]))[topic].result(ANSWER_S_MAX)
        bits = answer.topic_id
        halves = bits.get_most_significant_bits() % 2**64, bits.get_least_significant_bits() % 2**64
        return (halves[0] << 64 | halves[1]).to_bytes(16, "big")

    def of(self, topic: str) -> list[At]:
        """Return the committed records of a topic by partitions and offsets; none if it is not there."""
        ends = self._ends(topic)
        behind = {where: end for where, end in ends.items() if self._next.get(where, 0) < end}
        found = self._read.setdefault(topic, [])
        if behind:
            found += self._catch_up(behind)
            found.sort(key=lambda one: (one.partition, one.offset))
        return found

    def _ends(self, topic: str) -> dict[tuple[str, int], int]:
        """Return the offset behind the last record of each partition, aborted and open ones counted."""
        for _ in range(TRIES_MAX):
            with suppress(KafkaException):  # a leader that was just chosen does not know it yet
                return self._asked(topic)
            time.sleep(_LOOK_S)
        return self._asked(topic)

    def _asked(self, topic: str) -> dict[tuple[str, int], int]:
        known = self._admin.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic].partitions
        spec: Any = OffsetSpec
        asked = {TopicPartition(topic, partition): spec.latest() for partition in known}
        answers = self._admin.list_offsets(asked) if asked else {}
        return {(at.topic, at.partition): one.result(ANSWER_S_MAX).offset for at, one in answers.items()}

    def _catch_up(self, behind: dict[tuple[str, int], int]) -> list[At]:
        """Read on to the ends; transactions that are under way there are waited for."""
        self._reader.list_topics(timeout=ANSWER_S_MAX)  # or it asks at its next full second where they are
        self._reader.assign([TopicPartition(*where, self._next.get(where, 0)) for where in behind])
        found: list[At] = []
        while behind:
            for message in self._reader.consume(_BURST, 0.01):
                if not message.error():
                    given: Any = message.headers() or ()
                    headers = {name: bytes(value or b"") for name, value in given}
                    key: Any = message.key()
                    where = message.partition() or 0, message.offset() or 0
                    found.append(At(*where, key, message.value() or b"", headers))
            for at in self._reader.position([TopicPartition(*where) for where in behind]):
                if at.offset >= behind[at.topic, at.partition]:
                    self._next[at.topic, at.partition] = at.offset
                    del behind[at.topic, at.partition]
        self._reader.unassign()
        return found

    def committed(self, group: str, topic: str, partition: int) -> int:
        """Return the offset that a group has committed."""
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition)])
        (answer,) = self._admin.list_consumer_group_offsets([asked], require_stable=True).values()
        (found,) = answer.result(ANSWER_S_MAX).topic_partitions
        return found.offset

    def forget(self) -> None:
        """Delete the topics, without waiting for it, and disconnect."""
        topics = self.topics()
        if topics:
            self._admin.delete_topics(topics)
        self._reader.close()
