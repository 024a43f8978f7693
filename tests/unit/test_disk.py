"""When a commit is on disk, who is told when, and what happens when the disk fails."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from headrace import App, Event, errors
from headrace.app import World
from headrace.gate.quick import TIMES_KEPT
from headrace.journal import disk
from headrace.journal.connection import Connection, Disk
from headrace.journal.notify import POLL_MS, SLOTS, Watch, notify_path
from headrace.journal.reader import Reader
from headrace.journal.sqlite import SqliteWorker
from headrace.ports import Faults, NoFaults
from headrace.settings import Settings
from headrace.testing import FailAt, ManualClock
from headrace.world import SystemChance, SystemClock

PATIENCE_S = 10.0


class Noted(Event, topic="disk.noted"):
    """What is published."""

    text: str


class Platter:
    """Stands before the real flush: can hold it, fail it, and notes in which thread it ran."""

    def __init__(self, real: Callable[[int], None]) -> None:
        self._real = real
        self.gate = threading.Event()
        self.gate.set()
        self.asked = threading.Event()
        self.fails = self.fails_once = False
        self.threads: list[int] = []

    def __call__(self, fd: int) -> None:
        self.threads.append(threading.get_ident())
        self.asked.set()
        assert self.gate.wait(PATIENCE_S)
        if self.fails or self.fails_once:
            self.fails_once = False
            raise OSError(5, "Input/output error")
        self._real(fd)


@pytest.fixture
def platter(monkeypatch: pytest.MonkeyPatch) -> Iterator[Platter]:
    """Take the place of the flush of every connection."""
    found = Platter(os.fsync)
    monkeypatch.setattr(disk, "_to_disk", found)
    yield found
    found.gate.set()


def run(main: Callable[[], Awaitable[None]]) -> None:
    """Run a test on a loop of its own."""

    async def bounded() -> None:
        async with asyncio.timeout(3 * PATIENCE_S):
            await main()

    asyncio.run(bounded())


def connection(path: Path, durability: str = "full") -> Connection:
    """Open a journal's file."""
    clock, chance = SystemClock(), SystemChance()
    return Connection(str(path), durability=durability, clock=clock, chance=chance, faults=NoFaults())


def put(db: Connection, name: str) -> Callable[[], object]:
    """Return work that leaves a trace."""
    return lambda: db.ex("INSERT INTO meta (name, value) VALUES (?, 1)", (name,))


def names(db: Connection) -> set[str]:
    """Return the traces of `put`."""
    return {name for (name,) in db.rows("SELECT name FROM meta")} - {"created_us", "salt"}


async def seen(event: threading.Event) -> None:
    """Wait for something that happens in a thread."""
    assert await asyncio.to_thread(event.wait, PATIENCE_S)


@asynccontextmanager
async def watched(db: Connection, *, flushed: bool) -> AsyncIterator[asyncio.Event]:
    """Watch the notify file; what was told before does not count, nor does the net below."""
    told = asyncio.Event()
    watch = Watch(notify_path(db.file), lambda _: told.set(), flushed=flushed)
    if watch.interval_ms == POLL_MS:
        pytest.fail("these tests need inotify")
    watch._timer.cancel()
    try:
        yield told
    finally:
        watch.close()


def test_accepted_means_on_disk(tmp_path: Path, platter: Platter) -> None:
    """`publish` returns after the flush, not after the commit."""

    async def main() -> None:
        async with App("disk", settings=Settings(journal=str(tmp_path / "j.db")), events=[Noted]) as app:
            await app.publish(Noted(text="the first makes topic and stamp known"))
            platter.gate.clear()
            platter.asked.clear()
            publishing = asyncio.create_task(app.publish(Noted(text="a")))
            await seen(platter.asked)
            await asyncio.sleep(0.05)
            assert not publishing.done()
            reader = Reader(str(tmp_path / "j.db"))
            assert len(reader.events()) == 2, "it is committed"
            reader.close()
            platter.gate.set()
            await publishing

    run(main)


def test_nobody_waits_for_the_flush_of_another(tmp_path: Path, platter: Platter) -> None:
    """The write lock is let go before the flush: a second process commits meanwhile."""

    async def main() -> None:
        first, second = connection(tmp_path / "j.db"), connection(tmp_path / "j.db")
        platter.gate.clear()
        slow = asyncio.create_task(first.write(put(first, "slow")))
        await seen(platter.asked)
        await second.write(put(second, "quick"), disk=Disk.LATER)
        assert names(second) == {"slow", "quick"}
        assert not slow.done()
        platter.gate.set()
        await slow
        first.close()
        second.close()

    run(main)


def test_those_who_tell_people_are_told_when_it_is_on_disk(tmp_path: Path, platter: Platter) -> None:
    """A commit wakes workers at once, and followers after the flush."""

    async def main() -> None:
        db = connection(tmp_path / "j.db")
        platter.gate.clear()
        async with watched(db, flushed=False) as worker, watched(db, flushed=True) as follower:
            writing = asyncio.create_task(db.write(put(db, "a")))
            async with asyncio.timeout(PATIENCE_S):
                await worker.wait()
            assert not follower.is_set()
            platter.gate.set()
            async with asyncio.timeout(PATIENCE_S):
                await follower.wait()
        await writing
        db.close()

    run(main)


def test_notify_files_that_were_emptied_tell_all_the_same(tmp_path: Path) -> None:
    """Reading nothing wakes nobody: on a full disk, or after a clean-up, the file may be empty."""

    async def main() -> None:
        db = connection(tmp_path / "j.db")
        for one in ("all", "all-disk", *range(SLOTS)):
            os.truncate(f"{notify_path(db.file)}/{one}", 0)
        async with watched(db, flushed=False) as told:
            await db.write(put(db, "a"))
            async with asyncio.timeout(PATIENCE_S):
                await told.wait()
        db.close()

    run(main)


def test_who_need_not_know_is_not_told(tmp_path: Path) -> None:
    """A commit of one's own affairs wakes nobody."""

    async def main() -> None:
        db = connection(tmp_path / "j.db")
        async with watched(db, flushed=False) as worker, watched(db, flushed=True) as follower:
            await db.write(put(db, "a"), tell=False)
            await asyncio.sleep(0.05)
            assert not worker.is_set()
            assert not follower.is_set()
        db.close()

    run(main)


def test_commits_made_meanwhile_share_a_flush(tmp_path: Path, platter: Platter) -> None:
    """While one flush runs ten commits are made; one more flush is for them all."""

    async def main() -> None:
        db = connection(tmp_path / "j.db")
        platter.gate.clear()
        writing = [asyncio.create_task(db.write(put(db, "first")))]
        await seen(platter.asked)
        writing += [asyncio.create_task(db.write(put(db, str(n)))) for n in range(10)]
        await asyncio.sleep(0.05)
        assert not any(one.done() for one in writing)
        platter.gate.set()
        await asyncio.gather(*writing)
        assert len(platter.threads) == 2
        db.close()

    run(main)


def test_a_disk_that_does_not_keep_what_is_written_stops_the_process(
    tmp_path: Path, platter: Platter
) -> None:
    """After a failed flush nobody can say what is on disk: nothing is accepted, however the next one ends.

    That holds for the process: a file that is opened anew is the same file.
    """

    async def main() -> None:
        db = connection(tmp_path / "j.db")
        platter.fails = True
        for name in "ab":
            with pytest.raises(errors.JournalCorrupt, match="does not keep"):
                await db.write(put(db, name))
        platter.fails = False
        other = connection(tmp_path / "j.db")
        db.close()
        again = connection(tmp_path / "j.db")
        for one in (other, again):
            with pytest.raises(errors.JournalCorrupt, match="does not keep"):
                await one.write(put(one, "b"))
            one.close()

    run(main)


@pytest.mark.parametrize("wait", [Disk.SOON, Disk.LATER])
def test_what_nobody_waits_for_is_on_disk_after_the_end(tmp_path: Path, platter: Platter, wait: Disk) -> None:
    """Closing flushes what was left for later."""

    async def main() -> None:
        db = connection(tmp_path / "j.db")
        await db.write(put(db, "a"), disk=wait)
        db.close()
        assert platter.threads

    run(main)


def test_durability_normal_flushes_nothing(tmp_path: Path, platter: Platter) -> None:
    """It is left to the checkpoints, as the documentation says; everybody is told all the same."""

    async def main() -> None:
        db = connection(tmp_path / "j.db", "normal")
        async with watched(db, flushed=True) as follower:
            await db.write(put(db, "a"))
            async with asyncio.timeout(PATIENCE_S):
                await follower.wait()
        db.close()
        assert not platter.threads

    run(main)


def test_a_quick_disk_is_flushed_on_the_loop_and_a_slow_one_is_not(tmp_path: Path) -> None:
    """Only when nothing else wants the loop, and after one slow flush not for a while."""

    async def main() -> None:
        clock = ManualClock()
        here, ran = threading.get_ident(), list[int]()
        told = list[int]()
        path = tmp_path / "j.db"
        path.with_name("j.db-wal").touch()
        flusher = disk.Flusher(str(path), clock, lambda _: told.append(1))
        slow_s = 0.0

        def to_disk(_fd: int) -> None:
            ran.append(threading.get_ident())
            clock.advance(slow_s)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disk, "_to_disk", to_disk)
            assert not flusher.quick(), "nothing is known of the disk yet"
            for _ in range(200):
                flusher.flush(tell=True)
            assert flusher.quick()
            assert set(ran) == {here}
            assert len(told) == 200
            slow_s = 0.05
            flusher.flush(tell=False)
            assert not flusher.quick()
            flusher.close()
        assert ran[-1] != here

    run(main)


def test_a_flush_that_fails_is_not_overtaken(tmp_path: Path, platter: Platter) -> None:
    """The kernel tells of a fault once: a flush beside the one that is told would take all for kept."""

    async def main() -> None:
        db = connection(tmp_path / "j.db")
        flusher = db._flusher
        assert flusher is not None
        await db.write(put(db, "a"))
        for _ in range(TIMES_KEPT):
            flusher._quick.note(0.0, on_loop=False)
        platter.gate.clear()
        platter.asked.clear()
        platter.fails_once = True
        await db.write(put(db, "b"), disk=Disk.SOON)
        await seen(platter.asked)
        assert not flusher.quick()
        behind = threading.Thread(target=flusher.flush, kwargs={"tell": False})
        behind.start()
        platter.gate.set()
        await asyncio.to_thread(behind.join)
        assert flusher.fault is not None
        with pytest.raises(errors.JournalCorrupt, match="does not keep"):
            await db.write(put(db, "c"), quiet=lambda _: True)
        db.close()

    run(main)


def test_a_journal_behind_a_link_is_the_same_journal(tmp_path: Path) -> None:
    """SQLite keeps the WAL beside the file itself; who watches either path is told of both."""
    (tmp_path / "real").mkdir()
    link, real = tmp_path / "link.db", tmp_path / "real" / "j.db"
    link.symlink_to(real)

    async def main() -> None:
        behind, straight = connection(link), connection(real)
        async with watched(behind, flushed=False) as told:
            await straight.write(put(straight, "a"))
            async with asyncio.timeout(PATIENCE_S):
                await told.wait()
        await behind.write(put(behind, "b"))
        assert names(straight) == {"a", "b"}
        behind.close()
        straight.close()

    run(main)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["link.db", "real"]


def test_a_process_that_changes_its_folder_keeps_its_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relative path means what it meant when the journal was opened: to followers, readers and leases."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)

    async def main() -> None:
        db = connection(Path("j.db"))
        worker = SqliteWorker(db, 1, 10_000)
        monkeypatch.chdir(elsewhere)
        assert worker.renew()
        async with watched(db, flushed=True) as told:
            await db.write(put(db, "a"))
            async with asyncio.timeout(PATIENCE_S):
                await told.wait()
        await worker.leave()
        db.close()

    run(main)
    assert not list(elsewhere.iterdir())


def test_a_journal_that_cannot_be_opened_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error is a coded one; threads and descriptors of what was open by then are let go."""

    def refuse(*_: object) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("headrace.journal.connection.Flusher", refuse)

    def left() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

    before = left()
    for _ in range(3):
        with pytest.raises(errors.JournalUnavailable, match="Too many open files"):
            connection(tmp_path / "j.db")
    assert left() == before


def test_a_worker_ends_when_its_disk_fails(tmp_path: Path, platter: Platter) -> None:
    """It says so, instead of going on with a journal of which nobody knows what it holds."""
    path = str(tmp_path / "j.db")
    app = App("disk", settings=Settings(journal=path), events=[Noted])

    @app.handler
    async def see(noted: Noted) -> None:
        platter.fails = True

    async def main() -> None:
        async with app:
            await app.publish(Noted(text="a"))
        with pytest.raises(errors.JournalCorrupt, match="does not keep"):
            await app.run(asyncio.Event())

    run(main)


# --- a worker that stops ----------------------------------------------------------------------


def test_what_is_finished_is_committed_through_a_bad_moment(tmp_path: Path) -> None:
    """A worker that is stopped while the disk is full tries again; nothing is handled once more."""
    calls = list[str]()

    async def serve(faults: Faults, numbers: int) -> None:
        app = App("disk", settings=Settings(journal=f"sqlite:///{tmp_path}/j.db"))
        app.place_in(World(faults=faults))
        stop = asyncio.Event()

        @app.handler
        async def note(noted: Noted) -> None:
            calls.append(noted.text)
            stop.set()

        async with app:
            await app.publish([Noted(text=str(number)) for number in range(numbers)])
            await app.run(stop)

    run(lambda: serve(FailAt("settle.begin", errors.DiskFull(path="a test"), times=2), 1))
    run(lambda: serve(NoFaults(), 2))

    assert sorted(calls) == ["0", "0", "1"]
