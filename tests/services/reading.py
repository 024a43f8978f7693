"""A plain committed reader: what anybody sees of a topic, without Headrace."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from uuid import uuid4

from confluent_kafka import Consumer, TopicPartition

#: The broker answers within this time, or not at all.
ANSWER_S_MAX = 10.0


class Found(NamedTuple):
    """A record of a topic."""

    partition: int
    value: bytes
    headers: dict[str, bytes]

    def body(self) -> dict[str, Any]:
        """Return the payload."""
        found: dict[str, Any] = json.loads(self.value)
        return found


def under_way(bootstrap: str, topic: str) -> bool:
    """Return whether a transaction is open in a topic: nobody is shown yet what lies behind."""
    ends = set[tuple[int, int]]()
    for level in ("read_committed", "read_uncommitted"):
        reader = Consumer({"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "isolation.level": level})
        try:
            for partition in reader.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic].partitions:
                where = TopicPartition(topic, partition)
                ends.add((partition, reader.get_watermark_offsets(where, timeout=ANSWER_S_MAX)[1]))
        finally:
            reader.close()
    return len(ends) > len({partition for partition, _ in ends})


def committed(bootstrap: str, topic: str) -> list[Found]:
    """Return the committed records of a topic; those of a partition, and so of a key, in order."""
    named = {"bootstrap.servers": bootstrap, "group.id": uuid4().hex, "isolation.level": "read_committed"}
    # At the end of a partition the broker waits for more, by default half a second.
    quick = {"fetch.wait.max.ms": 10, "enable.partition.eof": True, "enable.auto.commit": False}
    reader = Consumer({**named, **quick})
    try:
        count = len(reader.list_topics(topic, timeout=ANSWER_S_MAX).topics[topic].partitions)
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
        found, ended = list[Found](), set[int]()
        while len(ended) < count:
            message = reader.poll(ANSWER_S_MAX)
            assert message is not None, "the broker answers"
            partition = message.partition() or 0
            if message.error():
                ended.add(partition)
                continue
            given: Any = message.headers() or ()
            headers = {name: bytes(value or b"") for name, value in given}
            found.append(Found(partition, message.value() or b"", headers))
        return found
    finally:
        reader.close()
