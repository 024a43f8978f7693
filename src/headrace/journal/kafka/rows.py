"""Records of Kafka as rows of the runtime, and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from confluent_kafka import Message

from headrace.codec.head import SUM_MASK, xxh3_64
from headrace.codec.headers import Headers, Record, read_record, write_head, write_stamp
from headrace.event.envelope import Head, Stamp
from headrace.event.lineage import id_at
from headrace.journal.kafka.client import PARTITIONS_MAX, Topic
from headrace.journal.kafka.produce import Out
from headrace.ports import Row
from headrace.ports.index import Seen

#: A row is known by one number: its offset, and its partition in the low ten bits.
PARTITION_BITS = PARTITIONS_MAX.bit_length() - 1


def number_of(partition: int, offset: int) -> int:
    """Return offset and partition as one number, which grows with the offset."""
    return offset << PARTITION_BITS | partition


def offset_of(number: int) -> int:
    """Return the offset of a row's number."""
    return number >> PARTITION_BITS


def partition_of(number: int) -> int:
    """Return the partition of a row's number."""
    return number & (PARTITIONS_MAX - 1)


#: Headers of dead letters that say why begin like this; all others are those of the event.
DEAD_PREFIX = "dead_"

#: An emitted event, until the transaction that writes it: place, id, depth, envelope, payload.  A plain
#: tuple, by which the pipeline knows one event from a list of them.
Emitted = tuple[int, bytes, int, Head, bytes]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands in a row in place of an envelope that cannot be read."""

    problem: str
    #: What stands in the record's key and headers.
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class Gone(Unreadable):
    """Stands in a row in place of the envelope of a record that is not there any more."""


class Stamps:
    """Stamps by number, and the headers that each of them means; known to this process only."""

    def __init__(self) -> None:
        self._numbers: dict[Stamp, int] = {}
        self._stamps: list[Stamp] = []
        self._headers: list[list[tuple[str, bytes]]] = []

    def number(self, stamp: Stamp) -> int:
        """Return the number of a stamp."""
        found = self._numbers.get(stamp)
        if found is None:
            found = self._numbers[stamp] = len(self._stamps)
            self._stamps.append(stamp)
            self._headers.append(write_stamp(stamp))
        return found

    def stamp(self, number: int) -> Stamp | None:
        """Return the stamp of a number."""
        return self._stamps[number] if number < len(self._stamps) else None

    def sources(self) -> set[str]:
        """Return who has published what was read here."""
        return {stamp.source for stamp in self._stamps}

    def headers(self, event_id: bytes, depth: int, head: Head) -> list[tuple[str, bytes]]:
        """Return the headers of an event."""
        return write_head(event_id, depth, head, self._headers[head.stamp])


class Reading(NamedTuple):
    """A record, read: as a row, and as the index wants to know it."""

    row: Row
    seen: Seen


class Rows:
    """Reads the records of one topic."""

    def __init__(self, topic: Topic, place: int, stamps: Stamps, default: Stamp) -> None:
        self._topic, self._place, self._stamps, self._default = topic, place, stamps, default

    def read(self, message: Message) -> Reading:
        """Return a record as a row; one that cannot be read has `Unreadable` in place of its envelope."""
        return self._read(message, int(message.offset() or 0), headers_of(message))

    def restore(self, message: Message, offset: int) -> Reading:
        """Return the event of a dead letter, as it was at its offset."""
        headers = [one for one in headers_of(message) if not one[0].startswith(DEAD_PREFIX)]
        return self._read(message, offset, headers)

    def gone(self, partition: int, offset: int) -> Row:
        """Return a row in place of a record that is not there any more."""
        event_id = id_at(self._topic.topic_id, partition, offset)
        missing = Gone("The topic does not hold it any more.")
        return (number_of(partition, offset), self._place | partition, event_id, b"", 0, missing, b"")

    def _read(self, message: Message, offset: int, headers: Headers) -> Reading:
        topic, partition, key = self._topic, message.partition() or 0, _bytes(message.key())
        record = Record(
            topic.name, topic.topic_id, partition, offset, message.timestamp()[1], key,
            _bytes(message.value()), headers,
        )  # fmt: skip
        number, place = number_of(partition, offset), self._place | partition
        try:
            event_id, depth, head, stamp, body, _ = read_record(record, self._default)
        except ValueError as fault:
            event_id = id_at(topic.topic_id, partition, offset)
            problem = Unreadable(str(fault), key, tuple(headers))
            unread: Row = (number, place, event_id, b"", 0, problem, record.value or b"")
            return Reading(unread, Seen(event_id, offset, 0, event_id, 0))
        head.stamp = self._stamps.number(stamp)
        root = head.root or event_id
        content = b"%b\0%b\0%b" % (stamp.type.encode(), (head.key or "").encode(), body)
        return Reading(
            (number, place, event_id, root, depth, head, body),
            Seen(event_id, offset, xxh3_64(content) & SUM_MASK, root, depth),
        )


def headers_of(message: Message) -> Headers:
    """Return the headers of a record, in order."""
    given: Any = message.headers()
    return given or []


def _bytes(value: Any) -> bytes | None:
    return value.encode() if isinstance(value, str) else value


def written(event: Emitted, topics: Mapping[int, str], stamps: Stamps) -> Out:
    """Return an emitted event as a record."""
    place, event_id, depth, head, body = event
    key = None if head.key is None else head.key.encode()
    topic = topics[place >> PARTITION_BITS]
    partition = place & (PARTITIONS_MAX - 1)
    return Out(topic, partition, key, body, stamps.headers(event_id, depth, head))
