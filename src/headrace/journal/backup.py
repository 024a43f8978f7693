"""A copy of the journal at one moment, made beside workers; it has its name once it is whole and checked."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Any

import apsw

from headrace import errors
from headrace.journal.closing import fence
from headrace.journal.connection import Connection
from headrace.journal.file import mapped, open_file, translated
from headrace.journal.notify import notify_path
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.verify import verify
from headrace.ports import Chance, Clock, Faults, NoFaults

#: So many instructions of SQLite pass between two looks for Ctrl-C: some milliseconds.
STEPS_BETWEEN_LOOKS = 100_000
#: A copy that is not whole: its target's name with the process that makes it.
_PART = ".{name}.{pid}.part"
_FULL = "its disk is full"


def copy_to(source: str, target: str, *, clock: Clock, chance: Chance, faults: Faults) -> tuple[int, int]:
    """Copy a journal to a file that does not exist; returns how many events it has, and its bytes.

    Raises `BackupRefused`.  Killed at any moment it leaves nothing under the target's name.
    """
    where = Path(target)
    _check(where)
    _sweep(where)
    part = where.with_name(_PART.format(name=where.name, pid=os.getpid()))
    try:
        with _refused(target):
            _write(source, part)
            faults.at("backup.copied")
            events = _settle(part, clock, chance)
            _verify(part, target)
            size = part.stat().st_size
            faults.at("backup.checked")
            part.chmod(stat.S_IMODE(Path(source).stat().st_mode))
            _to_disk(part)
            _name(part, where)
            _to_disk(where.parent)
            faults.at("backup.named")
    finally:
        _remove(part)
    return events, size


def _check(where: Path) -> None:
    problem = ""
    if os.path.lexists(where):
        problem = "it exists"
    elif not where.parent.is_dir():
        problem = f"the folder {where.parent} does not exist"
    if problem:
        raise errors.BackupRefused(target=str(where), problem=problem)


def _sweep(where: Path) -> None:
    """Remove what a killed backup has left."""
    pattern = re.compile(
        re.escape(_PART).replace(r"\{name\}", re.escape(where.name)).replace(r"\{pid\}", r"(\d+)")
    )
    for one in where.parent.iterdir():
        found = pattern.match(one.name)
        if found is not None and not _lives(int(found[1])):
            _remove(where.with_name(found[0]))


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


@contextmanager
def _refused(target: str) -> Generator[None]:
    """Turn what the disk says into a refusal."""
    try:
        yield
    except FileExistsError:
        raise errors.BackupRefused(target=target, problem="it exists") from None
    except errors.FileLimited as fault:
        problem = "this process may not write files of more than {limit_bytes} bytes".format(**fault.context)
        raise errors.BackupRefused(target=target, problem=problem, hint=fault.hint) from fault
    except errors.DiskFull as fault:
        raise errors.BackupRefused(target=target, problem=_FULL) from fault
    except OSError as fault:
        full = fault.errno in (errno.ENOSPC, errno.EDQUOT)
        problem = _FULL if full else str(fault.strerror or fault)
        raise errors.BackupRefused(target=target, problem=problem) from fault


def _write(source: str, part: Path) -> None:
    """Copy what the journal holds at one moment; a reader, so nobody waits for it."""
    refused: apsw.Error | None = None
    with mapped(source):
        db = open_file(source)
        try:
            db.set_progress_handler(lambda: False, STEPS_BETWEEN_LOOKS)  # Python sees to its signals
            db.execute(load("care.sql").copy_to, (str(part),))
        except (apsw.FullError, apsw.CantOpenError, apsw.IOError) as fault:
            refused = fault  # by the disk of the copy: the journal is only read
        finally:
            db.close()
    if refused is not None:
        told = translated(refused, str(part))
        raise told if isinstance(told, errors.DiskFull) else OSError(str(refused)) from refused


def _settle(part: Path, clock: Clock, chance: Chance) -> int:
    """In the copy nobody has anything in hand: what ran at that moment waits for its turn."""
    queries: Any = load("care.sql")
    db = Connection(str(part), durability="normal", clock=clock, chance=chance, faults=NoFaults())
    try:
        with mapped(str(part)):
            db.rows(db.queries.begin)
            for (sub,) in db.rows(queries.subscriptions):
                for tp, _, _ in db.rows(load("handlers.sql").positions, (sub,)):
                    fence(db, sub, tp)
            db.rows(queries.workers_forget)
            db.rows(queries.members_forget)
            db.rows(db.queries.commit)
            db.rows(queries.empty_wal)
            return int(db.row(queries.events)[0])
    finally:
        db.close()


def _verify(part: Path, target: str) -> None:
    reader = Reader(str(part))
    try:
        found = verify(reader)
    finally:
        reader.close()
    if found:
        problem = f"the journal is not sound ({found[0].rule}: {found[0].where})"
        raise errors.BackupRefused(
            target=target, problem=problem, hint="``headrace status --verify`` tells all"
        )


def _to_disk(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _name(part: Path, where: Path) -> None:
    """Give the copy its name: by a link, which unlike a renaming never replaces what is there."""
    try:
        os.link(part, where)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        _check(where)
        part.rename(where)


def _remove(part: Path) -> None:
    for name in ("", "-wal", "-shm", "-journal"):
        with suppress(OSError):
            Path(f"{part}{name}").unlink()
    rmtree(notify_path(str(part)), ignore_errors=True)
