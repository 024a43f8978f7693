"""Tells other processes of a commit, by files that they watch.

A folder beside the journal has files for every eighth topic, and for what concerns everybody: whoever waits
for events of one topic is not woken by those of others (measured at 500 events a second: a worker that emits
what it does not consume was woken twice an event, and a follower of its results twice as well).

Each time there are two: one is read after the commit, and workers look at once, for what they make of an
unflushed event is flushed after it.  The other is read when the commit is on disk: only then those look who
tell people.  A file is read and not written, for a write would now and then wait for the file system's own
journal (measured: p95 0.5 ms); and not opened, which takes twice as long.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import sys
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from struct import Struct

_IN_ACCESS = 0x1
_IN_NONBLOCK_CLOEXEC = os.O_NONBLOCK | os.O_CLOEXEC
#: What inotify tells of a watched file: its watch, and what was done; a cookie, and the length of no name.
_TOLD = Struct("iI8x")
#: Without inotify (macOS) a waiting process looks this often; with it, this seldom, as a net below.
POLL_MS = 5
NET_MS = 250
#: Topics share so many files; one more is for what concerns all.
SLOTS = 8
EVERYBODY = SLOTS

#: Whom a commit concerns: everybody, nobody, or those who wait for events of some topics.
Tell = bool | Collection[int]
ALL: Tell = True


def notify_path(journal: str) -> str:
    """Return the folder that tells of commits: one for a journal, whatever links lead to it.

    It is hidden: whoever copies or removes ``headrace.db*`` has all that is worth it.
    """
    folder, name = os.path.split(os.path.realpath(journal))
    return os.path.join(folder, f".{name}-notify")  # noqa: PTH118 - it is text for its users


def joined(tells: Iterable[Tell]) -> Tell:
    """Return whom several commits concern."""
    topics: set[int] = set()
    for tell in tells:
        if tell is True:
            return ALL
        if tell:
            topics.update(tell)
    return topics


def _slots(tell: Tell) -> Collection[int]:
    """Return the files that tell of a commit, which concerns somebody."""
    return {topic % SLOTS for topic in tell} if isinstance(tell, Collection) else (EVERYBODY,)


def _path(folder: str, slot: int, *, flushed: bool) -> str:
    return f"{folder}/{'all' if slot == EVERYBODY else slot}{'-disk' if flushed else ''}"


def _prepare(folder: str, mode: int) -> None:
    """Make the folder for whoever may use the journal: who may read that, may look into it."""
    Path(folder).mkdir(mode | (mode & 0o444) >> 2, exist_ok=True)


class Notifier:
    """The writing side: keeps the files open."""

    def __init__(self, folder: str, mode: int) -> None:
        """Open the files, or make them for whoever may use the journal (``mode``)."""
        self._committed, self._flushed = [-1] * (SLOTS + 1), [-1] * (SLOTS + 1)
        #: Files by which we have told something since we were asked.
        self._own: set[int] = set()
        # Where they are another user's, the watchers' net catches what is missed.
        with suppress(OSError):
            _prepare(folder, mode)
        with suppress(OSError):
            for slot in range(SLOTS + 1):
                for fds, flushed in ((self._committed, False), (self._flushed, True)):
                    path = _path(folder, slot, flushed=flushed)
                    fds[slot] = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, mode)

    def committed(self, tell: Tell) -> None:
        """Wake who wants to know of commits."""
        slots = _slots(tell)
        self._own.update(slots)
        for slot in slots:
            _touch(self._committed[slot])

    def told_so(self, topics: Collection[int]) -> bool:
        """Return whether news of topics may be our own."""
        own = self._own.intersection(_slots(topics))
        self._own -= own
        return bool(own)

    def flushed(self, tell: Tell) -> None:
        """Wake who wants to know of what is on disk; may run in any thread."""
        for slot in _slots(tell):
            _touch(self._flushed[slot])

    def close(self) -> None:
        """Close the files."""
        for fd in self._committed + self._flushed:
            if fd >= 0:
                os.close(fd)


def _touch(fd: int) -> None:
    """Wake who watches a file.

    Runs after a commit, so it must not fail: the watchers' net catches what is missed.
    """
    with suppress(OSError):
        if not os.pread(fd, 1, 0):  # new, or emptied by somebody: reading nothing wakes nobody
            os.pwrite(fd, b"x", 0)
            os.pread(fd, 1, 0)


class Watch:
    """The waiting side: calls back on the event loop when another process may have committed.

    It says which of the topics that are listened to may be concerned, or `ALL`: also when nobody has told
    anything and it is only time to look.  With ``flushed`` it is called when the commit is on disk.
    """

    def __init__(
        self,
        folder: str,
        wake: Callable[[Tell], None],
        *,
        topics: Collection[int] | None = None,
        flushed: bool = False,
        polling: bool = False,
    ) -> None:
        """Listen to what concerns everybody, and to some topics, or to all."""
        self._loop = asyncio.get_running_loop()
        self._wake = wake
        self._folder, self._flushed = folder, flushed
        self._fd = -1 if polling else _inotify()
        #: Whom each watch tells of.
        self._tells: dict[int, Tell] = {}
        self.interval_ms = NET_MS
        self._listen(EVERYBODY, ALL)
        for slot in range(SLOTS) if topics is None else ():
            self._listen(slot, ALL)
        for topic in topics or ():
            self.listen(topic)
        if self._fd >= 0:
            self._loop.add_reader(self._fd, self._readable)
        self._timer = self._loop.call_later(self.interval_ms / 1000, self._net)

    def listen(self, topic: int) -> None:
        """Listen to one more topic."""
        self._listen(topic % SLOTS, {topic})

    def _listen(self, slot: int, tell: Tell) -> None:
        path = _path(self._folder, slot, flushed=self._flushed)
        watch = -1 if self._fd < 0 else _add_watch(self._fd, path)
        if watch < 0:  # the user's limit of watches is reached, or the file is gone
            self.interval_ms = POLL_MS
        else:
            self._tells[watch] = joined([tell, self._tells.get(watch, ())])

    def _readable(self) -> None:
        try:
            told = os.read(self._fd, 65_536)
        except BlockingIOError:
            return
        news = list(_TOLD.iter_unpack(told))
        if any(done != _IN_ACCESS for _, done in news):
            # A file was deleted, and whoever comes makes another, or there was too much to tell.
            self.interval_ms, news = POLL_MS, []
        self._wake(joined([self._tells[watch] for watch, _ in news]) if news else ALL)

    def _net(self) -> None:
        self._timer = self._loop.call_later(self.interval_ms / 1000, self._net)
        self._wake(ALL)

    def close(self) -> None:
        """Stop watching."""
        self._timer.cancel()
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def has_inotify() -> bool:
    """Return whether a file can be watched here."""
    fd = _inotify()
    found = fd >= 0 and _add_watch(fd, os.devnull) >= 0
    if fd >= 0:
        os.close(fd)
    return found


def _inotify() -> int:
    """Return an inotify descriptor, or -1 where there is no inotify."""
    return int(_libc().inotify_init1(_IN_NONBLOCK_CLOEXEC)) if sys.platform == "linux" else -1


def _add_watch(fd: int, path: str) -> int:
    """Return the number of the watch of a file, or -1."""
    return int(_libc().inotify_add_watch(fd, path.encode(), _IN_ACCESS))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
