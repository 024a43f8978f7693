"""One worker's share of one subscription on Kafka: assignments, claims and outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

from confluent_kafka import TopicPartition

from headrace import errors
from headrace.event.lineage import text_of
from headrace.journal.held import Open, awoken, next_due_ns
from headrace.journal.kafka.ahead import Ahead, Chosen, Noted
from headrace.journal.kafka.decisions import Plan
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.outcome import (
    Origin,
    apply,
    buried,
    dead_record,
    fitting,
    key_of,
    still_ours,
    trimmed,
)
from headrace.journal.kafka.parents import Answer, Parked
from headrace.journal.kafka.part import Part
from headrace.journal.kafka.produce import Out
from headrace.journal.kafka.rows import Reading, offset_of, written
from headrace.journal.kafka.share import PAY_MS, KafkaWorker, Share, Wish
from headrace.journal.kafka.topics import split_name
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
from headrace.ports.index import Tried

#: A transaction takes some milliseconds, however little is in it: what is finished waits longer for the rest.
SETTLE_AFTER_MS = 30.0


class KafkaConsumer:
    """Claims events of the partitions assigned to it and commits what they came to."""

    claims_apart = True
    settle_after_ms = SETTLE_AFTER_MS

    def __init__(self, log: Log, worker: KafkaWorker, subscription: Subscription, wish: Wish) -> None:
        self._log, self._index, self._clock = log, log.index, log.clock
        self._owner, self._subscription = worker.name, subscription
        self._handler, self._topic = subscription.handler, subscription.topic
        self._share = Share(log, worker, subscription, wish)
        self._ahead = Ahead(log, subscription.handler, subscription.topic, self._share, worker.name)
        #: Claims and the beginnings of outcomes come one after the other.
        self._turn = asyncio.Lock()

    # --- the group ----------------------------------------------------------------------------

    async def balance(self) -> int:
        """Join the group, if that is not done; return the number of partitions held."""
        await self._share.join()
        await self._share.pay(late_ms=PAY_MS)
        # Whoever activated a version may have died before the index showed it; or the index was set back.
        await self._log.versions.catch_up()
        await self._forget_tries()
        return self.held()

    async def _forget_tries(self) -> None:
        """Tell the index which attempts are of no interest any more: those of what is closed."""
        for part in [one for one in self._share.parts.values() if one.tried]:
            part.tried = bool(part.held.open)
            await self._index.finished(self._handler, part.partition, part.position(self._clock).low())

    def held(self) -> int:
        """Return the number of partitions held."""
        return len(self._share.parts)

    @property
    def rebalances(self) -> int:
        """How often partitions were given or taken."""
        return self._share.rebalances

    def hurry(self, within_s: float) -> None:
        """Do nothing: brokers have no lock that another process could hold."""

    async def survey(self) -> Survey:
        """Look how far behind the partitions held are, by what the brokers have told last."""
        return await self._share.survey()

    async def answers(self) -> None:
        """Ask the brokers and the index."""
        await self._log.answers(self._handler)

    async def release(self) -> int:
        """Leave the group; what was in hand has been settled before."""
        count = self.held()
        self._ahead.stop()
        await self._share.pay_up()
        await self._share.leave()
        return count

    # --- claims -------------------------------------------------------------------------------

    async def take(self, limit: int, version: VersionInfo) -> Batch | None:
        """Claim the events whose retry is due, else new ones."""
        async with self._turn:
            await self._share.pay(late_ms=PAY_MS)
            return await self._take(limit, version)

    async def _take(self, limit: int, version: VersionInfo) -> Batch | None:
        self._share.check()
        await self._write_down()
        while True:
            due = await self._take_due(limit, version)
            found, moved = (due, False) if due is not None else await self._take_new(limit, version)
            if found is not None or not moved:
                return found

    async def _write_down(self) -> None:
        """Commit what no handler has made: decisions about dead letters, and what retention has eaten."""
        answers, standing = self._share.parents.answers, self._share.standing
        for _ in range(len(answers)):
            answer = answers.popleft()
            answers.append(answer) if answer.parked.tp in standing else self._answered(answer)
        parts = {tp: part for tp, part in self._share.parts.items() if part.ready and tp not in standing}
        await self._commit([], {tp for tp, part in parts.items() if part.changed})
        for tp, part in parts.items():
            if part.asked:
                await self._carry_out(tp)

    async def _carry_out(self, tp: int) -> None:
        """Do what was decided about dead letters of a partition."""
        part = self._share.parts.get(tp)
        if part is None:
            return  # given up meanwhile
        plan = await self._share.decisions.plan(part)
        tries = [Tried(offset, 0, 0) for offset in plan.redriven()]  # attempts are counted anew
        if tries:
            await self._index.try_again(self._handler, part.partition, tries)
        self._log.faults.at("decide.noted")
        if self._share.parts.get(tp) is part:
            await self._commit([], {tp}, plan)

    def _answered(self, answer: Answer) -> None:
        """Let an event that was parked take its turn, or bury it: the parent that it names is nowhere."""
        (tp, epoch, row), missing = answer
        part = self._share.parts.get(tp)
        if part is None or part.held.epoch != epoch or row[0] not in part.held.open:
            return  # given up meanwhile
        entry = part.held.open[row[0]]
        if missing is None:
            state = OpenState.RETRY if entry.attempt.crashes else OpenState.BLOCKED
            part.held.add(Open(row[0], state, entry.attempt, 0, entry.key))
            return
        fault = errors.ParentMissing(event_id=text_of(row[2]), parent_id=text_of(missing))
        part.buried.append(DeadLetter(row, "orphan", fault.code, str(fault), "", entry.attempt))
        part.changed = True

    def _check(self, active: int | None, version: VersionInfo) -> None:
        if active is not None and active != version.id:
            raise errors.VersionInactive(handler=self._handler, version=version.name, active=f"#{active}")

    async def _take_due(self, limit: int, version: VersionInfo) -> Batch | None:
        now = self._clock.boot_ns()
        rows, attempts, epochs = list[Row](), dict[int, Attempt](), dict[int, int]()
        for tp, part in list(self._share.parts.items()):
            stands = tp in self._share.standing or self._share.parts.get(tp) is not part
            due = part.held.due(now, limit - len(rows)) if part.held.waiting and not stands else []
            suspect = bool(due) and due[0].attempt.crashes > 0
            if not due or (suspect and rows):
                continue
            if not rows:
                self._check(await self._log.active(self._handler), version)
            attempts |= {one.seq: one.attempt._replace(number=one.attempt.number + 1) for one in due}
            tries = [Tried(offset_of(one.seq), attempts[one.seq].number, one.attempt.crashes) for one in due]
            if not await self._noted(part, tries, needed=not rows):
                break
            if self._share.parts.get(tp) is not part:
                continue  # given up meanwhile
            epochs[tp] = part.held.epoch
            part.tried = True
            for entry in due:
                part.held.add(Open(entry.seq, OpenState.RUNNING, attempts[entry.seq], 0, entry.key))
                rows.append(part.rows[entry.seq])
            if suspect or len(rows) >= limit:
                break
        if not rows:
            return None
        alone = any(attempts[row[0]].crashes for row in rows)
        return Batch(self._subscription.id, version, rows, attempts, alone, Token(epochs, fresh=False))

    async def _noted(self, part: Part, tries: Sequence[Tried], *, needed: bool) -> bool:
        """Note attempts; where others were taken already, and have to be run, an outage is an answer."""
        try:
            await self._index.try_again(self._handler, part.partition, tries)
        except errors.JournalError:
            if needed:
                raise
            return False
        return True

    async def _take_new(self, limit: int, version: VersionInfo) -> tuple[Batch | None, bool]:
        """Claim new events; say also whether the position has moved though there was nothing to run."""
        noted = await self._ahead.claimed(limit)
        if noted is None:
            return None, False
        found = await self._agreed(noted, version)
        if not found:
            return None, True
        absent = await self._share.parents.absent(one.row for _, some in found.values() for one in some)
        rows: list[Row] = []
        epochs: dict[int, int] = {}
        for tp, (part, readings) in found.items():
            if self._share.parts.get(tp) is not part:
                continue  # given up meanwhile
            free = self._claim(part, readings, absent, version)
            if free:
                epochs[tp] = part.held.epoch
                rows += free
        self._share.see_room()
        if not rows:
            # Copies, suspects, keys that wait: nothing will settle this, and others may stand behind it.
            await self._commit(
                [], {tp for tp, (part, _) in found.items() if self._share.parts.get(tp) is part}
            )
            return None, True
        self._ahead.begin(limit)
        return Batch(self._subscription.id, version, rows, token=Token(epochs, fresh=True)), False

    async def _agreed(self, noted: Noted, version: VersionInfo) -> Chosen:
        """Return the records that may be run under a version; raises `VersionInactive`."""
        found, claims, looked = noted
        try:
            self._check(looked.active, version)
        except errors.VersionInactive:  # none of it was begun: nobody is to suspect it
            await self._index.look(self._handler, [], [one._replace(upto=one.after) for one in claims])
            raise
        for tp, (part, _) in list(found.items() if looked.refused else ()):
            if part.partition in looked.refused:
                # One who had it before was so slow that it took it over after us: once more, it is ours.
                del found[tp]
                await self._share.take_over(part)
        return found

    def _claim(
        self,
        part: Part,
        readings: list[Reading],
        absent: set[int],
        version: VersionInfo,
    ) -> list[Row]:
        """Move the position over records; return those that are to be run."""
        held, free, before = part.held, list[Row](), part.taken
        last = readings[-1].row[0]
        part.claim_under(version.name)
        for row, seen in readings:
            first = part.waiting.pop()
            if (first is not None and first.content == seen.content) or not part.wants(seen.offset):
                continue  # a copy: handled, or being handled, where it was first; or not for this replay
            part.taken += 1
            key = key_of(row)
            if first is not None:
                fault = errors.EventConflict(event_id=text_of(row[2]), topic=self._topic.name)
                part.buried.append(DeadLetter(row, "conflict", fault.code, str(fault), "", Attempt(0)))
                continue
            suspect = seen.offset < part.suspect_upto
            if row[0] in absent:
                attempt = Attempt(1, crashes=1) if suspect else Attempt(0)
                entry = Open(row[0], OpenState.PARKED, attempt, 0, key)
                self._share.parents.search([Parked(row[1], held.epoch, row)])
            elif suspect:
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
        """Commit outcomes in one transaction with positions and ledger, then claim the next batch.

        Outcomes of a membership that has ended meanwhile are stale, as all others of lost partitions.  While
        it is under way events of other partitions may be claimed.
        """
        tps: set[int] = set()
        settled, kept = list[Settled](), list[tuple[Batch, Outcome]]()
        async with self._turn:
            for batch, outcome in parts:
                ours = still_ours(batch, self._share.parts)
                tps |= ours
                stale = frozenset(row[0] for row in batch.rows if row[1] not in ours)
                kept.append((batch, fitting(batch, without(outcome, stale) if stale else outcome, self._log)))
                settled.append(Settled(stale, {}, None))
            assert not self._share.standing, "one outcome is written at a time"
            self._share.standing = tps
        try:
            await self._commit(kept, tps)
        finally:
            self._share.standing = set()
        for batch, _ in parts:
            batch.token.fresh = False
        if limit:
            # What is settled stands; the next `take` says what is wrong.
            with suppress(errors.JournalError, errors.VersionInactive):
                settled[-1] = settled[-1]._replace(next=await self.take(limit, parts[-1][0].version))
        return settled

    async def _commit(
        self, parts: Sequence[tuple[Batch, Outcome]], tps: set[int], plan: Plan | None = None
    ) -> None:
        """Commit what changes in partitions; they are as before when it fails.

        A plan is about the one partition that is named.
        """
        poller = self._share.poller
        if poller is None or not tps:
            return  # all of it is stale: others have done it, or will
        changed = {tp: self._share.parts[tp].copy() for tp in tps}
        records, offsets = list[Out](), list[TopicPartition]()
        for batch, outcome in parts:
            records += self._records_of(changed, batch, outcome)
        if plan is not None:
            (part,) = changed.values()
            records += plan.apply(part, self._share.own.ledger)
            offsets.append(TopicPartition(self._share.own.commands, part.partition, plan.upto))
        for part in changed.values():
            records += buried(self._origin(), part, self._log)
            part.changed = False
        # What a person has decided is always committed whole.
        deliveries = self._share.deliveries if plan is None else None
        if deliveries is None:
            await self._share.transact(poller, records, list(changed.values()), offsets)
        else:
            ledger = self._share.own.ledger
            await deliveries.deliver([one for one in records if one.topic != ledger])
            self._share.owed += [one for one in records if one.topic == ledger]
        for tp, part in changed.items():
            for _ in range(plan.records if plan else 0):
                part.asked.popleft()
            known = self._share.parts.get(tp)
            if known is not None and known.held.epoch == part.held.epoch:
                self._share.parts[tp] = part
                if deliveries is not None:
                    self._share.unpaid[tp] = part.held.epoch

    def _origin(self) -> Origin:
        topic_id, (handler, replay) = self._log.found(self._topic).topic_id, split_name(self._handler)
        return Origin(handler, self._topic.name, topic_id, self._log.stamps, replay, self._share.where)

    def _records_of(self, changed: dict[int, Part], batch: Batch, outcome: Outcome) -> list[Out]:
        log = self._log
        records = [written(event, log.topic_names, log.stamps) for event in outcome.emitted]
        for letter in outcome.dead:
            partition = changed[letter.row[1]].partition
            records.append(trimmed(dead_record(self._origin(), partition, letter, batch.version.name), log))
        records += [
            out._replace(topic=self._share.own.ledger) for out in apply(changed, batch, outcome, self._clock)
        ]
        return records

    # --- waiting ------------------------------------------------------------------------------

    async def wait(self, seconds: float) -> None:
        """Return when there may be something to take, at the latest after ``seconds``."""
        await awoken(self._share.woken, seconds, self.next_due_ns(), self._clock)

    def wake(self) -> None:
        """Have `wait` return."""
        self._share.woken.set()

    def more(self) -> bool:
        """Return whether `take` may find something at once."""
        return bool(self._share.parents.answers) or any(
            part.ready and (part.asked or part.changed or (part.waiting.records and may_take(part.held)))
            for part in self._share.parts.values()
        )

    def next_due_ns(self) -> int | None:
        """Return when the earliest waiting event may run, on the boot clock."""
        return next_due_ns(part.held for part in self._share.parts.values())
