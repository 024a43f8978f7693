"""Who reads a journal for so long that its WAL cannot be emptied: asked of the kernel, where it tells."""

from __future__ import annotations

from pathlib import Path

#: SQLite's locks in the -shm (sqlite.org/walformat.html): a reader holds one of five bytes from here on.
_READ_FIRST, _READ_LAST = 123, 127
#: Fields of a line of /proc/locks: number, kind, how, mode, process, file, first and last byte.
FIELDS = 8
UNKNOWN = "a reader holds it"


def holder_of(journal: str, locks: str = "/proc/locks") -> str:
    """Return who holds the WAL of a journal open, in words."""
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
    inside = int(first) <= _READ_LAST and int(last) >= _READ_FIRST
    return int(pid) if inside else None
