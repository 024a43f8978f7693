"""Dynamic batching: calls of one model are gathered while it is busy, and never wait when it is idle."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any

from headrace import errors
from headrace.gate.quick import Quick
from headrace.ports import LoadedModel

_Call = tuple[object, "asyncio.Future[Any]"]


def _perhaps() -> bool:
    return True


class Gather:
    """Collects inputs of concurrent handlers into batches for one set of weights.

    A batch is sent when a tick of the event loop brings no further input, or when it is full; with
    ``wait_ms`` above 0 a batch that is not full waits as long.  While one batch is in the model the next
    one is gathered.  A batch that fails is repeated one by one, so that one poison input does not fail
    its neighbours.  Batches run in a thread; those of a quick model, if it allows that, on the loop.
    """

    def __init__(
        self, model: LoadedModel, executor: Executor, *, batch_max: int = 64, wait_ms: float = 0.0
    ) -> None:
        self.model = model
        self._executor = executor
        self._batch_max = batch_max
        self._wait_s = wait_ms / 1000
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Call] = deque()
        self._seen = 0
        self._ticking = self._busy = False
        self._timer: asyncio.TimerHandle | None = None
        self._on_loop = bool(getattr(model, "on_loop", False))
        self._quick, self._now = Quick(), self._loop.time
        #: Set by whoever runs the handlers: is somebody about to call who has not begun yet?
        self.coming: Callable[[], bool] = _perhaps
        #: How many batches of each size were sent: a swallowed fault that gives batches of one shows here.
        self.sizes: dict[int, int] = {}

    def __call__(self, value: object) -> asyncio.Future[Any]:
        """Return the future result of one input."""
        future: asyncio.Future[Any] = self._loop.create_future()
        self._queue.append((value, future))
        if self._timer is not None and len(self._queue) >= self._batch_max:
            self._timer.cancel()  # it is full: nothing to wait for
            self._tick_soon()
        elif not self._ticking and not self._busy:
            alone = not (self._wait_s or self.coming())
            self._tick_soon()  # who calls again before the loop has turned has to let it turn
            if alone:
                self._send()
        return future

    def _tick_soon(self) -> None:
        self._ticking, self._seen, self._timer = True, 0, None
        if self._wait_s and len(self._queue) < self._batch_max:
            self._timer = self._loop.call_later(self._wait_s, self._tick)
        else:
            self._loop.call_soon(self._tick)

    def _tick(self) -> None:
        """Send the batch once nothing new has come since the last look, or nobody else can come."""
        size = len(self._queue)
        if self._seen < size < self._batch_max and not self._wait_s and self.coming():
            self._seen = size
            self._loop.call_soon(self._tick)
            return
        self._ticking, self._timer = False, None
        if not self._busy:
            self._send()

    def _send(self) -> None:
        batch: list[_Call] = []
        while self._queue and len(batch) < self._batch_max:
            call = self._queue.popleft()
            if not call[1].done():  # cancelled meanwhile: a deadline, or a stop
                batch.append(call)
        if not batch:
            return
        self.sizes[len(batch)] = self.sizes.get(len(batch), 0) + 1
        inputs = [value for value, _ in batch]
        try:
            if self._on_loop and self._quick.may(len(batch)):
                self._give(batch, self._timed(inputs, on_loop=True))
                return
            running = self._loop.run_in_executor(self._executor, self._timed, inputs)
        except BaseException as fault:  # noqa: BLE001 - as from a thread: it is for those who have asked
            self._give(batch, [fault] * len(batch))
            return
        self._busy = True
        running.add_done_callback(lambda done: self._done(batch, done))

    def _timed(self, inputs: list[object], *, on_loop: bool = False) -> list[Any]:
        """Run a batch, and note what it takes."""
        began = self._now()
        results = _infer(self.model, inputs)
        self._quick.note((self._now() - began) * 1000, len(inputs), on_loop=on_loop)
        return results

    def _done(self, batch: list[_Call], running: asyncio.Future[list[Any]]) -> None:
        self._busy = False
        if running.cancelled():
            self._give(batch, [asyncio.CancelledError()] * len(batch))
        else:
            fault = running.exception()
            self._give(batch, running.result() if fault is None else [fault] * len(batch))

    def _give(self, batch: list[_Call], results: list[Any]) -> None:
        for (_, future), result in zip(batch, results, strict=True):
            if future.done():
                continue
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)
        if self._queue and not self._ticking:
            self._tick_soon()


def _infer(model: LoadedModel, inputs: list[object]) -> list[Any]:
    """One call for all; after a failure, of whatever kind, one call each, so that only the guilty fail."""
    try:
        return _checked(model, inputs)
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # noqa: BLE001 - every input gets its own result or its own fault below
        if len(inputs) == 1:
            # A future cannot carry a StopIteration: it becomes what it becomes in a coroutine.
            stopped = isinstance(fault, StopIteration)
            return [RuntimeError("the model raised StopIteration") if stopped else fault]
    return [_infer(model, [value])[0] for value in inputs]


def _checked(model: LoadedModel, inputs: list[object]) -> list[Any]:
    results = model.infer(inputs)
    if len(results) != len(inputs):
        problem = f"{len(results)} results for {len(inputs)} inputs"
        raise errors.ModelOutput(model=model.name, problem=problem)
    return results


class Ask:
    """The ``model`` of one handler call: passes inputs on and remembers the confidence."""

    __slots__ = ("confidence", "gather")

    def __init__(self, gather: Gather) -> None:
        self.gather = gather
        #: The lowest confidence of the results so far.
        self.confidence: float | None = None

    async def __call__(self, value: object) -> Any:
        """Return the model's result for one input."""
        return self._noted(await self.gather(value))

    def _noted(self, result: Any) -> Any:
        found = getattr(result, "confidence", None)
        if found is not None and (self.confidence is None or found < self.confidence):
            self.confidence = float(found)
        return result


class _NothingAsked:
    """Stands for the `Ask` of a handler without a model."""

    confidence: float | None = None


NOTHING_ASKED = _NothingAsked()


class AskFromThread(Ask):
    """The ``model`` of a plain handler, which runs in a thread: called without ``await``."""

    __slots__ = ("_loop",)

    def __init__(self, gather: Gather, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(gather)
        self._loop = loop

    def __call__(self, value: object) -> Any:
        """Return the model's result for one input; waits in this thread."""
        return self._noted(asyncio.run_coroutine_threadsafe(self._one(value), self._loop).result())

    async def _one(self, value: object) -> Any:
        return await self.gather(value)
