"""A worker's membership in the group of a subscription: which partitions it has, and what waits in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from confluent_kafka import Message

from headrace import errors
from headrace.codec.ledger import OpenEntry
from headrace.journal.held import Open
from headrace.journal.kafka.decisions import Decisions
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.outcome import EXPIRED, key_of
from headrace.journal.kafka.parents import Parents, Parked
from headrace.journal.kafka.part import Part, part_of
from headrace.journal.kafka.poll import Events, Own, Poller, Start
from headrace.journal.kafka.produce import Transactions
from headrace.journal.kafka.rows import Gone, Rows
from headrace.ports import Attempt, DeadLetter, OpenState, Row, Subscription
from headrace.ports.index import Bound, Tried

_log = logging.getLogger("headrace.journal")

#: A take-over that an outage has stopped goes on after this time.
AGAIN_S = 0.5
#: Records that may wait on the loop; beyond it the partitions are paused.
WAITING_MAX = 4_096


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


class Share:
    """The partitions that a worker has of one subscription."""

    def __init__(self, log: Log, worker: KafkaWorker, subscription: Subscription, *, latest: bool) -> None:
        self._log, self._index, self._clock = log, log.index, log.clock
        self._owner, self._lease_ms, self._latest = worker.name, worker.lease_ms, latest
        self._subscription = subscription
        self._handler, self._topic = subscription.handler, subscription.topic
        self._fault: BaseException | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._rows: Rows
        self.parts: dict[int, Part] = {}
        self.poller: Poller | None = None
        self.transactions: Transactions
        self.own = Own("", "")
        self.woken = asyncio.Event()
        self.decisions: Decisions
        self.parents = Parents(log, self.woken.set)

    async def join(self) -> None:
        """Join the group; from then on it is the group that gives and takes partitions."""
        if self.poller is not None and not self.poller.alive():
            await self.leave()  # it has told why; now once more
        if self.poller is not None:
            return
        log, group = self._log, self._log.group_of(self._handler)
        self._rows = log.rows_of(self._topic)
        self.own = await log.own_of(self._handler, self._topic)
        self.decisions = Decisions(log, self._subscription, self.own.ledger)
        self.transactions = Transactions(log.cluster, group, log.chance, log.faults)
        events = Events(self._assigned, self._gone, self._records, self._failed, self._leaving)
        topic = log.found(self._topic)
        self.poller = Poller(log.cluster, group, topic, self.own, events, log, lease_ms=self._lease_ms)
        self.poller.start(latest=self._latest)

    async def leave(self) -> None:
        """Leave the group, and drop what was in hand."""
        poller, self.poller = self.poller, None
        if poller is not None:
            await asyncio.to_thread(poller.close)
            self.transactions.close()
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
            self.poller.full = sum(len(part.waiting) for part in self.parts.values()) > WAITING_MAX

    # --- told by the thread -------------------------------------------------------------------

    async def _leaving(self, partitions: list[int]) -> None:
        """Note that what was claimed of partitions is not in the hand of somebody who died."""
        for partition in partitions:
            with suppress(errors.JournalError):
                await self._index.hand_over(self._handler, partition, self._owner)

    def _later(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        fault = None if task.cancelled() else task.exception()
        if fault is not None:  # no outage: whoever asks for events next has to know
            self._failed(fault)

    def _assigned(self, starts: list[Start]) -> None:
        for start in starts:
            tp = self._log.place(self._topic, start.partition)
            self.parts[tp] = part_of(start.partition, tp, start.epoch, start.position)
        self._later(self._take_over(starts))

    async def _take_over(self, starts: list[Start]) -> None:
        """Learn what is open in new partitions, and what an owner that died had in hand."""
        for start in starts:
            while self._has(start):
                try:
                    await self._begin(start)
                    break
                except errors.JournalError as fault:  # told, and tried again as long as it is ours
                    self._failed(fault)
                await self._clock.sleep(AGAIN_S)
            self.woken.set()

    def _has(self, start: Start) -> bool:
        """Return whether a partition is still held under the assignment with which it came."""
        part = self.parts.get(self._log.place(self._topic, start.partition))
        return part is not None and part.held.epoch == start.epoch

    async def _begin(self, start: Start) -> None:
        """Find out what is open and what is lost of a partition; it is not worked before that is known."""
        partition, position = start.partition, start.position
        claim = await self._index.take_over(self._handler, partition, self._owner)
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
        bound = Bound(start.partition, after, start.low)
        (count,) = await self._index.view.counts(self._log.found(self._topic).topic_id, [bound])
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
        if known is not None:
            number, crashes = max(attempt.number, known.number), max(attempt.crashes, known.crashes)
            attempt = attempt._replace(number=number, crashes=crashes)
        if state is OpenState.RUNNING:
            state, attempt = OpenState.RETRY, attempt._replace(crashes=attempt.crashes + died)
        wait_ns = max(0, entry.due_us - self._clock.wall_us()) * 1000
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
        for partition in partitions:
            self.parts.pop(self._log.place(self._topic, partition), None)
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
                part.waiting.append(reading)
        self.see_room()
        self.woken.set()
