"""Plain handlers in processes: pure-Python work that would hold the interpreter lock of the worker."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from headrace import errors

_log = logging.getLogger("headrace.worker")


class ProcessPool:
    """Child processes (spawned, never forked: a fork would copy locks and sessions) for one handler.

    A child that dies takes the calls of its siblings with it: all of them count as crashed, and are then
    tried one by one, as after the death of a worker.
    """

    def __init__(self, handler: str, processes: int) -> None:
        self._handler = handler
        self._processes = min(processes, os.cpu_count() or 1)
        self._pool: ProcessPoolExecutor | None = None

    def calling(self, fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Return a function in the shape of a coroutine function that runs ``fn`` in a child."""

        async def call(event: Any) -> Any:
            loop = asyncio.get_running_loop()
            pool = self._open()
            try:
                return await loop.run_in_executor(pool, _run, fn, event)
            except BrokenProcessPool:
                self._forget(pool)
                raise errors.PoolCrashed(handler=self._handler) from None
            except asyncio.CancelledError:
                # The deadline, or a stop: what runs in a child cannot be told to end.
                self._kill(pool)
                raise

        return call

    def _open(self) -> ProcessPoolExecutor:
        if self._pool is None:
            context = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self._processes, mp_context=context)
        return self._pool

    def _forget(self, pool: ProcessPoolExecutor) -> None:
        if self._pool is pool:
            self._pool = None
            _log.error("a process of handler %s died; its calls are tried again one by one", self._handler)
        pool.shutdown(wait=False, cancel_futures=True)

    def _kill(self, pool: ProcessPoolExecutor) -> None:
        if self._pool is pool:
            self._pool = None
        children: dict[int, Any] = getattr(pool, "_processes", None) or {}
        for child in list(children.values()):
            child.kill()
        pool.shutdown(wait=False, cancel_futures=True)

    def shutdown(self, *, wait: bool = False, cancel_futures: bool = True) -> None:
        """End the children."""
        del wait, cancel_futures
        if self._pool is not None:
            self._kill(self._pool)


def _run(fn: Callable[..., Any], event: Any) -> Any:
    """In a child: a future cannot carry `StopIteration`, so it becomes what it becomes in a coroutine."""
    try:
        return fn(event)
    except StopIteration as fault:
        raise RuntimeError("the handler raised StopIteration") from fault
