"""Deadlines without a timer per event: a look at the walkers now and then."""

from __future__ import annotations

import sys
import traceback

from headrace import errors
from headrace.ports import Clock
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.slot import Slot

#: Looks per deadline: an event is stopped at most a quarter of its deadline too late.
LOOKS = 4
LOOK_S_MAX = 1.0
#: A cancelled handler that goes on for longer than this is left to itself.
GRACE_NS = 1_000_000_000


class DeadlineWatch:
    """Cancels what is over its deadline; what cannot be cancelled is abandoned and its result dropped."""

    def __init__(self, pipeline: Pipeline, clock: Clock, deadline_ms: int) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._deadline_ns = deadline_ms * 1_000_000
        #: How often `look` wants to be called.
        self.interval_s = min(LOOK_S_MAX, deadline_ms / 1000 / LOOKS)

    def look(self) -> None:
        """Stop the events that have run for longer than the deadline."""
        now = self._clock.boot_ns()
        for slot in list(self._pipeline.slots):
            if not slot.at:
                continue
            row = slot.line[slot.at - 1][1]
            if row is not slot.seen:
                slot.seen, slot.seen_ns = row, now
                continue
            late_ns = now - slot.seen_ns - self._deadline_ns
            if late_ns >= 0:
                self._stop(slot, late_ns)

    def _stop(self, slot: Slot, late_ns: int) -> None:
        if slot.task is None:  # a thread cannot be stopped from outside
            self._abandon(slot)
        elif not slot.expired:
            slot.expired = True
            slot.task.cancel("deadline")
        elif late_ns > GRACE_NS:
            self._abandon(slot)

    def _abandon(self, slot: Slot) -> None:
        handler = slot.line[slot.at - 1][0].plan.handler
        error = errors.DeadlineExceeded(_where(slot), handler=handler.name, deadline_ms=handler.deadline_ms)
        self._pipeline.abandon(slot, error)


def _where(slot: Slot) -> str:
    """Return the stack of a thread that does not return, or nothing for a task (its traceback tells)."""
    frame = sys._current_frames().get(slot.thread) if slot.thread else None  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - no public form
    if frame is None:
        return ""
    return "It was at:\n" + "".join(traceback.format_stack(frame)[-8:])
