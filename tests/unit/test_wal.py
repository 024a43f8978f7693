"""The WAL is copied into the file now and then, not at every commit, and begins anew beside other writers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from headrace.journal import connection as connections
from headrace.journal.connection import Connection, Disk
from headrace.journal.disk import Checkpointer
from headrace.ports import NoFaults
from headrace.world import SystemChance, SystemClock

SOFT, HARD, STEP = 200, 2_000, 100
COMMITS = 1_500
#: Who writes without a pause may keep a checkpoint from the lock for as long as it tries.
BREATH_S = 0.0005


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make checkpoints due after few pages; returns after how many pages of the WAL each was asked for."""
    monkeypatch.setattr(connections, "WAL_PAGES_SOFT", SOFT)
    monkeypatch.setattr(connections, "WAL_PAGES_HARD", HARD)
    monkeypatch.setattr(connections, "WAL_PAGES_STEP", STEP)
    found = list[int]()
    ask = Checkpointer.ask

    def noted(self: Checkpointer) -> None:
        found.append(1)
        ask(self)

    monkeypatch.setattr(Checkpointer, "ask", noted)
    return found


def opened(path: Path) -> Connection:
    """Open a journal's file."""
    clock, chance = SystemClock(), SystemChance()
    return Connection(str(path), durability="normal", clock=clock, chance=chance, faults=NoFaults())


async def write(db: Connection, commits: int) -> list[int]:
    """Commit so often; returns the pages of the WAL after each commit."""
    pages = list[int]()
    for number in range(commits):
        put = partial(db.ex, "INSERT OR REPLACE INTO meta VALUES (?, ?)", (f"a{number}", "x" * 3_000))
        await db.write(put, disk=Disk.LATER)
        pages.append(db._wal_pages)
        await asyncio.sleep(0)
    return pages


@contextmanager
def writing_beside(path: Path) -> Iterator[None]:
    """Have a thread with a connection of its own commit all the time."""
    over = threading.Event()

    def go() -> None:
        db = apsw.Connection(str(path))
        db.set_busy_timeout(10_000)
        db.execute("PRAGMA wal_autocheckpoint=0; PRAGMA synchronous=OFF")
        while not over.wait(BREATH_S):
            db.execute("UPDATE meta SET value = value || '' WHERE name = 'created_us'")
        db.close()

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_it_begins_anew_although_others_write(tmp_path: Path, asked: list[int]) -> None:
    """Some checkpoints do: it is not left to a commit that happens to find everything copied."""
    db = opened(tmp_path / "j.db")
    with writing_beside(tmp_path / "j.db"):
        pages = asyncio.run(write(db, COMMITS))
    db.close()
    begun = sum(after < before for before, after in pairwise(pages))
    assert begun > 3, "the WAL has begun anew"
    assert len(asked) <= 10 * begun, "some of them met a writer or a page that was added meanwhile"


def test_a_reader_that_stays_has_it_tried_seldom(tmp_path: Path, asked: list[int]) -> None:
    """Not at every commit: each try is two flushes."""
    db = opened(tmp_path / "j.db")
    reader = apsw.Connection(str(tmp_path / "j.db"))
    reader.execute("BEGIN; SELECT * FROM meta").fetchall()
    pages = asyncio.run(write(db, COMMITS // 3))
    assert pages == sorted(pages), "the reader holds it"
    assert 1 <= len(asked) <= (pages[-1] - SOFT) // STEP + 1
    reader.execute("END")
    reader.close()
    pages = asyncio.run(write(db, COMMITS // 3))
    assert min(pages) < SOFT, "it has begun anew soon after the reader has gone"
    db.close()


def at_once(self: Checkpointer) -> None:
    """Make the checkpoint where it is asked for: the thread may be late on a busy machine."""
    db = apsw.Connection(self._db.filename)
    db.execute(self._restart).fetchall()
    db.close()


def test_little_room_keeps_it_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the disk is short it begins anew after few pages, and no more of it than that stays on disk."""
    monkeypatch.setattr(Checkpointer, "ask", at_once)
    monkeypatch.setattr(connections, "WAL_PAGES_SOFT", 10 * COMMITS)
    monkeypatch.setattr(connections, "room_bytes", lambda _: connections.ROOM_BYTES_MIN - 1)
    db = opened(tmp_path / "j.db")
    pages = asyncio.run(write(db, COMMITS // 3))
    limit = db.ex("PRAGMA journal_size_limit").fetchall()
    db.close()
    assert max(pages) < 4 * connections.WAL_PAGES_SHORT
    assert any(after < before for before, after in pairwise(pages))
    assert limit == [(1 << 20,)]


def test_room_that_comes_again_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the next checkpoint: from then on the WAL may grow as elsewhere."""
    monkeypatch.setattr(connections, "room_bytes", lambda _: 0)
    db = opened(tmp_path / "j.db")
    monkeypatch.undo()
    asyncio.run(write(db, COMMITS // 3))
    limit = db.ex("PRAGMA journal_size_limit").fetchall()
    db.close()
    assert limit == [(64 << 20,)]


class Gate:
    """A connection on which every copy waits until it is let through."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Semaphore(0), threading.Semaphore(0)

    def execute(self, sql: str) -> Gate:
        """Wait."""
        assert sql
        self.entered.release()
        assert self.open.acquire(timeout=20)
        return self

    def fetchall(self) -> list[tuple[int, int, int]]:
        """Say that others were in the way, so that there is one statement a copy."""
        return [(1, 0, 0)]

    def close(self) -> None:
        """Nothing is open."""


def test_what_is_asked_for_during_a_copy_is_not_forgotten(tmp_path: Path) -> None:
    """Whoever asks meanwhile gets a copy of their own; until that has ended nobody is told that all rests."""
    one, gate = Checkpointer(str(tmp_path / "file.db")), Gate()
    one._db.close()
    one._db = gate  # type: ignore[assignment]  # one that stands still where we want it
    try:
        assert one.idle()
        one.ask()
        assert not one.idle()
        assert gate.entered.acquire(timeout=20)
        one.ask()
        gate.open.release()
        assert gate.entered.acquire(timeout=20)  # the second copy runs
        assert not one.idle()
        gate.open.release()
        deadline = SystemClock().boot_ns() + 20_000_000_000
        while not one.idle():
            assert SystemClock().boot_ns() < deadline
    finally:
        gate.open.release()
        one.close()
    assert not gate.entered.acquire(blocking=False)
