"""A walker as others see it: which event it is at, and since when."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from headrace import errors
from headrace.ports import Row
from headrace.runtime.flight import Line


class Slot:
    """One walker: which event it is at, for the deadline."""

    __slots__ = ("abandoned", "at", "expired", "line", "seen", "seen_ns", "task", "thread")

    def __init__(self) -> None:
        self.line: Line = []
        self.at = 0  # index after the event it is at; 0 = between two lines
        self.task: asyncio.Task[None] | None = None
        self.thread = 0
        self.seen: Row | None = None
        self.seen_ns = 0
        self.expired = False  # its event is over its deadline and is being cancelled
        self.abandoned = False  # it did not heed the cancellation: what it comes to is dropped

    def heeded(self) -> None:
        """Note that the event which was over its deadline has ended: the next has a deadline of its own."""
        self.expired = False
        if self.task is not None:
            self.task.uncancel()


def changed(base: contextvars.Context) -> bool:
    """Return whether context variables were set meanwhile; values that refuse to be compared count as set."""
    try:
        return contextvars.copy_context() != base
    except Exception:  # noqa: BLE001 - they are the user's: arrays, for one
        return True


def drive(
    slot: Slot, context: contextvars.Context, walk: Callable[[Slot], Coroutine[Any, Any, None]]
) -> None:
    """In a thread: run a walker of a plain handler; nothing in it suspends.

    It is made here: of one that waits for a thread until the pool is closed nothing is left to be awaited.
    """
    slot.thread = threading.get_ident()
    walking = walk(slot)
    try:
        context.run(walking.send, None)
    except StopIteration:
        return
    walking.close()
    raise errors.SignatureInvalid(handler="?", problem="a plain handler suspended; declare it with async def")
