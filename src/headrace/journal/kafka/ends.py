"""Where a replay stops reading: on the thread that polls, behind the last offset that it was allotted."""

from __future__ import annotations

from collections.abc import Collection

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from headrace.journal.kafka.allotted import Allotted


class Ends:
    """The partitions of a replay that are not read on; a live subscription has none."""

    def __init__(self, consumer: Consumer, topic: str, allotted: Allotted | None) -> None:
        self._consumer, self._topic, self._allotted = consumer, topic, allotted
        #: Their offsets: all before them was handed on.
        self.at: dict[int, int] = {}
        #: What lies beyond, by partition: the first of it that this burst has met.
        self._met: dict[int, int] = {}

    def first(self, partition: int, otherwise: int) -> int:
        """Return where a subscription begins that has not written down anything yet."""
        found = None if self._allotted is None else self._allotted.first(partition)
        return otherwise if found is None else found

    def stop(self, partition: int) -> int:
        """Return the first offset beyond what was allotted; 0 for a live subscription."""
        return 0 if self._allotted is None else self._allotted.stop(partition)

    def beyond(self, message: Message) -> bool:
        """Return whether a record, or the end of a partition, lies beyond what was allotted; note it.

        What comes after it in the same burst does so, too, though more was allotted in between: it is read
        again from there.
        """
        error, allotted = message.error(), self._allotted
        if allotted is None or message.topic() != self._topic:
            return False
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the library names it so
            return False
        partition, offset = message.partition() or 0, message.offset() or 0
        if partition not in self._met and offset >= allotted.stop(partition):
            self._met[partition] = offset
        return partition in self._met

    def reached(self, mine: Collection[int]) -> dict[int, int]:
        """Read no further in partitions of which all was handed on; return those that are new."""
        met, self._met = self._met, {}
        new = {at: offset for at, offset in met.items() if at in mine and at not in self.at}
        if new:
            self._consumer.pause([TopicPartition(self._topic, at) for at in new])
            self.at |= new
        return new

    def go_on(self, *, paused: bool) -> None:
        """Read on where more was allotted meanwhile."""
        for at, offset in list(self.at.items()) if self._allotted is not None else ():
            if self._allotted is not None and offset < self._allotted.stop(at):
                del self.at[at]
                self._consumer.seek(TopicPartition(self._topic, at, offset))
                if not paused:
                    self._consumer.resume([TopicPartition(self._topic, at)])

    def forget(self, partitions: Collection[int]) -> None:
        """Note that partitions are given up; who gets them reads from where the ledger says."""
        self.at = {at: offset for at, offset in self.at.items() if at not in partitions}
