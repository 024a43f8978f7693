"""The source files below a folder, and which of them have changed: looked at, not watched (ADR 8)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib.util import cache_from_source
from pathlib import Path

#: Files that are looked at; a look takes 5 us for each.
FILES_MAX = 5_000
#: Settings, which are read when a process starts.
_SETTINGS = ("headrace.toml", "pyproject.toml")
_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")

#: What tells one content of a file from another without reading it: inode, size, time of change.
Stamp = tuple[int, int, int]


class Sources:
    """Tells which files have changed and rest: one that is being written is left alone for one more look."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder.resolve() for folder in folders]
        self._taken = self._seen = self._stamps()

    def changed(self) -> list[str]:
        """Return the files that are new, gone or different since the last time that this was told."""
        before, self._seen = self._seen, self._stamps()
        if self._seen != before or self._seen == self._taken:
            return []
        taken, self._taken = self._taken, self._seen
        return sorted(path for path in taken.keys() | self._seen.keys() if self._differs(taken, path))

    def _differs(self, taken: dict[str, Stamp], path: str) -> bool:
        return taken.get(path) != self._seen.get(path)

    def full(self) -> bool:
        """Return whether there are more files than are looked at."""
        return len(self._seen) >= FILES_MAX

    def _stamps(self) -> dict[str, Stamp]:
        found: dict[str, Stamp] = {}
        for folder in self._folders:
            for path, stamp in _below(str(folder)):
                found[path] = stamp
                if len(found) >= FILES_MAX:
                    return found
        return found


def _below(top: str) -> Iterator[tuple[str, Stamp]]:
    """Yield the source files of a folder, and of those in it; virtual environments are passed over."""
    folders = [top]
    while folders:
        with suppress(OSError), os.scandir(folders.pop()) as entries:
            here = list(entries)
            if any(one.name == "pyvenv.cfg" for one in here):
                continue
            for one in here:
                with suppress(OSError):
                    if one.is_dir(follow_symlinks=False):
                        if not one.name.startswith(".") and one.name not in _PASSED_OVER:
                            folders.append(one.path)
                    elif one.name.endswith(".py") or one.name in _SETTINGS:
                        about = one.stat()
                        yield one.path, (about.st_ino, about.st_size, about.st_mtime_ns)


def forget_byte_code(files: Sequence[str]) -> None:
    """Remove the compiled form of files that have changed.

    Python takes it for right while size and second of the source are the same, which two quick changes of a
    letter are.
    """
    for file in files:
        with suppress(OSError, NotImplementedError):
            Path(cache_from_source(file)).unlink(missing_ok=True)
