"""What one loop does again and again, each thing at a pace of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from headrace import errors
from headrace.ports import Clock

#: Waits after an outage of the journal: doubled each time, so that a full disk is not hammered.
OUTAGE_S_MIN, OUTAGE_S_MAX = 0.05, 5.0
#: An outage is waited out in steps of so much, so that a stop is heard.
HEAR_S = 0.25
#: Whoever stops tries so long to commit what is finished: a bad moment then does not look like a crash.
PARTING_S_MAX = 5.0


class Rhythm:
    """Remembers when each thing is to be done next, and when some were done last."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due_ns: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}

    def due(self, what: str, every_s: float) -> bool:
        """Return ``True`` when it is time, and be due again so much later: the loop wakes for it."""
        now = self._clock.boot_ns()
        if now < self._due_ns.get(what, 0):
            return False
        self._due_ns[what] = now + int(every_s * 1e9)
        return True

    def forget(self, what: str) -> None:
        """Be due at once when it is asked for again; the loop does not wake for it."""
        self._due_ns.pop(what, None)

    def every(self, what: str, every_ms: float) -> bool:
        """Return ``True`` when the time since the last ``True`` is long enough; nobody wakes for it."""
        now = self._clock.boot_ns()
        if now < self._last_ns.get(what, 0) + int(every_ms * 1e6):
            return False
        self._last_ns[what] = now
        return True

    def wait_s(self, at_most_s: float) -> float:
        """Return the time until something is due."""
        if not self._due_ns:
            return at_most_s
        return min(at_most_s, max(0.0, (min(self._due_ns.values()) - self._clock.boot_ns()) / 1e9))


async def rest(seconds: float, clock: Clock, stopping: Callable[[], bool]) -> None:
    """Wait, but not on once the worker stops."""
    until_ns = clock.boot_ns() + int(seconds * 1e9)
    while not stopping() and (left_s := (until_ns - clock.boot_ns()) / 1e9) > 0:
        await clock.sleep(min(HEAR_S, left_s))


async def insist(call: Callable[[], Awaitable[object]], clock: Clock) -> None:
    """Do something at the end of a worker: through an outage of moments, but not for ever.

    Raises the `JournalError` that was the last.
    """
    until, wait_s = clock.boot_ns() + int(PARTING_S_MAX * 1e9), OUTAGE_S_MIN
    while True:
        try:
            await call()
        except errors.JournalError as fault:
            if not fault.retryable or clock.boot_ns() + wait_s * 1e9 > until:
                raise
        else:
            return
        await clock.sleep(wait_s)
        wait_s = min(OUTAGE_S_MAX, wait_s * 2)
