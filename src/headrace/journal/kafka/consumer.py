"""One worker's share of one subscription on Kafka: assignments, claims and outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice

from confluent_kafka import TopicPartition

from headrace import errors
from headrace.codec.ledger import POSITION, Range, write_position
from headrace.event.lineage import text_of
from headrace.journal.held import Open
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.outcome import (
    apply,
    dead_record,
    key_of,
    still_ours,
)
from headrace.journal.kafka.part import Part
from headrace.journal.kafka.poll import Poller
from headrace.journal.kafka.produce import Fence, Out, Unsure
from headrace.journal.kafka.rows import Reading, offset_of, written
from headrace.journal.kafka.share import KafkaWorker, Share, Wish
from headrace.journal.scan import may_take
from headrace.journal.settle import Token, without
from headrace.ports import (
    Attempt,
    Batch,
    DeadLetter,
    OpenState,
    Outcome,
    Row,
    Settled,
    Subscription,
    Survey,
    VersionInfo,
)
from headrace.ports.index import Claim, First, Stretch, Tried

#: How soon to look again at what is due but was not taken.
DUE_LOOK_S = 0.005
#: At least once: positions are committed so often.  What a crash has handled again is from this time.
PAY_MS = 100.0


class KafkaConsumer:
    """Claims events of the partitions assigned to it and commits what they came to."""

    def __init__(self, log: Log, worker: KafkaWorker, subscription: Subscription, wish: Wish) -> None:
        self._log, self._index, self._clock = log, log.index, log.clock
        self._owner, self._subscription = worker.name, subscription
        self._handler, self._topic = subscription.handler, subscription.topic
        self._share = Share(log, worker, subscription, wish)
        #: At least once: partitions (and their assignment) whose position is not committed yet, other records
        #: of the ledger, and when that was done last.
        self._unpaid: dict[int, int] = {}
        self._owed: list[Out] = []
        self._paid_ns = 0

    # --- the group ----------------------------------------------------------------------------

    async def balance(self) -> int:
        """Join the group, if that is not done; return the number of partitions held."""
        await self._share.join()
        await self._pay(late_ms=PAY_MS)
        return self.held()

    def held(self) -> int:
        """Return the number of partitions held."""
        return len(self._share.parts)

    @property
    def rebalances(self) -> int:
        """How often partitions were given or taken."""
        return self._share.rebalances

    async def survey(self) -> Survey:
        """Look how far behind the partitions held are, by what the brokers have told last."""
        return await self._share.survey()

    async def release(self) -> int:
        """Leave the group; what was in hand has been settled before."""
        count = self.held()
        with suppress(errors.JournalError):  # else it is handled again: at least once
            await self._pay()
        await self._share.leave()
        return count

    # --- claims -------------------------------------------------------------------------------

    async def take(self, limit: int, version: VersionInfo) -> Batch | None:
        """Claim the events whose retry is due, else new ones."""
        await self._pay(late_ms=PAY_MS)
        return await self._take(limit, version)

    async def _take(self, limit: int, version: VersionInfo) -> Batch | None:
        self._share.check()
        return await self._take_due(limit, version) or await self._take_new(limit, version)

    def _check(self, active: int | None, version: VersionInfo) -> None:
        if active is not None and active != version.id:
            raise errors.VersionInactive(handler=self._handler, version=version.name, active=f"#{active}")

    async def _take_due(self, limit: int, version: VersionInfo) -> Batch | None:
        now = self._clock.boot_ns()
        rows: list[Row] = []
        attempts: dict[int, Attempt] = {}
        epochs: dict[int, int] = {}
        for tp, part in list(self._share.parts.items()):
            due = part.held.due(now, limit - len(rows)) if part.held.waiting else []
            suspect = bool(due) and due[0].attempt.crashes > 0
            if not due or (suspect and rows):
                continue
            if not rows:
                self._check(await self._index.active(self._handler), version)
            for entry in due:
                attempts[entry.seq] = entry.attempt._replace(number=entry.attempt.number + 1)
            tries = [
                Tried(offset_of(entry.seq), attempts[entry.seq].number, entry.attempt.crashes)
                for entry in due
            ]
            await self._index.try_again(self._handler, part.partition, tries)
            if self._share.parts.get(tp) is not part:
                continue  # given up meanwhile
            epochs[tp] = part.held.epoch
            for entry in due:
                part.held.add(Open(entry.seq, OpenState.RUNNING, attempts[entry.seq], 0, entry.key))
                rows.append(part.rows[entry.seq])
            if suspect or len(rows) >= limit:
                break
        if not rows:
            return None
        alone = any(attempts[row[0]].crashes for row in rows)
        return Batch(self._subscription.id, version, rows, attempts, alone, Token(epochs, fresh=False))

    async def _take_new(self, limit: int, version: VersionInfo) -> Batch | None:
        found: dict[int, tuple[Part, list[Reading]]] = {}
        for tp, part in self._share.parts.items():
            if limit <= 0:
                break
            if part.ready and part.waiting and may_take(part.held):
                readings = list(islice(part.waiting, limit))
                found[tp] = part, readings
                limit -= len(readings)
        if not found:
            return None
        copies = await self._look(found, version)
        rows: list[Row] = []
        epochs: dict[int, int] = {}
        for tp, (part, readings) in found.items():
            if self._share.parts.get(tp) is not part:
                continue  # given up meanwhile
            free = self._claim(part, readings, copies, version)
            if free:
                epochs[tp] = part.held.epoch
                rows += free
        self._share.see_room()
        if not rows:
            # Copies, suspects, keys that wait: nothing will settle this, and others may stand behind it.
            await self._commit(
                [], {tp for tp, (part, _) in found.items() if self._share.parts.get(tp) is part}
            )
            self._share.woken.set()
            return None
        return Batch(self._subscription.id, version, rows, token=Token(epochs, fresh=True))

    async def _look(
        self, found: dict[int, tuple[Part, list[Reading]]], version: VersionInfo
    ) -> dict[tuple[int, int], First]:
        """Index what is to be claimed, note the claims, and return which records are copies."""
        topic_id = self._log.found(self._topic).topic_id
        stretches, claims = list[Stretch](), list[Claim]()
        for part, readings in found.values():
            after, upto = offset_of(part.held.high) + 1, offset_of(readings[-1].row[0]) + 1
            seen = [one.seen for one in readings]
            stretches.append(Stretch(topic_id, part.partition, after, upto, seen))
            claims.append(Claim(self._handler, part.partition, after, upto, self._owner))
        looked = await self._log.look(self._handler, self._topic, stretches, claims)
        self._check(looked.active, version)
        return looked.copies

    def _claim(
        self,
        part: Part,
        readings: list[Reading],
        copies: dict[tuple[int, int], First],
        version: VersionInfo,
    ) -> list[Row]:
        """Move the position over records; return those that are to be run."""
        held, free, before = part.held, list[Row](), part.taken
        last = readings[-1].row[0]
        if not part.ranges or part.ranges[-1].version != version.name:
            part.ranges.append(Range(offset_of(held.high), version.name))
        for row, seen in readings:
            part.waiting.popleft()
            first = copies.get((part.partition, seen.offset))
            if first is not None and first.content == seen.content:
                continue  # a copy: handled, or being handled, where it was first
            part.taken += 1
            key = key_of(row)
            if first is not None:
                part.conflicts.append(row)
                continue
            if seen.offset < part.suspect_upto:
                entry = Open(row[0], OpenState.RETRY, Attempt(1, crashes=1), 0, key)
            elif held.blocks(key):
                entry = Open(row[0], OpenState.BLOCKED, Attempt(0), 0, key)
            else:
                free.append(row)
                continue
            part.open(row, entry)
        held.claimed_after, held.high, held.stored = held.high, last, last
        held.unsettled, part.claimed = len(free), part.taken - before
        return free

    # --- outcomes -----------------------------------------------------------------------------

    async def settle(self, parts: Sequence[tuple[Batch, Outcome]], *, limit: int = 0) -> list[Settled]:
        """Commit outcomes in one transaction with positions and ledger, then claim the next batch."""
        if self._share.poller is None:
            raise errors.JournalClosed
        tps: set[int] = set()
        settled, kept = list[Settled](), list[tuple[Batch, Outcome]]()
        for batch, outcome in parts:
            ours = still_ours(batch, self._share.parts)
            tps |= ours
            stale = frozenset(row[0] for row in batch.rows if row[1] not in ours)
            kept.append((batch, without(outcome, stale) if stale else outcome))
            settled.append(Settled(stale, {}, None))
        await self._commit(kept, tps)
        for batch, _ in parts:
            batch.token.fresh = False
        if limit:
            with suppress(errors.VersionInactive):  # the next `take` says so, to whom it concerns
                settled[-1] = settled[-1]._replace(next=await self._take(limit, parts[-1][0].version))
        return settled

    async def _commit(self, parts: Sequence[tuple[Batch, Outcome]], tps: set[int]) -> None:
        """Commit what changes in partitions; they are as before when it fails."""
        poller = self._share.poller
        if poller is None or not tps:
            return  # all of it is stale: others have done it, or will
        changed = {tp: self._share.parts[tp].copy() for tp in tps}
        records = self._conflicts_of(changed.values())
        for batch, outcome in parts:
            records += self._records_of(changed, batch, outcome)
        deliveries = self._share.deliveries
        if deliveries is None:
            await self._transact(poller, records, list(changed.values()))
        else:
            ledger = self._share.ledger
            await deliveries.deliver([one for one in records if one.topic != ledger])
            self._owed += [one for one in records if one.topic == ledger]
        for tp, part in changed.items():
            known = self._share.parts.get(tp)
            if known is not None and known.held.epoch == part.held.epoch:
                self._share.parts[tp] = part
                if deliveries is not None:
                    self._unpaid[tp] = part.held.epoch

    async def _transact(self, poller: Poller, records: list[Out], parts: Sequence[Part]) -> None:
        """Commit records with the positions of partitions and the group's offsets."""
        offsets: list[TopicPartition] = []
        for part in parts:
            position = part.position(self._clock)
            records.append(Out(self._share.ledger, part.partition, POSITION, write_position(position)))
            offsets.append(TopicPartition(self._topic.name, part.partition, position.low()))
        held = {part.partition: part.held.epoch for part in parts}

        def holds() -> bool:
            return all(poller.epochs.get(partition) == epoch for partition, epoch in held.items())

        try:
            fence = Fence(poller.committing, poller.metadata, holds)
            await self._share.transactions.commit(records, offsets, fence)
        except Unsure as fault:
            await self._share.leave()  # the ledger says what stands, to whoever gets the partitions next
            problem = "It is not known whether an outcome was committed: its partitions are read again."
            raise errors.JournalUnavailable(problem, path=self._log.address) from fault

    async def _pay(self, *, late_ms: float = 0.0) -> None:
        """At least once: commit the positions that outcomes have left behind, when they are so late.

        It is not done with the outcome: what follows is there by then, and is not to be written again because
        this fails.
        """
        now, poller = self._clock.boot_ns(), self._share.poller
        if not self._unpaid or poller is None or now < self._paid_ns + late_ms * 1e6:
            return
        # What was given up meanwhile is handled again by whoever has it.
        parts = [
            part
            for tp, epoch in self._unpaid.items()
            if (part := self._share.parts.get(tp)) is not None and part.held.epoch == epoch
        ]
        numbers = {part.partition for part in parts}
        owed = [one for one in self._owed if one.partition in numbers]
        if parts:
            await self._transact(poller, owed, parts)
        self._unpaid.clear()
        self._owed.clear()
        self._paid_ns = now

    def _records_of(self, changed: dict[int, Part], batch: Batch, outcome: Outcome) -> list[Out]:
        log = self._log
        records = [written(event, log.topic_names, log.stamps) for event in outcome.emitted]
        for letter in outcome.dead:
            partition = changed[letter.row[1]].partition
            records.append(dead_record(self._topic.name, partition, letter, log.stamps))
        records += [
            out._replace(topic=self._share.ledger) for out in apply(changed, batch, outcome, self._clock)
        ]
        return records

    def _conflicts_of(self, parts: Iterable[Part]) -> list[Out]:
        """Events whose id is taken by other content become dead letters."""
        records: list[Out] = []
        for part in parts:
            for row in part.conflicts:
                part.dead += 1
                fault = errors.EventConflict(event_id=text_of(row[2]), topic=self._topic.name)
                letter = DeadLetter(row, "conflict", fault.code, str(fault), "", Attempt(0))
                name = self._topic.name
                records.append(dead_record(name, part.partition, letter, self._log.stamps))
            part.conflicts.clear()
        return records

    # --- waiting ------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        """Return when there may be something to take, at the latest after ``seconds``."""
        first = self.next_due_ns()
        if first is not None:
            seconds = min(seconds, max(DUE_LOOK_S, (first - self._clock.boot_ns()) / 1e9))
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._share.woken.wait()
        self._share.woken.clear()

    def wake(self) -> None:
        """Have `wait` return."""
        self._share.woken.set()

    def more(self) -> bool:
        """Return whether `take` may find something at once."""
        parts = self._share.parts.values()
        return any(part.ready and part.waiting and may_take(part.held) for part in parts)

    def next_due_ns(self) -> int | None:
        """Return when the earliest waiting event may run, on the boot clock."""
        due = [part.held.next_due_ns() for part in self._share.parts.values() if part.held.waiting]
        return min((one for one in due if one is not None), default=None)
