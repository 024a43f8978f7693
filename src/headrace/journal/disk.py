"""What happens to the file beside the work: commits are flushed, the WAL is copied into the file."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NamedTuple

import apsw

from headrace.gate.quick import Quick
from headrace.journal.notify import Tell, joined
from headrace.journal.queries import load
from headrace.ports import Clock

#: Called on the event loop with what went wrong, if it did.
Then = Callable[[OSError | None], None]
#: So long a checkpoint waits for who writes, and then for who reads; writers wait behind it.
RESTART_WAIT_MS = 10
_to_disk = getattr(os, "fdatasync", os.fsync)
#: The first flush that failed, for each journal: until the process ends nobody can say what is on disk.
_faults: dict[str, OSError] = {}


def room_bytes(path: str) -> int:
    """Return how many bytes may still be written beside a file, or `sys.maxsize` where nobody can say."""
    try:
        found = os.statvfs(path)
    except OSError:
        return sys.maxsize
    return found.f_bavail * found.f_frsize


class _Request(NamedTuple):
    tell: Tell
    loop: asyncio.AbstractEventLoop | None
    then: Then | None


class Flusher:
    """Puts commits on disk from a thread; those that are made meanwhile share the next flush.

    SQLite at ``synchronous=FULL`` flushes while it holds the write lock, so that nobody else can commit: at
    500 events a second half of the time.  Here commits are made at ``NORMAL``, and the WAL is flushed after
    the lock is let go, before anybody is told.  It is written in order, so a flush covers all before it.
    """

    def __init__(self, path: str, clock: Clock, tell_others: Callable[[Tell], None]) -> None:
        self._clock, self._tell_others = clock, tell_others
        self._path, self._quick = path, Quick()
        # SQLite locks the database and the -shm; a further descriptor of the -wal cannot release a lock.
        self._fd = os.open(f"{path}-wal", os.O_RDWR | os.O_CLOEXEC)
        #: One flush at a time: the kernel tells of a fault once, and who is not told takes all for kept.
        self._flushing = threading.Lock()
        #: Requests to flush; ``None`` = stop.
        self._wanted: SimpleQueue[_Request | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="headrace-flush", daemon=True)
        self._thread.start()

    @property
    def fault(self) -> OSError | None:
        """What went wrong with a flush of this journal, on whichever connection."""
        return _faults.get(self._path)

    def ask(self, *, tell: Tell, then: Then | None = None) -> None:
        """Have what is committed flushed, and other processes told if that ends well."""
        self._wanted.put(_Request(tell, then and asyncio.get_running_loop(), then))

    def quick(self) -> bool:
        """Return whether a flush is expected to take no longer than the way to the thread and back."""
        return self._quick.may() and self._wanted.empty() and not self._flushing.locked()

    def _run(self) -> None:
        going = True
        while going:
            wanted = [self._wanted.get()]
            with suppress(Empty):
                while True:  # all that is asked for by now shares this flush
                    wanted.append(self._wanted.get_nowait())
            going = None not in wanted
            asked = [one for one in wanted if one is not None]
            self.flush(tell=joined([one.tell for one in asked]))  # tells from here: the loop may be busy
            for loop in {one.loop for one in asked if one.loop is not None}:
                thens = [one.then for one in asked if one.then is not None and one.loop is loop]
                with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    loop.call_soon_threadsafe(_call, thens, self.fault)

    def flush(self, *, tell: Tell) -> None:
        """Flush in this thread, and tell other processes if that ends well."""
        with self._flushing:
            began = self._clock.boot_ns()
            try:
                _to_disk(self._fd)
            except OSError as fault:
                # A second try may report success for what the first has lost, so its success does not count.
                _faults.setdefault(self._path, fault)
            took_ms, here = (self._clock.boot_ns() - began) / 1e6, threading.current_thread()
            self._quick.note(took_ms, on_loop=here is not self._thread)
        if tell and self.fault is None:
            self._tell_others(tell)

    def close(self) -> None:
        """Flush what is left and stop the thread."""
        self._wanted.put(None)
        self._thread.join()
        os.close(self._fd)


def _call(thens: list[Then], fault: OSError | None) -> None:
    for then in thens:
        then(fault)


class Checkpointer:
    """Copies the WAL into the file on a connection and a thread of its own; at most one copy runs.

    On the loop a checkpoint makes the latency bimodal (measured: p95 1.1 to 3.5 ms).  Nearly all of it is
    copied while others write.  What they have added meanwhile is copied with the write lock held, so that the
    WAL begins anew: left to itself it does so only when a commit happens to find nothing that is not copied,
    and until then every commit would ask for a checkpoint, each with two flushes (measured with two writers:
    up to 100 of them, 70 ms long, once a second).
    """

    def __init__(self, path: str) -> None:
        self._db = apsw.Connection(path)
        self._db.execute("PRAGMA wal_autocheckpoint=0")
        self._db.execute(f"PRAGMA busy_timeout={RESTART_WAIT_MS}")
        queries = load("queries.sql")
        self._copy, self._restart = queries.checkpoint, queries.checkpoint_restart
        self._wanted = threading.Event()
        self._stopped = False
        self._running = False
        self._thread = threading.Thread(target=self._run, name="headrace-checkpoint", daemon=True)
        self._thread.start()

    def ask(self) -> None:
        """Have a checkpoint made soon."""
        self._wanted.set()

    def idle(self) -> bool:
        """Return whether none is running or asked for."""
        return not (self._wanted.is_set() or self._running)

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._running = True  # before it is taken for answered: at no moment is it neither
            self._wanted.clear()
            if self._stopped:
                return
            # Busy, full or failing disk: the writer meets the same fault and reports it.
            with suppress(apsw.Error):
                elsewhere, *_ = self._db.execute(self._copy).fetchall()[0]
                if not elsewhere:
                    self._db.execute(self._restart).fetchall()
            self._running = False  # what was asked for meanwhile is wanted still

    def close(self) -> None:
        """Stop the thread."""
        self._stopped = True
        self._wanted.set()
        self._thread.join()
        self._db.close()
