"""One SQLite file, written in short transactions that are flushed after the lock is let go."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import sys
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import apsw

from headrace import errors
from headrace.journal.disk import Checkpointer, Flusher, room_bytes
from headrace.journal.file import JOURNAL, MEMORY, Form, mapped, open_file, prepare, translated
from headrace.journal.notify import ALL, Notifier, Tell, notify_path
from headrace.journal.queries import load
from headrace.ports import Chance, Clock, Faults

T = TypeVar("T")
_log = logging.getLogger("headrace.journal")

#: How long a call waits for another process that writes, before it gives up with `JournalBusy`.
BUSY_WAIT_S_MAX = 30.0
#: While another process writes, the lock is tried again after a jittered wait (measured: p99 14-20 ms beside
#: a saturated writer, against 34 ms with SQLite's own busy handler).  The first few waits block the thread:
#: a commit holds the lock for 0.1 to 0.5 ms, and the event loop cannot wait for less than 1 ms (epoll).
BUSY_NAP_S_MIN, BUSY_NAP_S_MAX = 0.00005, 0.0003
BUSY_NAPS_MAX = 12
BUSY_SLEEP_S_MAX = 0.002
#: WAL pages of 4 KiB after which a checkpoint runs beside the work, and after which it runs in its way.  The
#: same few pages are written again and again: at 1,500 there are three a second at 500 events a second, each
#: with flushes of its own, and the p95 of latency is a quarter higher (measured).
WAL_PAGES_SOFT, WAL_PAGES_HARD = 6_000, 12_000
#: 64 MiB: as large as the WAL is left on disk (journal_size_limit).  Above it something is wrong, and is told
#: once a minute.
WAL_PAGES_WARN = 16_384
WARN_NS_MIN = 60_000_000_000
#: A checkpoint that a reader holds up is repeated when the WAL has grown so much more, not at every commit.
WAL_PAGES_STEP = 1_500
#: The same where the disk has little room: the WAL must not take what the file itself needs to grow, for then
#: no checkpoint gets through any more.  1 MiB; after as much more it runs in the way of the work.
WAL_PAGES_SHORT = 250
#: 94 MiB: little room is less than twice what the WAL takes elsewhere.  Looked at when the file is opened, at
#: each checkpoint, and when the disk was full.
ROOM_BYTES_MIN = 2 * WAL_PAGES_HARD * 4096
#: Rows per multi-row INSERT: binding costs less than stepping.
_CHUNKS = (100, 64, 32, 16, 8, 4, 2, 1)


class Disk(Enum):
    """When a commit is flushed.  A process kill loses nothing either way, a power cut what is not on disk."""

    #: Before `Connection.write` returns: somebody will be told that it stands.
    NOW = "now"
    #: At once too, but nobody waits for it: losing it would mean to do the same again.
    SOON = "soon"
    #: Together with a later commit.
    LATER = "later"


class Patience:
    """How long a writer may still wait for the lock: less than others once it has to stop."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._until_ns = clock, sys.maxsize

    def hurry(self, within_s: float) -> None:
        """Wait so much longer at most, also where that has begun; each write is tried at least once."""
        self._until_ns = self._clock.boot_ns() + int(within_s * 1e9)

    def ended(self, until_ns: int) -> bool:
        """Return whether the time is over, which would else last until then."""
        return self._clock.boot_ns() > min(until_ns, self._until_ns)


class Connection:
    """The write connection of a process, and the rules for using it."""

    def __init__(
        self,
        path: str,
        *,
        durability: str,
        clock: Clock,
        chance: Chance,
        faults: Faults,
        form: Form = JOURNAL,
    ) -> None:
        self.path = path
        self.memory = path == MEMORY
        self._durable = durability != "normal"
        self.clock, self.chance, self.faults = clock, chance, faults
        self.queries: Any = load("queries.sql")
        self._pid = os.getpid()
        self._closed = False
        self._wal_pages = 0
        self._wal_pages_due = WAL_PAGES_SOFT  # the next checkpoint
        self._short = False  # of room: the WAL is kept small
        self._was_full = False
        self._warned_ns = -WARN_NS_MIN
        self._many: dict[tuple[str, int], str] = {}
        self._checkpointer: Checkpointer | None = None
        self._flusher: Flusher | None = None
        self._notifier: Notifier | None = None
        self.on_commit: Callable[[Tell], None] = _nothing
        with mapped(path):
            self._db = open_file(path)
            #: Where it lies, whatever link or relative path led there: other files lie beside it.
            self.file = self._db.filename or MEMORY
            try:
                self._set_up(form)
            except BaseException:
                self.close()
                raise

    def _set_up(self, form: Form) -> None:
        # Plans do not depend on bindings; else a statement whose LIMIT or range changes is compiled anew at
        # every call (measured: a tenth of a busy worker's time).
        self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
        self.ex = self._db.execute
        prepare(self._db, self.path, self.clock, form)
        self.ex("PRAGMA synchronous=NORMAL")
        self.ex("PRAGMA busy_timeout=0")
        if not self.memory:
            self._db.set_wal_hook(self._saw_wal)
            self._checkpointer = Checkpointer(self.file)
            self._look_at_room()
            if self._short:  # who was here before may have left a large WAL
                self._restart_wal()
            if form is JOURNAL:  # nobody waits for news from another file
                mode = stat.S_IMODE(Path(self.file).stat().st_mode)
                self._notifier = Notifier(notify_path(self.file), mode)
            if self._durable:
                flushed = self._notifier.flushed if self._notifier is not None else _silent
                self._flusher = Flusher(self.file, self.clock, flushed)

    def _saw_wal(self, _db: object, _name: str, pages: int) -> int:
        if pages < self._wal_pages:  # it has begun anew
            self._wal_pages_due = WAL_PAGES_SHORT if self._short else WAL_PAGES_SOFT
        self._wal_pages = pages
        return 0

    def _look_at_room(self) -> None:
        """See how much room the disk has, and keep the WAL accordingly."""
        self._short = room_bytes(self.file) < ROOM_BYTES_MIN
        if self._short:
            self._wal_pages_due = min(self._wal_pages_due, self._wal_pages + WAL_PAGES_SHORT)
        self.ex(self.queries.keep_wal_short if self._short else self.queries.keep_wal).fetchall()

    def _restart_wal(self) -> None:
        """Have the next commit begin the WAL anew, if nobody is in the way."""
        # A fault here (busy, full) is met again by the next writer, who reports it.
        with suppress(apsw.Error):
            self.ex(self.queries.checkpoint_restart).fetchall()

    def rows(self, sql: str, bindings: Sequence[Any] = ()) -> list[Any]:
        """Return all rows; nothing keeps a read transaction open across an ``await``.

        Outside of `write` a fault is raised as the coded error; inside, `write` has to see SQLite's own.
        """
        try:
            return self.ex(sql, bindings).fetchall()
        except apsw.Error as fault:
            if not self._closed and self._db.in_transaction:
                raise
            raise translated(fault, self.path) from fault

    def row(self, sql: str, bindings: Sequence[Any] = ()) -> Any:
        """Return the first row or ``None``; faults as in `rows`."""
        found = self.rows(sql, bindings)
        return found[0] if found else None

    def many(self, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Insert rows with as few statements as possible; the SQL ends in ``VALUES (?, ...)``."""
        done, left = 0, len(rows)
        for chunk in _CHUNKS:
            while left >= chunk:
                text = self._many.get((sql, chunk)) or self._repeat(sql, chunk)
                self.ex(text, [value for row in rows[done : done + chunk] for value in row])
                done, left = done + chunk, left - chunk

    def _repeat(self, sql: str, chunk: int) -> str:
        start, _, values = sql.partition(" VALUES ")
        text = self._many[sql, chunk] = f"{start} VALUES {', '.join([values] * chunk)}"
        return text

    def check_process(self) -> None:
        """Raise `JournalForked` in a child of the process that opened the file."""
        if os.getpid() != self._pid:
            raise errors.JournalForked(path=self.path, opened_pid=self._pid, pid=os.getpid())

    async def write(
        self,
        work: Callable[[], T],
        *,
        disk: Disk = Disk.NOW,
        tell: Tell = ALL,
        quiet: Callable[[T], bool] = lambda _: False,
        patience: Patience | None = None,
    ) -> T:
        """Run ``work`` inside one transaction and commit it; all or nothing.

        Waits, without blocking the loop, while another process writes.  ``tell`` says who wakes: consumers
        at once, those who tell people when it is on disk.  ``quiet`` says whether nothing else wants the
        loop: a quick disk is then flushed on it, without the way to a thread and back.
        """
        result = await self._commit(work, patience or Patience(self.clock))
        if tell:
            self.on_commit(tell)
            if self._notifier is not None:
                self._notifier.committed(tell)
        if self._flusher is None:
            if tell and self._notifier is not None:
                self._notifier.flushed(tell)
        elif disk is not Disk.LATER and self._flusher.quick() and quiet(result):
            self._flusher.flush(tell=tell)
            if disk is Disk.NOW:
                self.check_disk()
        elif disk is Disk.NOW:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flusher.ask(tell=tell, then=partial(self._flushed, flushed))
            await flushed
        elif disk is Disk.SOON:
            self._flusher.ask(tell=tell)
        return result

    def _flushed(self, waiting: asyncio.Future[None], fault: OSError | None) -> None:
        if waiting.done():
            return
        if fault is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(self._not_kept(fault))

    def check_disk(self) -> None:
        """Raise `JournalCorrupt` once a flush has failed: from then on nobody can say what is on disk."""
        if self._flusher is not None and self._flusher.fault is not None:
            raise self._not_kept(self._flusher.fault)

    def _not_kept(self, fault: OSError) -> errors.JournalCorrupt:
        problem = f"the disk does not keep what is written to it ({fault})"
        return errors.JournalCorrupt(path=self.path, problem=problem)

    async def _commit(self, work: Callable[[], T], patience: Patience) -> T:
        began_ns = self.clock.boot_ns()
        for attempt in count():
            self.check_process()
            if self._closed:
                raise errors.JournalClosed
            self.check_disk()
            try:
                return self._transact(work)
            except apsw.BusyError:
                if patience.ended(began_ns + int(BUSY_WAIT_S_MAX * 1e9)):
                    waited_s = round((self.clock.boot_ns() - began_ns) / 1e9, 1)
                    raise errors.JournalBusy(path=self.path, waited_s=waited_s) from None
            if attempt < BUSY_NAPS_MAX:
                self.clock.nap(BUSY_NAP_S_MIN + self.chance.unit() * (BUSY_NAP_S_MAX - BUSY_NAP_S_MIN))
            else:
                await self.clock.sleep(self.chance.unit() * BUSY_SLEEP_S_MAX)
        raise AssertionError("unreachable")

    def _transact(self, work: Callable[[], T]) -> T:
        if self._was_full:  # what the WAL holds may fit into the file, now or since there is new room
            self._was_full = False
            self._look_at_room()
            self._restart_wal()
        try:
            self.ex(self.queries.begin)
            result = work()
            self.ex(self.queries.commit)
        except BaseException as fault:
            if self._db.in_transaction:
                self.ex(self.queries.rollback)
            self._was_full = isinstance(fault, apsw.FullError) and not self.memory
            if isinstance(fault, apsw.Error) and not isinstance(
                fault, (apsw.BusyError, apsw.ConstraintError)
            ):
                raise translated(fault, self.path) from fault
            raise
        if self._wal_pages > self._wal_pages_due:
            self._checkpoint()
        return result

    def _checkpoint(self) -> None:
        """Ask the thread; where it cannot keep up, do the rest here, so that the WAL can start again."""
        if self._checkpointer is None:
            return
        self._look_at_room()
        hard, step = WAL_PAGES_HARD, WAL_PAGES_STEP
        if self._short:
            hard, step = 2 * WAL_PAGES_SHORT, WAL_PAGES_SHORT
        self._wal_pages_due = self._wal_pages + step
        if self._wal_pages <= hard or not self._checkpointer.idle():
            self._checkpointer.ask()
        else:
            self._restart_wal()  # the commit stands, whatever comes of it
        now = self.clock.boot_ns()
        if self._wal_pages > WAL_PAGES_WARN and now - self._warned_ns > WARN_NS_MIN:
            self._warned_ns = now
            _log.warning(
                "the WAL of %s has grown to %d MiB: a reader holds it open, so it cannot start again",
                self.path, self._wal_pages * 4096 >> 20,
            )  # fmt: skip

    def told_so(self, topics: Collection[int]) -> bool:
        """Return whether news of topics may be of a commit of this connection."""
        return self._notifier is None or self._notifier.told_so(topics)

    def changed_elsewhere(self) -> int:
        """Return a number that changes when another connection has committed."""
        return int(self.row(self.queries.data_version)[0])

    def close(self) -> None:
        """Close the file; in a forked child leave the parent's connection alone."""
        if os.getpid() != self._pid:
            return
        self._closed = True
        if self._flusher is not None:
            self._flusher.close()
        if self._checkpointer is not None:
            self._checkpointer.close()
        self._db.close()
        if self._notifier is not None:
            self._notifier.close()


def _nothing(tell: Tell) -> None:
    pass


def _silent(tell: Tell) -> None:
    pass
