"""One worker's share of one subscription: leases, claims and outcomes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from operator import itemgetter
from typing import TypeVar

import apsw

from headrace import errors
from headrace.journal.connection import Connection, Disk, Patience
from headrace.journal.file import mapped
from headrace.journal.held import Held, Open, awoken, next_due_ns
from headrace.journal.notify import Tell
from headrace.journal.progress import surveyed
from headrace.journal.redrive import less_replayed
from headrace.journal.scan import Found, Scan
from headrace.journal.settle import Token, conflicts, key_of, put_open, topics_of, without, write_outcome
from headrace.journal.takeover import fair_share, give_back, load_open, take_over
from headrace.journal.versions import Versions
from headrace.ports import (
    Attempt,
    Batch,
    OpenState,
    Outcome,
    Row,
    Settled,
    Subscription,
    Survey,
    VersionInfo,
)

T = TypeVar("T")

#: Offsets of other partitions that a successor may have to read again.
SKIP_STORED = 10_000
#: What is finished waits at most this long for the rest of its batch before it is committed.
SETTLE_AFTER_MS = 10.0
#: Looks of one claim that may bring only events whose keys wait, before it ends and is repeated.
LOOKS_MAX = 16


class SqliteConsumer:
    """Claims events of the partitions it leases and commits what they came to."""

    claims_apart = False  # one write lock, one flush for both
    settle_after_ms = SETTLE_AFTER_MS

    def __init__(
        self, db: Connection, worker: int, subscription: Subscription, audience: set[SqliteConsumer]
    ) -> None:
        self._db, self._queries, self._patience = db, db.queries, Patience(db.clock)
        self._worker = worker
        self._sub = subscription.id
        self._subscription = subscription
        self._parts: dict[int, Held] = {}
        self._scan = Scan(db, subscription.topic.id, subscription.topic.partitions)
        self._woken = asyncio.Event()
        self._joined = False
        self._told = True
        self._skipped = 0
        self._known = frozenset[int]()
        self.rebalances = 0
        self._audience = audience  # those who are told of commits

    # --- leases -------------------------------------------------------------------------------

    async def balance(self) -> int:
        """Take free and expired partitions up to the fair share, mark surplus as leaving."""
        if self._db.row(self._queries.member_known, (self._sub, self._worker)) is None:
            # New, or forgotten after a long stop.
            join = partial(self._db.ex, self._queries.member_add, (self._sub, self._worker))
            await self._db.write(join, disk=Disk.SOON, tell=False, patience=self._patience)
        self._joined = True
        self._audience.add(self)
        forgotten = self._drop_lost()
        self._see_redriven()
        self._scan.seen_all = False  # should a commit ever go by unheard
        quota = fair_share(self._db, self._subscription)
        staying = [held for held in self._parts.values() if not held.leaving]
        if len(staying) < quota or forgotten:
            await self._take_free(forgotten, max(0, quota - len(staying) - len(forgotten)))
        for held in staying[quota:]:
            held.leaving = True
        await self._release_leaving()
        self.rebalances += self._known != self._parts.keys()
        self._known = frozenset(self._parts)
        return len(self._parts)

    def _now(self) -> tuple[str, int]:
        return self._db.clock.boot_id(), self._db.clock.boot_ns()

    def _drop_lost(self) -> list[int]:
        """Forget partitions that others own by now; return those that are ours without our knowing it."""
        mine: dict[int, int] = dict(self._db.rows(self._queries.positions_mine, (self._sub, self._worker)))
        for tp, held in list(self._parts.items()):
            if mine.get(tp) != held.epoch:
                del self._parts[tp]
        return [tp for tp in mine if tp not in self._parts]

    async def _take_free(self, forgotten: list[int], count: int) -> None:
        boot, now = self._now()
        free = self._db.rows(self._queries.positions_free, (self._sub, boot, now, count + len(self._parts)))
        wanted = [
            *forgotten,
            *[tp for (tp,) in free if tp not in self._parts and tp not in forgotten][:count],
        ]
        if wanted:
            taken = await self._db.write(
                lambda: [take_over(self._db, self._sub, self._worker, tp) for tp in wanted],
                disk=Disk.SOON, tell=False, patience=self._patience,
            )  # fmt: skip
            self._db.faults.at("balance.committed")
            for held in taken:
                if held is not None:
                    self._parts[held.tp] = held
                    self._scan.behind.add(held.tp)

    def _see_redriven(self) -> None:
        """Learn of events that another process made waiting again."""
        for tp, seq in self._db.rows(self._queries.open_redriven, (self._sub,)):
            held = self._parts.get(tp)
            if held is not None and seq not in held.open:
                for entry in load_open(self._db, self._sub, tp):
                    if entry.seq not in held.open:
                        held.add(entry)
        self._told = False  # only now: it may have failed

    async def _release_leaving(self) -> None:
        leaving = [held for held in self._parts.values() if held.leaving and not held.running()]
        if leaving:
            await self._give_back(leaving)

    async def _give_back(self, parts: list[Held]) -> int:
        work = partial(give_back, self._db, self._sub, self._worker, parts)
        freed = await self._db.write(work, disk=Disk.SOON, patience=self._patience)
        for tp in freed:
            self._parts.pop(tp, None)
        self._db.faults.at("release.committed")
        return len(freed)

    def held(self) -> int:
        """Return the number of partitions held."""
        return len(self._parts)

    async def survey(self) -> Survey:
        """Look how far behind the partitions held are."""
        return await surveyed(self._db, self._subscription, self._worker)

    async def answers(self) -> None:
        """Ask the file."""
        self._db.changed_elsewhere()

    async def release(self) -> int:
        """Hand back every partition and leave the subscription; harmless when that is done."""
        self._audience.discard(self)
        if not self._joined:
            return 0
        freed = await self._give_back(list(self._parts.values()))
        leave = partial(self._db.ex, self._queries.member_remove, (self._sub, self._worker))
        await self._db.write(leave, disk=Disk.SOON, tell=False, patience=self._patience)
        self._joined = False
        return freed

    # --- claims -------------------------------------------------------------------------------

    async def take(self, limit: int, version: VersionInfo) -> Batch | None:
        """Claim the events whose retry is due, else new ones."""
        self._db.check_disk()  # an idle worker writes nothing, and would not notice
        found = None
        if not self._anything_due():
            # What is read here stays true: events do not change, and nobody else takes from our partitions.
            found = self._look(limit)
            while self._scan.more and not found:
                await asyncio.sleep(0)  # what was passed over belongs to others; ours may stand behind it
                found = self._look(limit)
            if not found:
                if self._told:
                    self._see_redriven()
                if not self._anything_due():
                    return None
        claim = partial(self._claim, limit, version, found)
        batch = await self._transact(claim, disk=Disk.LATER, tell=False)
        self._db.faults.at("claim.committed")
        return batch

    def _anything_due(self) -> bool:
        waiting = [held for held in self._parts.values() if held.waiting]
        return bool(waiting) and any(held.due(self._db.clock.boot_ns(), 1) for held in waiting)

    def _look(self, limit: int) -> dict[int, Found]:
        """Return the next events, without the write lock."""
        with mapped(self._db.path):
            return self._scan.look(self._parts, limit)

    def _claim(self, limit: int, version: VersionInfo, found: dict[int, Found] | None = None) -> Batch | None:
        """Inside a transaction: pin the version, then claim."""
        self._db.faults.at("claim.begin")
        active = self._db.row(self._queries.active, (self._sub,))[0]
        if active != version.id:
            raise errors.VersionInactive(
                handler=self._subscription.handler,
                version=version.name,
                active=Versions(self._db).info(active).name,
            )
        batch = self._claim_due(limit, version) or self._claim_new(limit, version, found)
        self._db.faults.at("claim.written")
        return batch

    def _claim_due(self, limit: int, version: VersionInfo) -> Batch | None:
        now = self._db.clock.boot_ns()
        rows: list[Row] = []
        attempts: dict[int, Attempt] = {}
        epochs: dict[int, int] = {}
        for held in list(self._parts.values()):
            due = held.due(now, limit - len(rows)) if held.waiting else []
            suspect = bool(due) and due[0].attempt.crashes > 0
            if not due or (suspect and rows):
                continue
            due = less_replayed(self._db, self._sub, self._worker, self._parts, held, due, version)
            if due:
                epochs[held.tp] = held.epoch
                self._start(self._parts[held.tp], due, rows, attempts)
            if (suspect and due) or len(rows) >= limit:
                break
        if not rows:
            return None
        alone = any(attempt.crashes for attempt in attempts.values())
        return Batch(self._sub, version, rows, attempts, alone, Token(epochs, fresh=False))

    def _start(self, held: Held, due: list[Open], rows: list[Row], attempts: dict[int, Attempt]) -> None:
        bindings = (len(due), self._sub, held.tp, self._worker, held.epoch)
        if self._db.row(self._queries.position_running, bindings) is None:
            self._parts.pop(held.tp)
            return
        held = self._parts[held.tp] = held.copy()
        for entry in due:
            row = self._db.row(self._queries.claim_row, (entry.seq,))
            number, crashes, generation, told = self._db.row(
                self._queries.claim_open, (self._sub, held.tp, entry.seq)
            )
            attempt = Attempt(number, crashes, generation, tuple(json.loads(told)))
            held.add(Open(entry.seq, OpenState.RUNNING, attempt, 0, entry.key))
            rows.append(row)
            attempts[entry.seq] = attempt

    def _claim_new(self, limit: int, version: VersionInfo, found: dict[int, Found] | None) -> Batch | None:
        for _ in range(LOOKS_MAX):
            if found is None:
                found = self._scan.look(self._parts, limit)
            rows: list[Row] = []
            epochs: dict[int, int] = {}
            for tp, (events, upto) in found.items():
                held = self._parts.get(tp)
                # It may have been lost meanwhile.
                if held is not None and self._claim_range(held, events, upto, rows, version):
                    epochs[tp] = held.epoch
            self._skip()
            if rows:
                rows.sort(key=itemgetter(0))  # in commit order over the partitions
                return Batch(self._sub, version, rows, token=Token(epochs, fresh=True))
            if not found:
                return None
            found = None  # all of these wait for their keys; others may stand behind them
        self._woken.set()
        return None

    def _skip(self) -> None:
        """Now and then, move the positions that have had no events: a successor need not read all again."""
        upto = self._scan.cursor or 0
        if upto - self._skipped <= SKIP_STORED:
            return
        self._skipped = upto
        for tp, held in list(self._parts.items()):
            if tp not in self._scan.behind and held.high < upto and not held.unsettled:
                moved = self._parts[tp] = held.copy()
                moved.high = moved.stored = upto
                bindings = (upto, self._sub, tp, self._worker, held.epoch)
                self._db.ex(self._queries.position_skip, bindings)

    def _claim_range(
        self, held: Held, found: list[Row], upto: int, rows: list[Row], version: VersionInfo
    ) -> bool:
        """Move the position over the rows; those whose key is taken stay open, the others are to be run.

        Returns whether there are others: without, nothing of the range is in hand, and no outcome may end it.
        """
        held = self._parts[held.tp] = held.copy()
        blocked = [row for row in found if held.blocks(key_of(row[5]))] if held.lines else []
        free = [row for row in found if row not in blocked] if blocked else found
        bindings = (upto, len(found), len(free), version.id, self._sub, held.tp, self._worker, held.epoch)
        if self._db.row(self._queries.claim_range, bindings) is None:
            self._parts.pop(held.tp)
            return False
        if held.version != version.id:
            self._db.ex(self._queries.range_add, (self._sub, held.tp, held.high, version.id))
        for row in blocked:
            put_open(
                self._db, self._sub, held, Open(row[0], OpenState.BLOCKED, Attempt(0), 0, key_of(row[5]))
            )
        if not free:  # nothing runs, so nothing will settle the range
            self._db.ex(self._queries.settle_range, (0, 0, 0, self._sub, held.tp, self._worker, held.epoch))
        held.claimed_after, held.high, held.stored = held.stored, upto, upto
        self._scan.claimed(held.tp, upto)
        held.version, held.unsettled = version.id, len(free)
        rows += free
        return bool(free)

    # --- outcomes -----------------------------------------------------------------------------

    async def settle(self, parts: Sequence[tuple[Batch, Outcome]], *, limit: int = 0) -> list[Settled]:
        """Commit outcomes and claim the next batch, in one transaction and with one flush."""
        settle = partial(self._transact, tell=topics_of(parts), quiet=_nothing_follows)
        try:
            settled = await settle(partial(self._settle, parts, limit, careful=False))
        except apsw.ConstraintError:
            with mapped(self._db.path):  # what is still refused is no id that was taken
                settled = await settle(partial(self._settle, parts, limit, careful=True))
        self._db.faults.at("settle.committed")
        for batch, _ in parts:
            batch.token.fresh = False
        # The outcomes stand: a fault here must not have them settled again.  `balance` tries again.
        with suppress(errors.JournalError):
            await self._release_leaving()
        return settled

    def _settle(self, parts: Sequence[tuple[Batch, Outcome]], limit: int, *, careful: bool) -> list[Settled]:
        """Inside a transaction; with ``careful`` what emits an id that is taken is left out and told."""
        settled: list[Settled] = []
        for batch, outcome in parts:
            taken = conflicts(self._db, outcome) if careful else {}
            kept = without(outcome, taken.keys()) if taken else outcome
            stale = write_outcome(self._db, self._sub, self._worker, self._parts, batch, kept)
            settled.append(Settled(stale, taken, None))
        if limit and self.more():
            with suppress(errors.VersionInactive):  # the next `take` says so, to whom it concerns
                settled[-1] = settled[-1]._replace(next=self._claim(limit, parts[-1][0].version))
        return settled

    async def _transact(
        self,
        work: Callable[[], T],
        *,
        disk: Disk = Disk.SOON,
        tell: Tell,
        quiet: Callable[[T], bool] = lambda _: False,
    ) -> T:
        """Write, and go back to what was known before when the transaction fails."""
        parts, mark = self._parts, self._scan.mark()

        def attempt() -> T:
            if self._parts is not parts:
                self._scan.back(mark)
            self._parts = parts.copy()  # what it holds is copied before it is changed
            return work()

        try:
            return await self._db.write(attempt, disk=disk, tell=tell, quiet=quiet, patience=self._patience)
        except BaseException:
            self._parts = parts
            self._scan.back(mark)
            raise

    async def wait(self, seconds: float) -> None:
        """Return on a commit here or elsewhere, when a retry is due, or after ``seconds``."""
        await awoken(self._woken, seconds, self.next_due_ns(), self._db.clock)

    def hurry(self, within_s: float) -> None:
        """Wait so much longer at most while others write."""
        self._patience.hurry(within_s)

    def wake(self) -> None:
        """Have `wait` return."""
        self._woken.set()

    def more(self) -> bool:
        """Return whether there may be events that were not looked at, or that may run by now."""
        return not self._scan.seen_all or bool(self._scan.behind) or self._anything_due()

    def hear(self, tell: Tell) -> None:
        """Take note of a commit: of one that may have added events to the given topics, or to any."""
        if tell is True or (tell and self._subscription.topic.id in tell):
            self._told |= tell is True  # else they are new, and none that wait again
            self._scan.seen_all = False
            self._woken.set()

    def next_due_ns(self) -> int | None:
        """Return when the earliest waiting event may run, on the boot clock."""
        return next_due_ns(self._parts.values())


def _nothing_follows(settled: list[Settled]) -> bool:
    return settled[-1].next is None
