"""The SQLite file itself: opened with care, made when it is new, its errors turned into coded ones."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import apsw

from headrace import errors
from headrace.journal.queries import load, read
from headrace.ports import Clock

#: "HDRC" in ASCII, in the header of the file.
APPLICATION_ID = 0x48445243
MEMORY = ":memory:"
#: A page of the file, or a step of the -shm: no write of SQLite is larger.
WRITE_BYTES_MAX = 65_536


class Form(NamedTuple):
    """What a file of ours is: how its header tells, and which scripts make it.

    The n-th script leads from schema n - 1 to schema n: a new file goes through all of them, an older one
    through those that it has not seen.
    """

    application_id: int
    scripts: tuple[str, ...]

    @property
    def schema(self) -> int:
        """The number of the schema that the last script leads to."""
        return len(self.scripts)


JOURNAL = Form(APPLICATION_ID, ("schema.sql", "schema_2.sql", "schema_3.sql"))
_PRAGMAS = (
    "cache_size=-65536",
    "temp_store=MEMORY",
    "foreign_keys=OFF",
    "trusted_schema=OFF",
    "mmap_size=0",
    "wal_autocheckpoint=0",
)
#: A path that is refused for its length is told so far.
PATH_SHOWN_CHARS_MAX = 200
_NETWORK = ("nfs", "cifs", "smb", "9p", "fuse", "virtiofs", "afs", "ceph", "gluster", "lustre")
#: SQLite versions without the WAL-reset fault, in which a checkpoint beside a writer could lose a commit.
_SAFE = ((3, 51, 3), (3, 50, 7), (3, 44, 6))


def open_file(path: str, *, read_only: bool = False) -> apsw.Connection:
    """Open a SQLite file with the settings of the journal; refuses network file systems."""
    if path == MEMORY:
        return apsw.Connection(path, statementcachesize=256)
    _check_name(path)
    exists(path)
    folder = Path(path).resolve().parent
    if not folder.is_dir():
        raise errors.JournalUnavailable(f"The folder {folder} does not exist.", path=path)
    filesystem = filesystem_of(folder)
    if on_network(filesystem):
        raise errors.JournalOnNetwork(path=path, filesystem=filesystem)
    flags = apsw.SQLITE_OPEN_READONLY if read_only else apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE
    db = apsw.Connection(path, flags=flags, statementcachesize=256)
    db.set_busy_timeout(5_000)  # while opening only: several processes may create the file at once
    return db


def _check_name(path: str) -> None:
    """Raise `JournalUrlInvalid` for a file whose whole name is not UTF-8: SQLite takes no other."""
    whole = str(Path(path).resolve())
    try:
        whole.encode()
    except UnicodeEncodeError:
        problem = f"The whole name of the file has to be UTF-8, and {whole!r} is not."
        hint = "choose another name, or rename the folder (``convmv`` does many)"
        raise errors.JournalUrlInvalid(problem, hint=hint, url=path) from None


def on_network(filesystem: str) -> bool:
    """Return whether a type of file system is one whose locks cannot be relied on."""
    return filesystem.startswith(_NETWORK)


def exists(path: str) -> bool:
    """Return whether there is a file; raises the coded error for a folder, or where we may not look."""
    try:
        about = Path(path).stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError:
        raise errors.JournalForbidden("Its folder is closed to it.", path=path) from None
    except OSError as fault:
        shown = path if len(path) <= PATH_SHOWN_CHARS_MAX else f"{path[:PATH_SHOWN_CHARS_MAX]}..."
        raise errors.JournalUnavailable(f"{fault.strerror}.", path=shown) from None
    if stat.S_ISDIR(about.st_mode):
        hint = f"name the file in it, such as {Path(path, 'headrace.db')}"
        raise errors.JournalForeign("It is a folder.", hint=hint, path=path)
    if not os.access(path, os.R_OK):
        raise errors.JournalForbidden(f"Its mode is {stat.S_IMODE(about.st_mode):03o}.", path=path)
    return True


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


def prepare(db: apsw.Connection, path: str, clock: Clock, form: Form = JOURNAL) -> None:
    """Check that the file is of this form and of a known schema, and set it up; make it when it is new."""
    if not safe_version(library_version()):
        raise errors.JournalUnavailable(
            f"SQLite {library_version()} can lose commits.", path=path, hint="pip install -U apsw"
        )
    found = check_ours(db, path, form)
    if db.readonly("main"):
        raise errors.JournalReadOnly(path=path)
    for pragma in _PRAGMAS:
        db.execute(f"PRAGMA {pragma}").fetchall()
    if path != MEMORY:
        if not found:  # only a file without pages takes it: what is freed can then be given back in steps
            db.execute("PRAGMA auto_vacuum=INCREMENTAL").fetchall()
        _set_wal(db, clock)
    if found < form.schema:
        _bring_up(db, path, clock, form)


def library_version() -> str:
    """Return the version of SQLite that is in use."""
    return apsw.sqlite_lib_version()


def safe_version(text: str) -> bool:
    """Return whether a SQLite version is free of the WAL-reset fault (sqlite.org/wal.html)."""
    version = tuple(int(part) for part in text.split(".")[:3])
    return version >= _SAFE[0] or any(version[:2] == safe[:2] and version >= safe for safe in _SAFE[1:])


def check_ours(db: apsw.Connection, path: str, form: Form = JOURNAL) -> int:
    """Return the schema number of a file of this form, 0 of an empty one; refuses anything else."""
    try:
        # The identity last: another process may create the journal in between, and sets it in one
        # transaction with the rest, so what is still 0 then was 0 before.
        names = ("schema_version", "user_version", "application_id")
        found: list[Any] = [db.execute(f"PRAGMA {name}").fetchall()[0][0] for name in names]
    except apsw.NotADBError:
        raise errors.JournalForeign(path=path) from None
    tables, schema, identity = found
    if identity != form.application_id and (identity or schema or tables):
        raise errors.JournalForeign(path=path)
    if schema > form.schema:
        raise errors.JournalNewer(path=path, found=schema, known=form.schema)
    return int(schema)


def _set_wal(db: apsw.Connection, clock: Clock) -> None:
    """Switch to WAL; SQLite does not wait for others here by itself."""
    for _ in range(200):  # with 25 ms naps: five seconds, as the busy time-out
        with suppress(apsw.BusyError):
            db.execute("PRAGMA journal_mode=WAL").fetchall()
            return
        clock.nap(0.025)
    db.execute("PRAGMA journal_mode=WAL").fetchall()


def _bring_up(db: apsw.Connection, path: str, clock: Clock, form: Form) -> None:
    """Make the file, or lead an older one to this schema; all in one transaction."""
    queries = load("queries.sql")
    db.execute(queries.begin)
    try:
        found = check_ours(db, path, form)  # somebody may have been quicker
        for script in form.scripts[found:]:
            db.execute(read(script))
        db.execute(f"PRAGMA application_id={form.application_id}")
        db.execute(f"PRAGMA user_version={form.schema}")
        if found == 0:
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
    if isinstance(fault, (apsw.FullError, apsw.IOError)) and (limit := _limit(path)):
        return errors.FileLimited(path=path, limit_bytes=f"{limit:,}")
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


def _limit(path: str) -> int:
    """Return the limit on the size of files that a write to the journal has met; 0: none is so near.

    SQLite tells of a write that would pass it as of a full disk, or of any other fault of it.
    """
    import resource

    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    files = (Path(f"{path}{suffix}") for suffix in ("", "-wal", "-shm"))
    largest = max((file.stat().st_size for file in files if file.exists()), default=0)
    return limit if limit != resource.RLIM_INFINITY and largest + WRITE_BYTES_MAX > limit else 0


@contextmanager
def mapped(path: str) -> Generator[None]:
    """Turn errors of SQLite and of the system into coded ones."""
    try:
        yield
    except apsw.Error as fault:
        raise translated(fault, path) from fault
    except OSError as fault:
        if fault.errno in (errno.ENOSPC, errno.EDQUOT):
            raise errors.DiskFull(path=path) from fault
        raise errors.JournalUnavailable(str(fault), path=path) from fault
