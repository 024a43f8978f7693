"""Reads spans of many partitions at once: for those who look into a journal, or make its index again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec

from headrace import errors
from headrace.journal.kafka.client import NO_ERRORS, STUCK, Cluster, coded, reading
from headrace.journal.kafka.fetch import MOVED, offsets_of
from headrace.ports import Clock

#: Without a record for so long something is wrong: an open transaction ends within its time-out (10 s).
SILENT_S_MAX = 30.0
#: A partition without a leader, as one that was just made or moves to another broker, is asked again so long.
LEADER_S_MAX = 30.0
#: Records handed on at once; the first is waited for, the others are those that are there.
BURST = 1_000
_WAIT_S = 0.1
#: So many topics are asked about one by one; for more of them the brokers tell of all they have.
ASKED_MAX = 8
#: The answer is a hint: so long is waited for it.
ASK_S_MAX = 2.0
#: What the library fetches ahead, whatever the number of partitions.
_AHEAD_KIB = 16_384

#: A partition of a topic.
At = tuple[str, int]


class Span(NamedTuple):
    """Offsets of a partition, from ``start`` to before ``end``."""

    topic: str
    partition: int
    start: int
    end: int


class Bounds(NamedTuple):
    """The first offset that a partition has, and the one that its next record gets."""

    low: int
    end: int


class Spans:
    """Reads committed records; one reading at a time, each record is handed on once."""

    def __init__(self, cluster: Cluster, name: str, clock: Clock) -> None:
        self._address, self._clock = cluster.address, clock
        more = {"enable.partition.eof": True, "queued.max.messages.kbytes": _AHEAD_KIB}
        # A group is asked for by the library; nothing is committed under it.
        self._consumer = Consumer(reading(cluster, f"{name}.look", **more))
        self._admin: Any = AdminClient(dict(cluster.config))
        self._turn = asyncio.Lock()
        #: Topics of earlier readings.
        self._met: set[str] = set()
        #: Where each reading ends.
        self._ends: dict[At, int] = {}

    async def close(self) -> None:
        """Disconnect."""
        await asyncio.to_thread(self._consumer.close)

    # --- bounds -------------------------------------------------------------------------------

    async def bounds(self, where: Iterable[At]) -> dict[At, Bounds]:
        """Return the bounds of partitions; the end is the real one, open transactions included."""
        asked = list(where)
        deadline = self._clock.boot_ns() + int(LEADER_S_MAX * 1e9)
        while asked:
            try:
                return await asyncio.to_thread(self._bounds, asked)
            except KafkaException as fault:
                if fault.args[0].code() not in MOVED or self._clock.boot_ns() > deadline:
                    raise coded(fault, self._address) from fault
                await self._clock.sleep(_WAIT_S)
        return {}

    def _bounds(self, where: list[At]) -> dict[At, Bounds]:
        spec: Any = OffsetSpec
        low = offsets_of(self._admin, where, spec.earliest())
        end = offsets_of(self._admin, where, spec.latest())
        return {at: Bounds(low[at], end[at]) for at in where}

    # --- records ------------------------------------------------------------------------------

    @asynccontextmanager
    async def reading(
        self, spans: Iterable[Span], silent_s_max: float = SILENT_S_MAX
    ) -> AsyncGenerator[AsyncGenerator[list[Message]]]:
        """Read spans side by side: of a partition in order, among partitions in none.

        A span is within the bounds of its partition, and there is one for each.
        """
        async with self._turn:
            try:
                await asyncio.to_thread(self._begin, [one for one in spans if one.start < one.end])
                yield self._bursts(silent_s_max)
            finally:
                await asyncio.to_thread(self._consumer.unassign)

    def _begin(self, spans: list[Span]) -> None:
        self._ends = {(one.topic, one.partition): one.end for one in spans}
        self._meet({one.topic for one in spans} - self._met)
        self._consumer.assign([TopicPartition(one.topic, one.partition, one.start) for one in spans])

    def _meet(self, topics: set[str]) -> None:
        """Ask where partitions of new topics are: by itself the library does so at its next full second.

        Whoever gets no answer reads all the same, and waits as long for records as ever.
        """
        asked: list[str | None] = [*topics] if len(topics) <= ASKED_MAX else [None]
        with suppress(KafkaException):
            for topic in asked:
                self._consumer.list_topics(topic, timeout=ASK_S_MAX)
            self._met |= topics

    async def _bursts(self, silent_s_max: float) -> AsyncGenerator[list[Message]]:
        heard_ns = self._clock.boot_ns()
        while self._ends:
            found = await asyncio.to_thread(self._burst)
            now = self._clock.boot_ns()
            if found:
                heard_ns = now
                yield found
            elif now - heard_ns > silent_s_max * 1e9:
                (topic, partition), end = next(iter(self._ends.items()))
                problem = f"{topic}/{partition} is not readable up to offset {end}."
                raise errors.JournalUnavailable(problem, path=self._address, hint=STUCK)

    def _burst(self) -> list[Message]:
        found: list[Message] = []
        first = self._consumer.consume(1, _WAIT_S)
        for message in first + (self._consumer.consume(BURST, 0) if first else []):
            error = message.error()
            if error is not None and error.code() not in NO_ERRORS:
                raise coded(error, self._address)
            at, offset = (message.topic() or "", message.partition() or 0), message.offset() or 0
            end = self._ends.get(at)
            if end is None:
                continue
            if error is None and offset < end:
                found.append(message)
            # The end of a partition is told with the offset of what comes next.
            if offset + (error is None) >= end:
                del self._ends[at]
                self._consumer.incremental_unassign([TopicPartition(*at)])
        return found

    async def last(self, where: Mapping[At, Bounds], count: int) -> list[Message]:
        """Return the records among the last offsets of partitions."""
        spans = [Span(*at, max(one.low, one.end - count), one.end) for at, one in where.items()]
        found: list[Message] = []
        async with self.reading(spans) as bursts:
            async for burst in bursts:
                found += burst
        return found
