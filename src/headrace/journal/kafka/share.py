"""A worker's membership in the group of a subscription: which partitions it has, and what waits in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import Message, TopicPartition

from headrace import errors
from headrace.codec.ledger import (
    LEDGER_PARTITION,
    POSITION,
    Key,
    OpenEntry,
    read_key,
    write_key,
    write_position,
)
from headrace.journal.held import Open
from headrace.journal.kafka.allotted import Allotted
from headrace.journal.kafka.decisions import Decisions
from headrace.journal.kafka.deliver import Deliveries
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.outcome import EXPIRED, key_of
from headrace.journal.kafka.parents import Parents, Parked
from headrace.journal.kafka.part import Part, part_of
from headrace.journal.kafka.poll import Events, Own, Poller, Start
from headrace.journal.kafka.produce import Fence, Out, Transactions, Unsure
from headrace.journal.kafka.rows import Gone, Rows, offset_of
from headrace.journal.kafka.topics import split_name
from headrace.ports import Attempt, DeadLetter, OpenState, Row, Subscription, Survey
from headrace.ports.index import Bound, Claim, Tried
from headrace.runtime.rhythm import insist

_log = logging.getLogger("headrace.journal")

#: A take-over that an outage has stopped goes on after this time.
AGAIN_S = 0.5
#: Records that may wait on the loop; beyond it the partitions are paused.
WAITING_MAX = 4_096
#: At least once: positions are committed so often.  What a crash has handled again is from this time.
PAY_MS = 100.0


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
    #: What a replay is to handle.
    allotted: Allotted | None = None


class Share:
    """The partitions that a worker has of one subscription."""

    def __init__(self, log: Log, worker: KafkaWorker, subscription: Subscription, wish: Wish) -> None:
        self._log, self._index, self._clock = log, log.index, log.clock
        self._owner, self._lease_ms, self._wish = worker.name, worker.lease_ms, wish
        self._subscription = subscription
        self._handler, self._topic = subscription.handler, subscription.topic
        self._fault: BaseException | None = None
        self._epochs: dict[int, int] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._rows: Rows
        self.parts: dict[int, Part] = {}
        #: Partitions whose outcome is being written: nothing of them changes meanwhile.
        self.standing: set[int] = set()
        self.poller: Poller | None = None
        self.transactions: Transactions
        #: Where outputs need no transaction.
        self.deliveries: Deliveries | None = None
        self.rebalances = 0
        self.own = Own("", "")
        #: At least once: partitions (and their assignment) whose position is not committed yet, other records
        #: of the ledger, and when that was done last.
        self.unpaid: dict[int, int] = {}
        self.owed: list[Out] = []
        self._paid_ns = 0
        self.woken = asyncio.Event()
        #: Whoever joins waits for one who is leaving: else it would end what the newcomer has begun.
        self._membership = asyncio.Lock()
        self.decisions: Decisions
        self.parents = Parents(log, self.woken.set)
        #: For people: where the results of a replay lie.
        self.where = "" if wish.allotted is None else wish.allotted.where

    async def join(self) -> None:
        """Join the group; from then on it is the group that gives and takes partitions."""
        async with self._membership:
            await self._join()

    async def _join(self) -> None:
        topic, allotted = await self._log.renew(self._topic), self._wish.allotted
        if allotted is not None and allotted.topic_id != topic.topic_id:
            problem = f"{topic.name} was deleted and made again, so its history is another"
            raise errors.ReplayRefused(handler=split_name(self._handler)[0], problem=problem)
        if self.poller is not None and topic.topic_id != self.poller.topic.topic_id:
            _log.warning("%s: the topic was deleted and made again; it is read from its start", topic.name)
            await self._leave()
        if self.poller is not None and not self.poller.alive():
            await self._leave()  # it has told why; now once more
        if self.poller is not None:
            return
        log, group = self._log, self._log.group_of(self._handler)
        self._rows = log.rows_of(self._topic)
        self.own = await log.own_of(self._handler, self._topic)
        self.decisions = Decisions(log, self._subscription, self.own.ledger)
        self.transactions = Transactions(log.cluster, group, log.chance, log.faults)
        events = Events(
            self._assigned, self._gone, self._records, self._ended, self._failed, self._leaving
        )  # fmt: skip
        self.poller = Poller(
            log.cluster, group, topic, self.own, events, log,
            lease_ms=self._lease_ms, allotted=allotted,
        )  # fmt: skip
        # Counted on: under the same number an outcome of before would be taken for one of this membership.
        self.poller.epochs = self._epochs
        self.deliveries = Deliveries(log.cluster, group) if self._wish.at_least_once else None
        self.poller.start(latest=self._wish.latest)

    async def leave(self) -> None:
        """Leave the group, and drop what was in hand."""
        async with self._membership:
            await self._leave()

    async def _leave(self) -> None:
        poller, self.poller = self.poller, None
        self.parts.clear()  # first: nothing of them is to be claimed meanwhile
        if poller is not None:
            await asyncio.to_thread(poller.close)
            self.transactions.close()
            if self.deliveries is not None:
                self.deliveries.close()
            await self.parents.close()
            self._log.faults.at("release.committed")
        self.parts.clear()

    def check(self) -> None:
        """Raise what the thread of the group has met, once."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault

    def see_room(self) -> None:
        """Have partitions paused while too much waits."""
        if self.poller is not None:
            waiting = sum(len(part.waiting.records) for part in self.parts.values())
            self.poller.see_room(full=waiting > WAITING_MAX)

    async def survey(self) -> Survey:
        """Return how far behind the partitions held are, and how many nobody holds."""
        high = {part.partition: offset_of(part.held.high) for part in self.parts.values()}
        if self.poller is None or not high:
            owned = await self._log.owned(self._handler, self._topic.name)
            return Survey({}, self._topic.partitions - len(owned))
        ends = self.poller.ends
        return Survey({at: max(0, ends[at] - high[at] - 1) for at in high if at in ends}, 0)

    # --- transactions ---------------------------------------------------------------------------

    async def transact(
        self, poller: Poller, records: list[Out], parts: Sequence[Part], offsets: list[TopicPartition]
    ) -> None:
        """Commit records with the positions of partitions and the group's offsets."""
        for part in parts:
            position = part.position(self._clock)
            key = write_key(Key(POSITION, part.partition))
            records.append(Out(self.own.ledger, LEDGER_PARTITION, key, write_position(position)))
            offsets.append(TopicPartition(self._topic.name, part.partition, position.low()))
        held = {part.partition: part.held.epoch for part in parts}

        def holds() -> bool:
            return all(poller.epochs.get(partition) == epoch for partition, epoch in held.items())

        try:
            fence = Fence(poller.committing, poller.metadata, holds)
            await self.transactions.commit(records, offsets, fence)
            self._log.faults.at("settle.committed")
        except Unsure as fault:
            await self.leave()  # the ledger says what stands, to whoever gets the partitions next
            problem = "It is not known whether an outcome was committed: its partitions are read again."
            raise errors.JournalUnavailable(problem, path=self._log.address) from fault

    async def pay(self, *, late_ms: float = 0.0) -> None:
        """At least once: commit the positions that outcomes have left behind, when they are so late.

        It is not done with the outcome: what follows is there by then, and is not to be written again because
        this fails.
        """
        now, poller = self._clock.boot_ns(), self.poller
        if not self.unpaid or poller is None or now < self._paid_ns + late_ms * 1e6:
            return
        # What was given up meanwhile is handled again by whoever has it.
        parts = [
            part
            for tp, epoch in self.unpaid.items()
            if (part := self.parts.get(tp)) is not None and part.held.epoch == epoch
        ]
        numbers = {part.partition for part in parts}
        owed = [one for one in self.owed if (key := read_key(one.key)) and key.partition in numbers]
        unpaid, self.unpaid, told, self.owed = self.unpaid, {}, self.owed, []
        try:
            if parts:
                await self.transact(poller, owed, parts, [])
        except BaseException:
            self.unpaid, self.owed = unpaid | self.unpaid, told + self.owed
            raise
        self._paid_ns = now

    async def pay_up(self) -> None:
        """Commit the positions of all outcomes before the partitions are given back, if it can be done."""
        try:
            await insist(self.pay, self._clock)
        except errors.JournalError as fault:
            _log.warning(
                "[%s] %s: what was finished last is handled again: %s", fault.code, self._handler, fault
            )

    # --- told by the thread -------------------------------------------------------------------

    async def _leaving(self, partitions: list[int]) -> None:
        """Note that what was claimed of partitions is not in the hand of somebody who died."""
        for partition in partitions:
            with suppress(errors.JournalError):
                await self._index.hand_over(self._handler, partition, self._owner)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:  # no outage: whoever asks for events next has to know
            self._failed(fault)

    def _assigned(self, starts: list[Start]) -> None:
        self.rebalances += 1
        for start in starts:
            tp = self._log.place(self._topic, start.partition)
            part = self.parts[tp] = part_of(start.partition, tp, start.epoch, start.position)
            part.allotted = self._wish.allotted
        self._later(self._take_over(starts))

    async def _take_over(self, starts: list[Start]) -> None:
        """Learn what is open in new partitions, and what an owner that died had in hand."""
        for start in starts:
            tries = 0
            claims: list[Claim | None] = []  # asked for once: the next time it would be known as ours
            while self._has(start):
                try:
                    if not claims:
                        taken = await self._index.take_over(self._handler, start.partition, self._owner)
                        claims.append(taken)
                    await self._begin(start, claims[0])
                    break
                except errors.JournalError as fault:  # tried again as long as it is ours
                    tries += 1
                    if tries.bit_count() == 1:  # told of the first, second, fourth: not twice a second
                        self._failed(fault)
                await self._clock.sleep(AGAIN_S)
            self.woken.set()

    def _has(self, start: Start) -> bool:
        """Return whether a partition is still held under the assignment with which it came."""
        part = self.parts.get(self._log.place(self._topic, start.partition))
        return part is not None and part.held.epoch == start.epoch

    async def _begin(self, start: Start, claim: Claim | None) -> None:
        """Find out what is open and what is lost of a partition; it is not worked before that is known."""
        partition, position = start.partition, start.position
        self._log.faults.at("take.claim")
        await self._index.finished(self._handler, partition, position.low())
        tried = {one.offset: one for one in await self._index.tried(self._handler, partition)}
        opened = [
            (entry, await self.decisions.reopened(partition, entry.offset, entry.letter))
            for entry in position.open
        ]
        lost = await self._lost(start)
        if not self._has(start):
            return  # given up meanwhile
        part = self.parts[self._log.place(self._topic, partition)]
        for entry, row in opened:
            self._reopen(part, entry, row, tried.get(entry.offset), died=claim is not None)
        if lost is not None:
            part.skip_to(start.low, lost)
        if claim is not None:
            part.suspect_upto = claim.upto
        part.changed |= start.new  # where it began stands from now on, whatever becomes of the topic
        self._log.faults.at("take.ready")
        part.ready = True

    async def _lost(self, start: Start) -> int | None:
        """Return how many events were deleted before they were taken, as far as the index knows of them."""
        after = start.position.high + 1
        if after >= start.low:
            return None
        allotted, bounds = self._wish.allotted, [Bound(start.partition, after, start.low)]
        if allotted is not None:
            bounds = allotted.within(*bounds[0])
        count = sum(await self._index.view.counts(self._log.found(self._topic).topic_id, bounds))
        _log.warning(
            "%s: offsets %d to %d of partition %d were deleted before they were handled; %d events expired",
            self._handler, after, start.low - 1, start.partition, count,
        )  # fmt: skip
        return count

    async def take_over(self, part: Part) -> None:
        """Have the claims of this worker count, and know what another has in hand who did not hand over."""
        claim = await self._index.take_over(self._handler, part.partition, self._owner)
        if claim is not None:
            part.suspect_upto = max(part.suspect_upto, claim.upto)

    def _reopen(self, part: Part, entry: OpenEntry, row: Row, known: Tried | None, *, died: bool) -> None:
        attempt = Attempt(entry.number, entry.crashes, entry.generation, entry.errors)
        if isinstance(row[5], Gone):
            where = f"partition {part.partition}, offset {entry.offset}"
            fault = errors.EventExpired(where=where, topic=self._topic.name)
            part.buried.append(DeadLetter(row, EXPIRED, fault.code, str(fault), "", attempt))
            part.changed = True
            return
        state = OpenState(entry.state)
        begun = known is not None and known.number > attempt.number
        if known is not None:
            number, crashes = max(attempt.number, known.number), max(attempt.crashes, known.crashes)
            attempt = attempt._replace(number=number, crashes=crashes)
        if begun or state is OpenState.RUNNING:
            state, attempt = OpenState.RETRY, attempt._replace(crashes=attempt.crashes + died)
        # Never longer than was meant: clocks of two hosts differ, and wall clocks are set.
        wait_ns = min(max(0, entry.due_us - self._clock.wall_us()), entry.wait_us) * 1000
        due_ns = self._clock.boot_ns() + wait_ns if wait_ns else 0
        part.open(row, Open(row[0], state, attempt, due_ns, key_of(row)))
        if state is OpenState.PARKED:
            self.parents.search([Parked(row[1], part.held.epoch, row)])
        if entry.letter >= 0:
            part.letters[row[0]] = entry.letter

    def _command(self, message: Message) -> None:
        part = self.parts.get(self._log.place(self._topic, message.partition() or 0))
        if part is not None and (message.offset() or 0) >= part.commands:
            part.asked.append(message)

    def _gone(self, partitions: list[int]) -> None:
        self.rebalances += 1
        for partition in partitions:
            self.parts.pop(self._log.place(self._topic, partition), None)
        self.woken.set()

    def _ended(self, reached: dict[int, int]) -> None:
        """Note that a replay has been given all that it was allotted of partitions, below these offsets."""
        for partition, offset in reached.items():
            part = self.parts.get(self._log.place(self._topic, partition))
            if part is not None:
                part.waiting.reached = max(part.waiting.reached, offset)
        self.woken.set()

    def _failed(self, fault: BaseException) -> None:
        self._fault = fault
        self.woken.set()

    def _records(self, messages: list[Message]) -> None:
        for message in messages:
            if message.topic() == self.own.commands:
                self._command(message)
                continue
            reading = self._rows.read(message)
            part = self.parts.get(reading.row[1])
            if part is not None and reading.row[0] > part.held.high:
                part.waiting.records.append(reading)
        self.see_room()
        self.woken.set()
