"""One SQLite file: opened with care, written in short transactions, checkpointed beside the work."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import apsw

from headrace import errors
from headrace.journal.disk import Checkpointer, Flusher
from headrace.journal.notify import Notifier
from headrace.journal.queries import load, read
from headrace.ports import Chance, Clock, Faults

T = TypeVar("T")
#: Whom a commit concerns: everybody, nobody, or who waits for events of these topics.
Tell = bool | Collection[int]
ALL: Tell = True


class Disk(Enum):
    """When a commit is flushed.  A process kill loses nothing either way, a power cut what is not on disk."""

    #: Before `Connection.write` returns: somebody will be told that it stands.
    NOW = "now"
    #: At once too, but nobody waits for it: losing it would mean to do the same again.
    SOON = "soon"
    #: Together with a later commit.
    LATER = "later"


_log = logging.getLogger("headrace.journal")

#: "HDRC" in ASCII, in the header of the file.
APPLICATION_ID = 0x48445243
SCHEMA = 1
MEMORY = ":memory:"
#: How long a call waits for another process that writes, before it gives up with `JournalBusy`.
BUSY_WAIT_S_MAX = 30.0
#: While another process writes, the lock is tried again after a jittered wait (measured: p99 14-20 ms beside
#: a saturated writer, against 34 ms with SQLite's own busy handler).  The first few waits block the thread:
#: a commit holds the lock for 0.1 to 0.5 ms, and the event loop cannot wait for less than 1 ms (epoll).
BUSY_NAP_S_MIN, BUSY_NAP_S_MAX = 0.00005, 0.0003
BUSY_NAPS_MAX = 12
BUSY_SLEEP_S_MAX = 0.002
#: WAL pages of 4 KiB after which a checkpoint runs beside the work, and after which it runs in its way.
WAL_PAGES_SOFT, WAL_PAGES_HARD = 1_500, 8_000
#: 64 MiB: as large as the WAL is left on disk (journal_size_limit).  Above it something is wrong, and is told
#: once a minute; a checkpoint that a reader holds up is not repeated at every commit.
WAL_PAGES_WARN = 16_384
WARN_NS_MIN = 60_000_000_000
CHECKPOINT_NS_MIN = 100_000_000
#: Rows per multi-row INSERT: binding costs less than stepping.
_CHUNKS = (100, 64, 32, 16, 8, 4, 2, 1)
_PRAGMAS = (
    "journal_size_limit=67108864",
    "cache_size=-65536",
    "temp_store=MEMORY",
    "foreign_keys=OFF",
    "trusted_schema=OFF",
    "mmap_size=0",
    "wal_autocheckpoint=0",
)
_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse", "virtiofs", "afs", "ceph", "gluster", "lustre")
#: SQLite versions without the WAL-reset fault, in which a checkpoint beside a writer could lose a commit.
_SAFE = ((3, 51, 3), (3, 50, 7), (3, 44, 6))


class Connection:
    """The write connection of a process, and the rules for using it."""

    def __init__(self, path: str, *, durability: str, clock: Clock, chance: Chance, faults: Faults) -> None:
        self.path = path
        self.memory = path == MEMORY
        self._durable = durability != "normal"
        self.clock, self.chance, self.faults = clock, chance, faults
        self.queries: Any = load("queries.sql")
        self._pid = os.getpid()
        self._closed = False
        self._wal_pages = 0
        self._checkpoint_ns = 0
        self._warned_ns = -WARN_NS_MIN
        self._many: dict[tuple[str, int], str] = {}
        self._checkpointer: Checkpointer | None = None
        self._flusher: Flusher | None = None
        self._notifier: Notifier | None = None
        self.on_commit: Callable[[Tell], None] = _nothing
        with mapped(path):
            self._db = open_file(path)
            # Plans do not depend on bindings; else a statement whose LIMIT or range changes is compiled anew
            # at every call (measured: a tenth of a busy worker's time).
            self._db.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1)
            self.ex = self._db.execute
            _prepare(self._db, path, clock)
            self.ex("PRAGMA synchronous=NORMAL")
            self.ex("PRAGMA busy_timeout=0")
        if not self.memory:
            self._db.set_wal_hook(self._saw_wal)
            self._checkpointer = Checkpointer(path)
            self._notifier = Notifier(f"{path}-notify", stat.S_IMODE(Path(path).stat().st_mode))
            if self._durable:
                self._flusher = Flusher(path, self._notifier.flushed)

    @property
    def notify_path(self) -> str | None:
        """The file that other processes touch after a commit; ``None`` in memory."""
        return None if self.memory else f"{self.path}-notify"

    def _saw_wal(self, _db: object, _name: str, pages: int) -> int:
        self._wal_pages = pages
        return 0

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

    async def write(self, work: Callable[[], T], *, disk: Disk = Disk.NOW, tell: Tell = True) -> T:
        """Run ``work`` inside one transaction and commit it; all or nothing.

        Waits, without blocking the loop, while another process writes.  ``tell`` says who wakes: consumers
        at once, those who tell people when it is on disk.
        """
        result = await self._commit(work)
        if tell:
            self.on_commit(tell)
            if self._notifier is not None:
                self._notifier.committed()
        if self._flusher is None:
            if tell and self._notifier is not None:
                self._notifier.flushed()
        elif disk is Disk.NOW:
            flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._flusher.ask(tell=bool(tell), then=partial(self._flushed, flushed))
            await flushed
        elif disk is Disk.SOON:
            self._flusher.ask(tell=bool(tell))
        return result

    def _flushed(self, waiting: asyncio.Future[None], fault: OSError | None) -> None:
        if waiting.done():
            return
        if fault is None:
            waiting.set_result(None)
        else:
            waiting.set_exception(self._not_kept(fault))

    def _not_kept(self, fault: OSError) -> errors.JournalCorrupt:
        problem = f"the disk does not keep what is written to it ({fault})"
        return errors.JournalCorrupt(path=self.path, problem=problem)

    async def _commit(self, work: Callable[[], T]) -> T:
        deadline = self.clock.boot_ns() + int(BUSY_WAIT_S_MAX * 1e9)
        for attempt in count():
            self.check_process()
            if self._closed:
                raise errors.JournalClosed
            if self._flusher is not None and self._flusher.fault is not None:
                raise self._not_kept(self._flusher.fault)
            try:
                return self._transact(work)
            except apsw.BusyError:
                if self.clock.boot_ns() > deadline:
                    raise errors.JournalBusy(path=self.path, waited_s=BUSY_WAIT_S_MAX) from None
            if attempt < BUSY_NAPS_MAX:
                self.clock.nap(BUSY_NAP_S_MIN + self.chance.unit() * (BUSY_NAP_S_MAX - BUSY_NAP_S_MIN))
            else:
                await self.clock.sleep(self.chance.unit() * BUSY_SLEEP_S_MAX)
        raise AssertionError("unreachable")

    def _transact(self, work: Callable[[], T]) -> T:
        try:
            self.ex(self.queries.begin)
            result = work()
            self.ex(self.queries.commit)
        except BaseException as fault:
            if self._db.in_transaction:
                self.ex(self.queries.rollback)
            if isinstance(fault, apsw.Error) and not isinstance(
                fault, (apsw.BusyError, apsw.ConstraintError)
            ):
                raise translated(fault, self.path) from fault
            raise
        if self._wal_pages > WAL_PAGES_SOFT:
            self._checkpoint()
        return result

    def _checkpoint(self) -> None:
        """Ask the thread; where it cannot keep up, do the rest here, so that the WAL can start again."""
        if self._checkpointer is None:
            return
        now = self.clock.boot_ns()
        if self._wal_pages <= WAL_PAGES_HARD or not self._checkpointer.idle():
            self._checkpointer.ask()
        elif now - self._checkpoint_ns > CHECKPOINT_NS_MIN:
            self._checkpoint_ns = now
            # The commit stands: a fault here (busy, full) is met again by the next writer, who reports it.
            with suppress(apsw.Error):
                self.ex(self.queries.checkpoint)
        if self._wal_pages > WAL_PAGES_WARN and now - self._warned_ns > WARN_NS_MIN:
            self._warned_ns = now
            _log.warning(
                "the WAL of %s has grown to %d MiB: a reader holds it open, so it cannot start again",
                self.path, self._wal_pages * 4096 >> 20,
            )  # fmt: skip

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


def open_file(path: str, *, read_only: bool = False) -> apsw.Connection:
    """Open a SQLite file with the settings of the journal; refuses network file systems."""
    if path == MEMORY:
        return apsw.Connection(path, statementcachesize=256)
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise errors.JournalUnavailable(f"The folder {folder} does not exist.", path=path)
    filesystem = filesystem_of(folder)
    if filesystem.startswith(_NETWORK):
        raise errors.JournalOnNetwork(path=path, filesystem=filesystem)
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = apsw.Connection(path, flags=flags, statementcachesize=256)
    db.set_busy_timeout(5_000)  # while opening only: several processes may create the file at once
    return db


#: How spaces, tabs, line ends and backslashes stand in mountinfo.
_OCTAL = re.compile(r"\\([0-7]{3})")


def filesystem_of(folder: Path, mounts: str = "/proc/self/mountinfo") -> str:
    """Return the type of the file system of a folder, or an empty string where it is not known."""
    try:
        lines = Path(mounts).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    best, kind = -1, ""
    for line in lines:
        left, _, right = line.partition(" - ")
        point = _OCTAL.sub(lambda found: chr(int(found[1], 8)), left.split(" ")[4])
        if folder.is_relative_to(point) and len(point) >= best:
            best, kind = len(point), right.split(" ")[0]
    return kind


def _prepare(db: apsw.Connection, path: str, clock: Clock) -> None:
    if not safe_version(apsw.sqlite_lib_version()):
        raise errors.JournalUnavailable(
            f"SQLite {apsw.sqlite_lib_version()} can lose commits.", path=path, hint="pip install -U apsw"
        )
    found = check_ours(db, path)
    if db.readonly("main"):
        raise errors.JournalReadOnly(path=path)
    for pragma in _PRAGMAS:
        db.execute(f"PRAGMA {pragma}").fetchall()
    if path != MEMORY:
        _set_wal(db, clock)
    if found < SCHEMA:
        _create(db, path, clock)


def safe_version(text: str) -> bool:
    """Return whether a SQLite version is free of the WAL-reset fault (sqlite.org/wal.html)."""
    version = tuple(int(part) for part in text.split(".")[:3])
    return version >= _SAFE[0] or any(version[:2] == safe[:2] and version >= safe for safe in _SAFE[1:])


def check_ours(db: apsw.Connection, path: str) -> int:
    """Return the schema number of a journal, 0 of an empty file; refuses anything else."""
    try:
        # The identity last: another process may create the journal in between, and sets it in one
        # transaction with the rest, so what is still 0 then was 0 before.
        names = ("schema_version", "user_version", "application_id")
        found: list[Any] = [db.execute(f"PRAGMA {name}").fetchall()[0][0] for name in names]
    except apsw.NotADBError:
        raise errors.JournalForeign(path=path) from None
    tables, schema, identity = found
    if identity != APPLICATION_ID and (identity or schema or tables):
        raise errors.JournalForeign(path=path)
    if schema > SCHEMA:
        raise errors.JournalNewer(path=path, found=schema, known=SCHEMA)
    return int(schema)


def _set_wal(db: apsw.Connection, clock: Clock) -> None:
    """Switch to WAL; SQLite does not wait for others here by itself."""
    for _ in range(200):  # with 25 ms naps: five seconds, as the busy time-out
        with suppress(apsw.BusyError):
            db.execute("PRAGMA journal_mode=WAL").fetchall()
            return
        clock.nap(0.025)
    db.execute("PRAGMA journal_mode=WAL").fetchall()


def _create(db: apsw.Connection, path: str, clock: Clock) -> None:
    queries = load("queries.sql")
    db.execute(queries.begin)
    try:
        if check_ours(db, path) == 0:  # nobody was quicker
            db.execute(read("schema.sql"))
            db.execute(f"PRAGMA application_id={APPLICATION_ID}")
            db.execute(f"PRAGMA user_version={SCHEMA}")
            db.execute(queries.meta_set, ("created_us", clock.wall_us()))
        db.execute(queries.commit)
    except BaseException:
        if db.in_transaction:
            db.execute(queries.rollback)
        raise


def translated(fault: apsw.Error, path: str) -> errors.JournalError:
    """Return the coded error for one of SQLite."""
    kinds: tuple[tuple[type[apsw.Error], type[errors.JournalError]], ...] = (
        (apsw.FullError, errors.DiskFull),
        (apsw.ReadOnlyError, errors.JournalReadOnly),
        (apsw.NotADBError, errors.JournalForeign),
        (apsw.ConnectionClosedError, errors.JournalClosed),
    )
    for theirs, ours in kinds:
        if isinstance(fault, theirs):
            return ours(path=path)
    if isinstance(fault, apsw.CantOpenError) and not os.access(Path(path).resolve().parent, os.W_OK):
        return errors.JournalReadOnly(path=path)  # the -wal and -shm beside the file cannot be made
    if isinstance(fault, (apsw.CorruptError, apsw.ConstraintError)):
        return errors.JournalCorrupt(path=path, problem=str(fault))
    if isinstance(fault, apsw.BusyError):
        return errors.JournalBusy(path=path, waited_s="?")
    return errors.JournalUnavailable(str(fault), path=path)


@contextmanager
def mapped(path: str) -> Generator[None]:
    """Turn SQLite's errors into coded ones."""
    try:
        yield
    except apsw.Error as fault:
        raise translated(fault, path) from fault
