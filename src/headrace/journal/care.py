"""Looks after a journal in a file: makes it smaller, copies it, and forgets: the port `Care`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import apsw

from headrace import errors
from headrace.journal import backup, erase, handlers
from headrace.journal.connection import Connection, Disk
from headrace.journal.file import MEMORY, exists, mapped, translated
from headrace.journal.holders import holder_of
from headrace.journal.queries import load
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import Chance, Clock, Faults
from headrace.ports.care import BackedUp, Compacted, Erased, Retired, Size
from headrace.ports.upkeep import Progressed

#: How often emptying the WAL is tried, and how long it is let alone in between: a reader has five seconds.
EMPTY_TRIES_MAX, EMPTY_PAUSE_S = 50, 0.1
#: Between two steps, so that workers come in between.
STEP_PAUSE_S = 0.005
#: How often a rewriting is tried while others write.
REWRITE_TRIES_MAX, REWRITE_PAUSE_S = 30_000, 0.001


class SqliteCare:
    """A journal in a file that somebody looks after; workers may go on meanwhile."""

    def __init__(
        self, path: str, *, clock: Clock, chance: Chance, faults: Faults, durability: str = "full"
    ) -> None:
        self.address = path
        self._clock = clock
        self._journal = SqliteJournal(path, clock=clock, chance=chance, faults=faults, durability=durability)
        self._queries: Any = load("care.sql")

    async def open(self) -> None:
        """Open the file; an older one is brought up to date."""
        if self.address == MEMORY or not exists(self.address):
            raise errors.JournalMissing(path=self.address)
        await self._journal.open()

    async def close(self) -> None:
        """Close the file."""
        await self._journal.close()

    @property
    def _db(self) -> Connection:
        return self._journal.connection()

    # --- smaller ------------------------------------------------------------------------------

    async def compact(self, progressed: Progressed, *, whole: bool) -> Compacted:
        """Give free pages back in short steps, or rewrite the file; then empty the WAL."""
        before = self._size()
        if whole:
            holder = await self._scrub()
            return Compacted(before, self._size(), holder)
        if self._number(self._queries.gives_back) == 0:
            problem = "the file was made without the means to give pages back in steps"
            raise errors.CommandInvalid(problem=problem, hint="``headrace compact --whole`` rewrites it once")
        await self._give_back(progressed)
        holder = await self._empty_wal()
        return Compacted(before, self._size(), holder)

    async def _give_back(self, progressed: Progressed) -> None:
        total = left = self._number(self._queries.free_pages)
        while left:
            await self._db.write(lambda: self._db.rows(self._queries.give_back), disk=Disk.LATER, tell=False)
            self._db.faults.at("compact.step")
            before, left = left, self._number(self._queries.free_pages)
            progressed(max(0, total - left), total)
            if left >= before:  # workers free as much as is given back
                break
            await self._clock.sleep(STEP_PAUSE_S)

    async def _scrub(self) -> str:
        """Leave nothing of what was deleted, in file and WAL; returns who is in the way, or an empty text."""
        await self._rewrite()
        holder = await self._empty_wal()
        if not holder:
            await self._db.write(lambda: self._db.ex(self._queries.unstain), tell=False)
        return holder

    async def _rewrite(self) -> None:
        """Rewrite the file in one go: others who want to write wait."""
        queries = self._queries
        asked = (queries.rewrite_on_disk, queries.wait_not, queries.to_give_back, queries.rewrite)
        for _ in range(REWRITE_TRIES_MAX):
            try:
                for query in asked:
                    self._db.ex(query).fetchall()
            except apsw.BusyError:
                await self._clock.sleep(REWRITE_PAUSE_S)
            except apsw.Error as fault:
                raise translated(fault, self.address) from fault
            else:
                self._db.faults.at("compact.rewritten")
                return
        waited_s = REWRITE_TRIES_MAX * REWRITE_PAUSE_S
        raise errors.JournalBusy(path=self.address, waited_s=waited_s)

    async def _empty_wal(self) -> str:
        """Cut the WAL to nothing; returns who is in the way, or an empty text.

        A checkpoint that waits for a reader keeps writers out, so it is tried often and waits shortly.
        """
        for _ in range(EMPTY_TRIES_MAX):
            with mapped(self.address):
                self._db.rows(self._queries.wait_short)
                try:
                    busy = self._number(self._queries.empty_wal)
                except errors.JournalBusy:
                    busy = 1
                finally:
                    self._db.rows(self._queries.wait_not)
            if not busy:
                self._db.faults.at("wal.emptied")
                return ""
            await self._clock.sleep(EMPTY_PAUSE_S)
        return holder_of(self._db.file)

    def _number(self, sql: str) -> int:
        return int(self._db.row(sql)[0])

    def _size(self) -> Size:
        page = self._number(self._queries.page_bytes)
        free = self._number(self._queries.free_pages) * page
        file = Path(self._db.file)
        wal = Path(f"{file}-wal")
        # Looked at, never opened: closing a descriptor of them would let go of SQLite's locks.
        return Size(file.stat().st_size, wal.stat().st_size if wal.exists() else 0, free)

    # --- copied, erased, retired --------------------------------------------------------------

    async def backup(self, target: str) -> BackedUp:
        """Copy the journal as it is now, check the copy, and only then give it its name."""
        began_ns = self._clock.boot_ns()
        db = self._db
        copy = partial(backup.copy_to, db.file, target, clock=db.clock, chance=db.chance, faults=db.faults)
        events, size = await asyncio.to_thread(copy)
        return BackedUp(target, size, events, (self._clock.boot_ns() - began_ns) / 1e9)

    async def erase(self, keys: Sequence[str], topic: str | None, *, effects: bool, dry_run: bool) -> Erased:
        """Remove what events with these keys hold, then every page on which it stood."""
        found = await erase.erase(self._journal, keys, topic, effects=effects, dry_run=dry_run)
        if dry_run or self._db.row(self._queries.stained) is None:
            return found
        # Also after an erasure that was cut short, of which nothing is found any more.
        return found._replace(holder=await self._scrub())

    async def retire(self, handler: str, *, dry_run: bool, replays_only: bool = False) -> Retired:
        """Release a handler's subscriptions, or its replays alone."""
        return await handlers.retire(self._db, handler, dry_run=dry_run, replays_only=replays_only)
