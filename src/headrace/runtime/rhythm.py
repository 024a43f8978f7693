"""What one loop does again and again, each thing at a pace of its own."""

from __future__ import annotations

from headrace.ports import Clock


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
