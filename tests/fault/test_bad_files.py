"""Disks, files and clocks on their bad days: a coded error, nothing lost, and work goes on when it can."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.fault._apps import Job
from tests.fault.conftest import PATIENCE_S, ROOT, Stage

from headrace import App, Event, RetryPolicy, errors
from headrace.app import World
from headrace.journal.connection import filesystem_of
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
    (known,) = db.execute("PRAGMA user_version").fetchall()[0]
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
    """The longest mount point decides, the later of two in one place, spaces and letters of any script included."""
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
    monkeypatch.setattr("headrace.journal.connection.filesystem_of", made)
    with pytest.raises(errors.JournalOnNetwork) as caught:
        await app_of(tmp_path / "data" / "file.db").open()
    assert kind in str(caught.value)
    assert not list((tmp_path / "data").iterdir())


# --- disks --------------------------------------------------------------------------------------

READ_ONLY = """
    async def go():
        told = {}
        app = app_of(sys.argv[1])
        try:
            await app.publish(Line(n=2))
        except errors.HeadraceError as fault:
            told["write"] = fault.code
        from headrace.journal.reader import Reader
        try:
            told["read"] = len(Reader(sys.argv[1]).events())
        except errors.HeadraceError as fault:
            told["read"] = fault.code
        print(json.dumps(told))
    asyncio.run(go())
"""


async def test_a_read_only_disk_is_a_coded_error(tmp_path: Path) -> None:
    """A folder mounted read-only (a bind mount in a name space of its own): no write, but reading works."""
    folder = tmp_path / "data"
    folder.mkdir()
    async with app_of(folder / "file.db") as app:
        await app.publish(Line(n=1))
    script = f"mount --bind {folder} {folder}; mount -o remount,ro,bind {folder}"
    told = in_a_mount_of_its_own(script, READ_ONLY, str(folder / "file.db"))
    assert (told["write"], told["read"]) == ("HR-E205", 1)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that every user may enter."""
    if os.geteuid():
        pytest.skip("only root may become another user")
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Path(folder, "data")
        made.mkdir()
        yield made


#: What is imported late is imported first: the other user may not read the interpreter's files.
AS_NOBODY = """
    async def warm():
        await app_of(":memory:").publish(Line(n=1))
    asyncio.run(warm())
    from headrace.journal.reader import Reader
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""


@pytest.mark.parametrize(("file", "folder"), [(0o644, 0o777), (0o666, 0o755), (0o644, 0o755)])
async def test_no_permission_to_write_is_a_coded_error(public: Path, file: int, folder: int) -> None:
    """Another user may read, but not write the file or its folder (tried as nobody): the code, no change."""
    async with app_of(public / "file.db") as app:
        await app.publish(Line(n=1))
    (public / "file.db").chmod(file)
    public.chmod(folder)
    program = textwrap.dedent(AS_NOBODY) + textwrap.dedent(READ_ONLY)
    told = in_a_process(program, str(public / "file.db"))
    assert (told["write"], told["read"]) == ("HR-E205", 1)


async def test_two_users_may_share_a_journal(public: Path) -> None:
    """A second user who may write file and folder can publish, whoever made the file beside it."""
    async with app_of(public / "file.db") as app:
        await app.publish(Line(n=1))
    (public / "file.db").chmod(0o666)
    public.chmod(0o777)
    program = textwrap.dedent(AS_NOBODY) + textwrap.dedent(READ_ONLY)
    told = in_a_process(program, str(public / "file.db"))
    assert told.get("write") is None
    assert told["read"] == 2


FULL = """
    import resource
    async def go():
        told, codes, seen, gate = {}, [], [], asyncio.Event()
        app = app_of(sys.argv[1])
        @app.handler(retry=RetryPolicy(backoff_first_ms=1))
        async def see(line: Line) -> LineSeen:
            await gate.wait()
            seen.append(line.n)
            return LineSeen(n=line.n, text=line.text)
        await app.open()
        rows = app.journal._connection.rows
        run = asyncio.create_task(app.run())
        await app.publish([Line(n=n, text="x" * 100_000) for n in range(10)])
        while rows("SELECT sum(running) FROM position") != [(10,)]:
            await asyncio.sleep(0.01)
        fill(sys.argv[1])
        for n in range(100, 110):
            try:
                await app.publish(Line(n=n, text="x" * 100_000))
            except errors.JournalError as fault:
                codes.append(fault.code)
        gate.set()
        await asyncio.sleep(0.5)
        told |= {"codes": codes, "ended": run.done(), "done_meanwhile": rows("SELECT sum(done) FROM position")[0][0]}
        free(sys.argv[1])
        accepted = 10 + 10 - len(codes)
        while rows("SELECT sum(done) FROM position") != [(accepted,)] and not run.done():
            await asyncio.sleep(0.01)
        sql = "SELECT count(*) FROM event WHERE tp >> 10 = (SELECT id FROM topic WHERE name = 'lines-seen')"
        told |= {"seen": list(seen), "emitted": rows(sql)[0][0], "accepted": accepted}
        told["counts"] = rows("SELECT sum(running), sum(done), sum(dead) FROM position")[0]
        await app.publish(Line(n=200))
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
        await app.close()
        print(json.dumps(told))
    import logging
    logging.basicConfig(level=logging.WARNING)
    asyncio.run(go())
"""


def check_full(told: dict[str, Any]) -> None:
    """Assert that a full disk was told, survived, and that nothing was lost or done twice."""
    assert told["codes"], told["stderr"]
    assert set(told["codes"]) <= {"HR-E206", "HR-E202"}
    assert told["ended"] is False
    assert told["done_meanwhile"] < 10
    accepted = told["accepted"]
    assert told["counts"] == [0, accepted, 0]
    assert told["emitted"] == accepted
    # What was finished when the disk was full was kept and committed, not run again.
    assert len(told["seen"]) == len(set(told["seen"])) == accepted
    assert told["stderr"].count("Trying again") == told["stderr"].count("answers again") == 1
    assert "Traceback" not in told["stderr"]


def test_a_full_disk_is_told_and_waited_out(tmp_path: Path) -> None:
    """A file system of 3 MiB (tmpfs in a name space of its own): publishers are told, the worker keeps its results."""
    fill = """
        def fill(path):
            with open(path + ".ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
                while file.write(bytes(4096)):
                    pass
        def free(path):
            os.unlink(path + ".ballast")
        import contextlib
    """
    program = textwrap.dedent(fill) + textwrap.dedent(FULL)
    told = in_a_mount_of_its_own(
        f"mount -t tmpfs -o size=6m none {tmp_path}", program, str(tmp_path / "file.db")
    )
    check_full(told)


def test_a_limit_of_the_file_size_is_told_and_waited_out(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, as a quota would: writes fail with an error that is not "disk full"; the same must hold."""
    limits = """
        def fill(path):
            size = max(os.path.getsize(path), os.path.getsize(path + "-wal"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 150_000, resource.RLIM_INFINITY))
        def free(path):
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    """
    program = textwrap.dedent(limits) + textwrap.dedent(FULL)
    check_full(in_a_process(program, str(tmp_path / "file.db")))


def test_a_checkpoint_that_fails_does_not_undo_what_is_committed(tmp_path: Path) -> None:
    """The file itself cannot grow while its WAL can: every publish that was answered is there, none fails."""
    program = """
        import resource
        async def go():
            app = app_of(sys.argv[1], durability="normal")
            await app.open()
            for n in range(60):
                await app.publish(Line(n=n, text="x" * 900_000))
            await app.close()
            await app.open()
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(os.path.getsize(sys.argv[1]) * 0.9), resource.RLIM_INFINITY))
            failed = []
            for n in range(60, 105):
                try:
                    await app.publish(Line(n=n, text="x" * 900_000))
                except Exception as fault:
                    failed.append(repr(fault))
            count = app.journal._connection.rows("SELECT count(*) FROM event")[0][0]
            print(json.dumps({"failed": failed, "count": count}))
        asyncio.run(go())
    """
    told = in_a_process(program, str(tmp_path / "file.db"))
    assert told["count"] == 105 - len(told["failed"])
    assert all("JournalUnavailable" in fault or "DiskFull" in fault for fault in told["failed"])


class Unreadable(apsw.VFS):
    """A file system on which reading fails while it is told to."""

    fails = False

    def __init__(self) -> None:
        super().__init__("unreadable", "unix", makedefault=True)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite's name
        """Open a file of the kind that fails."""
        return UnreadableFile(name, flags)


class UnreadableFile(apsw.VFSFile):
    """One file of it."""

    def __init__(self, name: Any, flags: list[int]) -> None:
        super().__init__("unix", name, flags)

    def xRead(self, amount: int, offset: int) -> bytes:  # noqa: N802 - SQLite's name
        """Read, or fail as a broken disk does."""
        if Unreadable.fails:
            raise apsw.IOError("the disk does not answer")
        return super().xRead(amount, offset)


def test_a_disk_that_cannot_be_read_is_waited_out(tmp_path: Path) -> None:
    """Reads fail for a while: the worker says so once, keeps its place, and goes on; nothing is lost or doubled."""
    program = """
        import logging
        logging.basicConfig(level=logging.WARNING)
        vfs = Unreadable()
        async def go():
            seen = []
            app = app_of(sys.argv[1], lease_ms=200)
            @app.handler
            async def see(line: Line) -> None:
                seen.append(line.n)
            writer = app_of(sys.argv[1])
            async with app, writer:
                app.journal._connection.ex("PRAGMA cache_size=0")
                run = asyncio.create_task(app.run())
                for start in range(0, 300, 10):
                    Unreadable.fails = False
                    await writer.publish([Line(n=n, text="x" * 2000) for n in range(start, start + 10)])
                    Unreadable.fails = start % 30 == 0
                    await asyncio.sleep(0.03)
                Unreadable.fails = False
                while len(seen) < 300 and not run.done():
                    await asyncio.sleep(0.01)
                ended = run.done()
                run.cancel()
                result = await asyncio.gather(run, return_exceptions=True)
            print(json.dumps({"seen": sorted(seen), "ended": ended, "result": repr(result)}))
        asyncio.run(go())
    """
    told = in_a_process(program, str(tmp_path / "file.db"))
    assert not told["ended"], told["result"]
    assert told["seen"] == list(range(300))
    assert "Trying again" in told["stderr"]
    assert "Traceback" not in told["stderr"]


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
    """The child gets a coded error, from the open app and on a loop of its own; the parent goes on unharmed."""
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
        print(json.dumps({"child": told, "bodies": [json.loads(row[0])["n"] for row in rows], "intact": intact}))
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
