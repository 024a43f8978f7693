"""Threads for plain handlers and models that do not hold up the end of the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Job = tuple["Future[Any]", Callable[[], Any]]


class Threads(Executor):
    """At most ``count`` daemon threads, started when they are needed.

    The pool of the standard library joins its threads when the interpreter ends, so a handler that does not
    return would keep a stopped worker alive for as long as it likes.
    """

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._started = 0
        self._closed = False

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run a call in a thread; its future."""
        if self._closed:
            raise RuntimeError("cannot submit after shutdown")
        future: Future[T] = Future()
        self._queue.put((future, lambda: fn(*args, **kwargs)))
        with self._lock:
            if not self._idle.acquire(blocking=False) and self._started < self._count:
                self._started += 1
                name = f"{self._name}-{self._started}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
        return future

    def _work(self) -> None:
        while (job := self._queue.get()) is not None:
            future, call = job
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as fault:  # noqa: BLE001 - it belongs to whoever waits for the result
                    future.set_exception(fault)
            del job, future, call  # an idle thread keeps nothing alive
            self._idle.release()

    def shutdown(self, wait: bool = False, *, cancel_futures: bool = False) -> None:  # noqa: FBT001, FBT002
        """Accept no more; let the threads end when they are idle.  Never waits."""
        del wait
        self._closed = True
        while cancel_futures and not self._queue.empty():
            job = self._queue.get()
            if job is not None:
                job[0].cancel()
        for _ in range(self._started):
            self._queue.put(None)
