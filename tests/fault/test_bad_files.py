"""Disks, files and clocks on their bad days: a coded error, nothing lost, and work goes on when it can."""

# ruff: noqa: ASYNC240, ASYNC251 - a test waits for other processes, and looks at their files

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.fault._apps import Job
from tests.fault.conftest import PATIENCE_S, ROOT, Stage
from tests.unit.terminal import apart

from headrace import App, Event, RetryPolicy, errors
from headrace.app import World
from headrace.journal.file import filesystem_of
from headrace.journal.reader import Reader
from headrace.runtime.rhythm import PARTING_S_MAX
from headrace.settings import Settings
from headrace.testing import ManualClock, drain

MIB = 1 << 20


class Line(Event, topic="lines", key="key", type="fault.line"):
    n: int
    text: str = ""
    key: str | None = None


class LineSeen(Event, topic="lines-seen", type="fault.line.seen"):
    n: int
    text: str = ""


def app_of(journal: Path | str, **more: Any) -> App:
    """Return an app on a journal."""
    return App("fault", settings=Settings(journal=str(journal), **more))


def in_a_process(program: str, *arguments: str, before: list[str] | None = None) -> dict[str, Any]:
    """Run a program in a process of its own; return what it said, as JSON, and its exit code as ``code``."""
    head = "import asyncio, json, os, sys\nfrom tests.fault.test_bad_files import *\n"
    command = [*(before or []), sys.executable, "-c", head + textwrap.dedent(program), *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.stdout, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1]) | {"code": ended.returncode, "stderr": ended.stderr}


def in_a_mount_of_its_own(script: str, program: str, *arguments: str) -> dict[str, Any]:
    """Run a shell script that mounts, and a program after it, where only they see the mount."""
    made = subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("no mount name space may be made here")
    return in_a_process(
        program, *arguments, before=["unshare", "-m", "sh", "-ec", f'{script}; exec "$@"', "sh"]
    )


# --- files that are not ours --------------------------------------------------------------------


def other_database(path: Path) -> None:
    """Make a SQLite database of another program."""
    db = apsw.Connection(str(path))
    db.execute("CREATE TABLE theirs (a); INSERT INTO theirs VALUES (1)")
    db.close()


def marked_database(path: Path) -> None:
    """Make an empty one that another program has marked as its own."""
    db = apsw.Connection(str(path))
    db.execute("PRAGMA application_id = 4711; PRAGMA user_version = 1")
    db.close()


FOREIGN: dict[str, Callable[[Path], Any]] = {
    "another SQLite database": other_database,
    "a marked SQLite database": marked_database,
    "a long text": lambda path: path.write_text("Dear diary,\n" * 1_000, "utf-8"),
    "a short text": lambda path: path.write_text("notes", "utf-8"),
    "two bytes": lambda path: path.write_bytes(b"\0\0"),  # a file of one is an empty one to SQLite
    "half a header": lambda path: path.write_bytes(b"SQLite format 3\0"),
    "zeros": lambda path: path.write_bytes(bytes(8_192)),
}


@pytest.mark.parametrize("make", FOREIGN.values(), ids=FOREIGN)
async def test_a_file_that_is_not_ours_is_refused_unchanged(
    tmp_path: Path, make: Callable[[Path], Any]
) -> None:
    """To write, to handle, to read: refused with the code, and not one byte or file beside it is changed."""
    path = tmp_path / "file.db"
    make(path)
    before = path.read_bytes()
    for _ in range(2):
        with pytest.raises(errors.JournalForeign) as caught:
            await app_of(path).publish(Line(n=1))
        assert str(path) in str(caught.value)
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["file.db"]


async def test_an_empty_file_becomes_a_journal(tmp_path: Path) -> None:
    """A file without a byte is nobody's (``mktemp`` makes such): it is used, and works."""
    path = tmp_path / "file.db"
    path.touch()
    async with app_of(path) as app:
        await app.publish(Line(n=1))
    async with app_of(path) as app:
        assert (await app.publish(Line(n=1), event_id="x")).duplicate is False


async def test_a_journal_of_a_newer_version_is_refused_unchanged(tmp_path: Path) -> None:
    """Nothing is written that a newer version would misread; the error names both numbers."""
    path = tmp_path / "file.db"
    async with app_of(path) as app:
        await app.publish(Line(n=1))
    db = apsw.Connection(str(path))
    known: Any = db.execute("PRAGMA user_version").fetchall()[0][0]
    db.execute(f"PRAGMA user_version = {known + 1}")
    db.close()
    before = path.read_bytes()
    with pytest.raises(errors.JournalNewer) as caught:
        await app_of(path).open()
    assert (caught.value.context["found"], caught.value.context["known"]) == (known + 1, known)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["missing/file.db", "."])
async def test_a_path_that_cannot_be_a_file_is_a_coded_error(tmp_path: Path, name: str) -> None:
    """A folder, or a folder that does not exist: said, not made."""
    with pytest.raises(errors.JournalError):
        await app_of(tmp_path / name).open()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", [b"d\xff.db", b"f\xff/file.db"], ids=["the file", "its folder"])
async def test_a_name_that_is_not_utf_8_is_a_coded_error(tmp_path: Path, name: bytes) -> None:
    """SQLite takes no other: to write, to look, and by a name that leads there from within the folder."""
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name))
    path.parent.mkdir(exist_ok=True)
    path.touch()
    with pytest.raises(errors.JournalUrlInvalid, match="has to be UTF-8"):
        await app_of(path).open()
    with pytest.raises(errors.JournalUrlInvalid):
        Reader(str(path))
    (tmp_path / "link.db").symlink_to(path)
    with pytest.raises(errors.JournalUrlInvalid):
        await app_of(tmp_path / "link.db").open()
    ran = await asyncio.to_thread(apart, "status", cwd=path.parent, env={"HEADRACE_JOURNAL": path.name})
    assert (ran.code, "HR-E212" in ran.err, "HR-E000" in ran.err) == (2, True, False)
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    ("folder", "found"),
    [
        ("/data/app", "nfs4"),
        ("/data/app/local", "ext4"),
        ("/data/apple", "ext4"),
        ("/with space/x", "cifs"),
        ("/donn\u00e9es/x", "fuse.sshfs"),
        ("/twice", "9p"),
        ("/", "ext4"),
    ],
)
def test_the_file_system_of_a_folder_is_found(tmp_path: Path, folder: str, found: str) -> None:
    """The longest mount point decides, the later of two in one place; spaces and letters of any script."""
    mounts = tmp_path / "mountinfo"
    lines = [
        "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/vda rw",
        "23 22 0:20 / /data/app rw - nfs4 server:/x rw",
        "24 23 8:2 / /data/app/local rw - ext4 /dev/vdb rw",
        "25 22 0:21 / /with\\040space rw - cifs //server/x rw",
        "26 22 0:22 / /donn\u00e9es rw - fuse.sshfs host: rw",
        "27 22 8:3 / /twice rw - ext4 /dev/vdc rw",
        "28 22 0:23 / /twice rw - 9p share rw",
    ]
    mounts.write_text("\n".join(lines) + "\n", "utf-8")
    assert filesystem_of(Path(folder), str(mounts)) == found


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "virtiofs", "ceph", "lustre"]
)
async def test_a_network_file_system_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Locks do not work there: refused with the code, and no file is made."""
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"23 22 0:20 / {tmp_path} rw - {kind} server:/x rw\n", "utf-8")
    (tmp_path / "data").mkdir()
    made = lambda folder: filesystem_of(folder, str(mounts))  # noqa: E731 - the real function on a made file
    monkeypatch.setattr("headrace.journal.file.filesystem_of", made)
    with pytest.raises(errors.JournalOnNetwork) as caught:
        await app_of(tmp_path / "data" / "file.db").open()
    assert kind in str(caught.value)
    assert not list((tmp_path / "data").iterdir())


# --- clocks and forks ---------------------------------------------------------------------------


@pytest.mark.parametrize("moved_s", [-3_600, 3_600])
@pytest.mark.parametrize("other", [False, True], ids=["the same worker", "another worker"])
async def test_a_clock_that_is_set_does_not_hold_up_a_retry(stage: Stage, moved_s: int, other: bool) -> None:
    """The wall clock jumps an hour while a retry waits: it runs in time, here or after a take-over."""
    clock, attempts = ManualClock(), list[float]()

    def app() -> App:
        made = app_of(stage.journal)
        made.place_in(World(clock=clock))

        @made.handler(retry=RetryPolicy(backoff_first_ms=30_000, attempts_max=3))
        async def work(line: Line) -> None:
            attempts.append(clock.boot_ns() / 1e9)
            if len(attempts) == 1:
                raise ValueError

        return made

    first = app()
    async with first:
        await first.publish(Line(n=1))
        worker = first.worker()
        await worker.start(keep=False)
        while not stage.look.counts()["waiting"]:
            for server in worker.servers:
                await server.step()
            await asyncio.sleep(0)
            clock.advance(0.001)
        clock.set_wall(moved_s)
        if other:
            await worker.finish()
        else:
            await drain(worker.servers, clock)
            await worker.finish()
    if other:
        second = app()
        async with second:
            worker = second.worker()
            await worker.start(keep=False)
            await drain(worker.servers, clock)
            await worker.finish()
    assert len(attempts) == 2
    assert attempts[1] - attempts[0] <= 31
    assert stage.look.idle(1)


def test_a_fork_after_open_is_refused_in_the_child(tmp_path: Path) -> None:
    """The child gets a coded error, also on a loop of its own; the parent goes on unharmed."""
    program = """
        app = app_of(sys.argv[1])
        runner = asyncio.Runner()
        runner.run(app.publish(Line(n=1)))
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            told = []
            for call in (lambda: app.publish(Line(n=2)), lambda: app.run(), lambda: app.publish(Line(n=3))):
                try:
                    asyncio.run(call())
                    told.append("nothing")
                except errors.HeadraceError as fault:
                    told.append(fault.code)
                except BaseException as fault:
                    told.append(repr(fault))
            os.write(write, json.dumps(told).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        told = json.loads(os.read(read, 10_000))
        runner.run(app.publish(Line(n=4)))
        rows = app.journal._connection.rows("SELECT body FROM event")
        intact = app.journal._connection.rows("PRAGMA integrity_check")
        runner.run(app.close())
        runner.close()
        bodies = [json.loads(row[0])["n"] for row in rows]
        print(json.dumps({"child": told, "bodies": bodies, "intact": intact}))
    """
    told = in_a_process(program, str(tmp_path / "file.db"))
    assert told["child"] == ["HR-E207"] * 3
    assert told["bodies"] == [1, 4]
    assert told["intact"] == [["ok"]]


async def test_a_writer_that_stands_still_holds_others_up_and_loses_nothing(stage: Stage) -> None:
    """A process stopped (SIGSTOP) inside a write: others wait without an error, and go on when it does."""
    slow = stage.start("publisher", prefix="slow", seed=1, count=40)
    stage.until(lambda: stage.look.one("SELECT count(*) FROM event"), "it writes")
    slow.send(signal.SIGSTOP)
    async with app_of(stage.journal) as app:
        task = asyncio.create_task(app.publish([Job(name=str(n)) for n in range(10)]))
        await asyncio.sleep(0.2)
        slow.send(signal.SIGCONT)
        await task
    accepted = slow.said()["accepted"]
    assert stage.look.one("SELECT count(*) FROM event") == len(accepted) + 10


#: Holds the write lock until a line comes, and says when it has it.
HOLDS = """
import apsw, sys
db = apsw.Connection(sys.argv[1])
db.set_busy_timeout(30_000)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
db.execute("ROLLBACK")
"""


@contextmanager
def held(stage: Stage) -> Iterator[None]:
    """Have another process hold the write lock meanwhile."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(stage.journal)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    try:
        assert holder.stdout.readline() == b"held\n"
        yield
    finally:
        holder.communicate(b"\n")


@pytest.mark.parametrize("doing", ["starts", "works", "idles"])
async def test_a_stop_is_heard_while_another_process_holds_the_lock(stage: Stage, doing: str) -> None:
    """SIGTERM meanwhile: the worker ends within the time of parting; nothing is lost or done twice."""
    count = 60
    async with app_of(stage.journal) as app:
        await app.publish([Job(name=str(n), ms=20) for n in range(count)])
    worker = None if doing == "starts" else stage.worker()
    if doing == "works":
        stage.until(lambda: len(stage.calls("end")) >= 10, "it works")
    elif doing == "idles":
        stage.until_idle(count)
    with held(stage):
        worker = worker or stage.worker()
        time.sleep(3 if doing == "starts" else 1)  # by now it waits to write what it has to
        began = time.monotonic()
        assert worker.end(signal.SIGTERM) == 0
        assert time.monotonic() - began < PARTING_S_MAX + 4
    stage.worker()
    stage.until_idle(count)
    done = [one["name"] for one in stage.look.emitted()]
    assert sorted(done, key=int) == [str(n) for n in range(count)]
