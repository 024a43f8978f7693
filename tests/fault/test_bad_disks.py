"""Disks that are full, read-only, or do not answer: told, waited out, and nothing is lost."""

# ruff: noqa: ASYNC240 - a test waits for other processes, and looks at their files

from __future__ import annotations

import os
import tempfile
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.fault.test_bad_files import MIB, Line, app_of, in_a_mount_of_its_own, in_a_process

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


FOLLOWED = """
    import subprocess
    tail = subprocess.Popen(
        ["timeout", "25", sys.executable, "-m", "headrace", "tail", "--follow", "--jsonl", "--limit", "4",
         "--journal", sys.argv[2]],
        stdout=subprocess.PIPE, text=True,
    )
    def shown():
        return json.loads(tail.stdout.readline())["payload"]["n"]
    async def go():
        found = [shown()]
        async with app_of(sys.argv[1]) as app:
            await app.publish(Line(n=2))
        found.append(await asyncio.to_thread(shown))
        async with app_of(sys.argv[1]) as app:
            for n in (3, 4):
                await app.publish(Line(n=n))
                found.append(await asyncio.to_thread(shown))
        print(json.dumps({"shown": found, "ended": tail.wait()}))
    asyncio.run(go())
"""


async def test_what_comes_is_followed_from_a_read_only_folder(tmp_path: Path) -> None:
    """Begun while nobody else has the journal open; writers come, go, and stay: each event is shown."""
    folder, seen = tmp_path / "data", tmp_path / "seen"
    folder.mkdir()
    seen.mkdir()
    async with app_of(folder / "file.db") as app:
        await app.publish(Line(n=1))
    script = f"mount --bind {folder} {seen}; mount -o remount,ro,bind {seen}"
    told = in_a_mount_of_its_own(script, FOLLOWED, str(folder / "file.db"), str(seen / "file.db"))
    assert (told["shown"], told["ended"]) == ([1, 2, 3, 4], 0)


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
        told |= {"codes": codes, "ended": run.done()}
        told["done_meanwhile"] = rows("SELECT sum(done) FROM position")[0][0]
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


def check_full(told: dict[str, Any], *codes: str) -> None:
    """Assert that a full disk was told (by which codes), survived, and that nothing was lost or doubled."""
    assert told["codes"], told["stderr"]
    assert set(told["codes"]) <= set(codes)
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
    """A file system of 6 MiB (tmpfs in a name space of its own): publishers are told, results are kept."""
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
    check_full(told, "HR-E206", "HR-E202")


def test_a_limit_of_the_file_size_is_told_and_waited_out(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: writes fail with other errors than "disk full" and are told so; the same holds."""
    limits = """
        def fill(path):
            size = max(os.path.getsize(path), os.path.getsize(path + "-wal"))
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + 150_000, resource.RLIM_INFINITY))
        def free(path):
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    """
    program = textwrap.dedent(limits) + textwrap.dedent(FULL)
    check_full(in_a_process(program, str(tmp_path / "file.db")), "HR-E232")


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
            limit = int(os.path.getsize(sys.argv[1]) * 0.9)
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
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
    assert all("JournalUnavailable" in fault or "FileLimited" in fault for fault in told["failed"])


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
    """Reads fail for a while: the worker says so, keeps its place, and goes on; none is lost or doubled."""
    program = """
        import logging
        from tests.fault.test_bad_disks import Unreadable
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
                await writer.publish(Line(n=-1))
                while not seen:  # a worker that still starts may give up
                    await asyncio.sleep(0.01)
                for start in range(0, 300, 10):
                    Unreadable.fails = False
                    await writer.publish([Line(n=n, text="x" * 2000) for n in range(start, start + 10)])
                    Unreadable.fails = start % 30 == 0
                    await asyncio.sleep(0.03)
                Unreadable.fails = False
                while len(seen) < 301 and not run.done():
                    await asyncio.sleep(0.01)
                ended = run.done()
                run.cancel()
                result = await asyncio.gather(run, return_exceptions=True)
            print(json.dumps({"seen": sorted(seen), "ended": ended, "result": repr(result)}))
        asyncio.run(go())
    """
    told = in_a_process(program, str(tmp_path / "file.db"))
    assert not told["ended"], told["result"]
    assert told["seen"] == list(range(-1, 300))
    assert "Trying again" in told["stderr"]
    assert "Traceback" not in told["stderr"]


def test_a_full_disk_that_gets_room_goes_on_for_good(tmp_path: Path) -> None:
    """2 MiB are filled, then there are 6: the WAL does not eat them, and the worker goes on."""
    program = """
        import subprocess
        async def go():
            folder, refused, wal = os.path.dirname(sys.argv[1]), 0, 0
            app = app_of(sys.argv[1])
            @app.handler
            async def see(line: Line) -> LineSeen:
                return LineSeen(n=line.n)
            await app.open()
            while not refused:
                try:
                    await app.publish(Line(n=0, text="x" * 1_000))
                except errors.DiskFull:
                    refused += 1
            subprocess.run(["mount", "-o", "remount,size=6m", folder], check=True)
            run = asyncio.create_task(app.run())
            for n in range(400):
                await app.publish(Line(n=n, text="x" * 1_000))
                if n % 20 == 0:
                    wal = max(wal, os.path.getsize(sys.argv[1] + "-wal"))
            rows = app.journal._connection.rows
            while rows("SELECT sum(running) FROM position") != [(0,)] and not run.done():
                await asyncio.sleep(0.01)
            ended = run.done()
            run.cancel()
            await asyncio.gather(run, return_exceptions=True)
            await app.close()
            print(json.dumps({"wal": wal, "ended": ended}))
        asyncio.run(go())
    """
    script = f"mount -t tmpfs -o size=2m none {tmp_path}"
    told = in_a_mount_of_its_own(script, program, str(tmp_path / "file.db"))
    assert not told["ended"], told["stderr"]
    assert told["wal"] < 3 * MIB


BACKED_UP = """
    import subprocess
    from pathlib import Path
    async def go():
        app = app_of(sys.argv[1])
        async with app:
            await app.publish([Line(n=n, text="x" * 100_000) for n in range(20)])
        words = ["backup", sys.argv[2], "--journal", sys.argv[1]]
        ran = subprocess.run([sys.executable, "-m", "headrace", *words], capture_output=True, text=True)
        left = [one.name for one in Path(sys.argv[2]).parent.iterdir()]
        print(json.dumps({"err": ran.stderr, "exit": ran.returncode, "left": left}))
    asyncio.run(go())
"""


def test_a_backup_onto_a_full_disk_names_that_disk(tmp_path: Path) -> None:
    """The journal is well: the target is named, and nothing is left there."""
    small = tmp_path / "small"
    small.mkdir()
    script = f"mount -t tmpfs -o size=1m none {small}"
    told = in_a_mount_of_its_own(script, BACKED_UP, str(tmp_path / "file.db"), str(small / "copy.db"))
    refused = f"error[HR-E242]: No backup was made at {small / 'copy.db'}: its disk is full.\n"
    assert told["err"].startswith(refused)
    assert (told["exit"], told["left"]) == (1, [])


def test_a_backup_that_may_not_grow_says_so(tmp_path: Path) -> None:
    """RLIMIT_FSIZE, met by the copy alone: the limit is told, not the journal."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))"
    program = BACKED_UP.replace("        words", f"        {limit}\n        words")
    told = in_a_process(program, str(tmp_path / "file.db"), str(tmp_path / "copy.db"))
    refused = f"error[HR-E242]: No backup was made at {tmp_path / 'copy.db'}: this process may not"
    assert told["err"].startswith(refused)
    assert [one for one in told["left"] if "copy" in one] == []
