"""A worker's membership in the group of a subscription: which partitions it has, and what waits in them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import Message

from headrace import errors
from headrace.codec.ledger import OpenEntry
from headrace.journal.held import Open
from headrace.journal.kafka.deliver import Deliveries
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.outcome import key_of
from headrace.journal.kafka.part import Part, part_of
from headrace.journal.kafka.poll import Events, Poller, Start
from headrace.journal.kafka.produce import Transactions
from headrace.journal.kafka.rows import Reading, Rows, offset_of
from headrace.ports import Attempt, OpenState, Subscription, Survey
from headrace.ports.index import Claim, Tried

#: Records that may wait on the loop; beyond it the partitions are paused.
WAITING_MAX = 4_096
#: Beyond all offsets: everything of a partition is forgotten.
_ALL = 1 << 62


class KafkaWorker:
    """A process that works; its members of the groups are kept alive by the library's own threads."""

    id = 0

    def __init__(self, name: str, lease_ms: int) -> None:
        self.name = name
        #: So long a silent member keeps its partitions.
        self.lease_ms = lease_ms

    def renew(self) -> bool:
        """Do nothing: heartbeats are the library's."""
        return True

    async def leave(self) -> None:
        """Do nothing: consumers leave their groups when they are released."""


class Wish(NamedTuple):
    """How a subscription is to be served."""

    #: A new one begins behind what is there.
    latest: bool
    at_least_once: bool


class Share:
    """The partitions that a worker has of one subscription."""

    def __init__(self, log: Log, worker: KafkaWorker, subscription: Subscription, wish: Wish) -> None:
        self._log, self._index, self._clock = log, log.index, log.clock
        self._owner, self._lease_ms, self._wish = worker.name, worker.lease_ms, wish
        self._handler, self._topic = subscription.handler, subscription.topic
        self._fault: BaseException | None = None
        self._epochs: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rows: Rows
        self.parts: dict[int, Part] = {}
        self.poller: Poller | None = None
        self.transactions: Transactions
        #: Where outputs need no transaction.
        self.deliveries: Deliveries | None = None
        self.ledger = ""
        self.rebalances = 0
        self.woken = asyncio.Event()

    async def join(self) -> None:
        """Join the group; from then on it is the group that gives and takes partitions."""
        if self.poller is not None and not self.poller.alive():
            await self.leave()  # it has told why; now once more
        if self.poller is not None:
            return
        log, group = self._log, self._log.group_of(self._handler)
        self._rows = log.rows_of(self._topic)
        self.ledger = await log.ledger_of(self._handler, self._topic)
        events = Events(self._assigned, self._gone, self._records, self._failed, self._leaving)
        topic = log.found(self._topic)
        self.poller = Poller(
            log.cluster, group, topic, self.ledger, events, self._clock, lease_ms=self._lease_ms
        )
        self.transactions = Transactions(log.cluster, group, log.chance)
        # Counted on: under the same number an outcome of before would be taken for one of this membership.
        self.poller.epochs = self._epochs
        self.deliveries = Deliveries(log.cluster, group) if self._wish.at_least_once else None
        self.poller.start(latest=self._wish.latest)

    async def leave(self) -> None:
        """Leave the group, and drop what was in hand."""
        poller, self.poller = self.poller, None
        if poller is not None:
            await asyncio.to_thread(poller.close)
            self.transactions.close()
            if self.deliveries is not None:
                self.deliveries.close()
        self.parts.clear()

    def check(self) -> None:
        """Raise what the thread of the group has met, once."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def see_room(self) -> None:
        """Have partitions paused while too much waits."""
        if self.poller is not None:
            self.poller.full = sum(len(part.waiting) for part in self.parts.values()) > WAITING_MAX

    async def survey(self) -> Survey:
        """Return how far behind the partitions held are, and how many nobody holds."""
        high = {part.partition: offset_of(part.held.high) for part in self.parts.values()}
        if self.poller is None or not high:
            owned = await self._log.opened().assigned(self._log.group_of(self._handler), self._topic.name)
            return Survey({}, self._topic.partitions - len(owned))
        ends = self.poller.ends
        return Survey({at: max(0, ends[at] - high[at] - 1) for at in high if at in ends}, 0)

    # --- told by the thread -------------------------------------------------------------------

    async def _leaving(self, partitions: list[int]) -> None:
        """Note that what was claimed of partitions is not in the hand of somebody who died."""
        for partition in partitions:
            with suppress(errors.JournalError):
                await self._index.finished(self._handler, partition, _ALL)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _assigned(self, starts: list[Start]) -> None:
        self.rebalances += 1
        for start in starts:
            tp = self._log.place(self._topic, start.partition)
            self.parts[tp] = part_of(start.partition, tp, start.epoch, start.position)
        self._later(self._take_over(starts))

    async def _take_over(self, starts: list[Start]) -> None:
        """Learn what is open in new partitions, and what an owner that died had in hand."""
        try:
            claims = {claim.partition: claim for claim in await self._index.claims(self._handler)}
            for start in starts:
                claim = claims.get(start.partition)
                await self._begin(start, None if claim is None or claim.owner == self._owner else claim)
        except errors.JournalError as fault:
            self._failed(fault)
        self.woken.set()

    async def _begin(self, start: Start, claim: Claim | None) -> None:
        tp = self._log.place(self._topic, start.partition)
        tried = {one.offset: one for one in await self._index.tried(self._handler, start.partition)}
        opened = [
            (entry, await self._log.read_one(self._rows, self._topic, start.partition, entry.offset))
            for entry in start.position.open
        ]
        part = self.parts.get(tp)
        if part is None or part.held.epoch != start.epoch:
            return  # given up meanwhile
        for entry, reading in opened:
            if reading is not None:
                self._reopen(part, entry, reading, tried.get(entry.offset), died=claim is not None)
        if claim is not None:
            part.suspect_upto = claim.upto
        part.ready = True

    def _reopen(
        self, part: Part, entry: OpenEntry, reading: Reading, known: Tried | None, *, died: bool
    ) -> None:
        attempt = Attempt(entry.number, entry.crashes, entry.generation, entry.errors)
        state = OpenState(entry.state)
        if known is not None:
            number, crashes = max(attempt.number, known.number), max(attempt.crashes, known.crashes)
            attempt = attempt._replace(number=number, crashes=crashes)
        if state is OpenState.RUNNING:
            state, attempt = OpenState.RETRY, attempt._replace(crashes=attempt.crashes + died)
        wait_ns = max(0, entry.due_us - self._clock.wall_us()) * 1000
        due_ns = self._clock.boot_ns() + wait_ns if wait_ns else 0
        row = reading.row
        part.open(row, Open(row[0], state, attempt, due_ns, key_of(row)))

    def _gone(self, partitions: list[int]) -> None:
        self.rebalances += 1
        for partition in partitions:
            self.parts.pop(self._log.place(self._topic, partition), None)
        self.woken.set()

    def _failed(self, fault: BaseException) -> None:
        self._fault = fault
        self.woken.set()

    def _records(self, messages: list[Message]) -> None:
        for message in messages:
            reading = self._rows.read(message)
            part = self.parts.get(reading.row[1])
            if part is not None and reading.row[0] > part.held.high:
                part.waiting.append(reading)
        self.see_room()
        self.woken.set()
