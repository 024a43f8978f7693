"""Who holds the locks of a journal in a file, and whether that process is stopped."""

from __future__ import annotations

import fcntl
import os
import struct
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: The bytes of the -shm file that SQLite locks in WAL mode (sqlite.org/walformat.html, "WAL Locks").
_LOCKS = {120: "write", 121: "checkpoint", 122: "recovery", **dict.fromkeys(range(123, 128), "read")}
#: ``struct flock``: BSD has the numbers before the kind, Linux after it; the rest is padding.
_LINUX = sys.platform == "linux"
_FLOCK = "hhqqi4x" if _LINUX else "qqihh"
#: Of a command line, for people.
_COMMAND_CHARS_MAX = 80
#: Of these bytes a reader holds one.
_READ = [byte for byte, name in _LOCKS.items() if name == "read"]
#: Fields of a line of /proc/locks: number, kind, how, mode, process, file, first and last byte.
FIELDS = 8
UNKNOWN = "a reader holds it"


class Hold(NamedTuple):
    """A lock that a process holds."""

    #: ``write``, ``read``, ``checkpoint`` or ``recovery``.
    lock: str
    #: 0 for a process of another container.
    pid: int
    #: It was stopped (SIGSTOP, Ctrl-Z, a debugger): it lets go of nothing until it goes on.
    stopped: bool
    command: str


def holders(path: str) -> list[Hold]:
    """Return who holds which lock at this moment, one process for each lock.

    Only for a process that has not got the journal open: closing a file lets go of all that the process has
    locked in it.  Raises `OSError` where the file cannot be looked at.
    """
    try:
        file = os.open(f"{os.path.realpath(path)}-shm", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return []  # nobody has the journal open
    try:
        found = [(name, _holder(file, byte)) for byte, name in _LOCKS.items()]
    finally:
        os.close(file)
    return [Hold(name, pid, is_stopped(pid), _command(pid)) for name, pid in found if pid is not None]


def _holder(file: int, byte: int) -> int | None:
    """Return the process that would be in the way of a lock on a byte."""
    asked = (fcntl.F_WRLCK, os.SEEK_SET, byte, 1, 0) if _LINUX else (byte, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
    answer = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, struct.pack(_FLOCK, *asked)))
    kind, pid = (answer[0], answer[4]) if _LINUX else (answer[3], answer[2])
    return None if kind == fcntl.F_UNLCK else pid


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped; False where the system does not tell."""
    with suppress(OSError, IndexError):
        # The name of the command, in brackets, may hold anything; the state comes behind it.
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()[0]
        return state in ("T", "t")
    return False


def _command(pid: int) -> str:
    with suppress(OSError):
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        return line.strip()[:_COMMAND_CHARS_MAX]
    return ""


def holder_of(journal: str, locks: str = "/proc/locks") -> str:
    """Return who holds the WAL of a journal open, in words: asked of the kernel, where it tells.

    For a process that has the journal open, too, which `holders` is not.
    """
    try:
        inode = Path(f"{journal}-shm").stat().st_ino
        lines = Path(locks).read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return UNKNOWN
    pids = sorted({pid for line in lines if (pid := _reader(line, inode)) is not None})
    return f"process {', '.join(map(str, pids))} reads it" if pids else UNKNOWN


def _reader(line: str, inode: int) -> int | None:
    """Return the process of a line such as ``1: POSIX ADVISORY READ 4711 fe:01:42 123 123``."""
    told = line.split()
    if len(told) != FIELDS or told[1] != "POSIX":
        return None
    _, _, _, _, pid, where, first, last = told
    if where.rpartition(":")[2] != str(inode) or not (first.isdecimal() and last.isdecimal()):
        return None
    inside = int(first) <= _READ[-1] and int(last) >= _READ[0]
    return int(pid) if inside else None
