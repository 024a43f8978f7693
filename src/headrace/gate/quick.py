"""May something that blocks be done on the event loop?  Where it is quick, a thread takes longer to reach."""

from __future__ import annotations

from collections import deque

#: What is expected to take no longer may be done on the loop: the way to a thread and back takes as long
#: (measured beside other work: 0.2 ms more in the median, 2 ms in the 95th percentile).
QUICK_MS_MAX = 0.5
#: The quickest of so many times is what it takes: all that comes on top (other threads, other programs) is
#: noise, and there is more of it in a thread, so that a mean would never find the way back to the loop.
TIMES_KEPT = 16
#: Whatever took so long on the loop is done in a thread for the next so many times.
SLOW_MS, ASIDE = 5.0, 64


class Quick:
    """Learns from measured times; to be asked before each call."""

    def __init__(self) -> None:
        self._times_ms: deque[float] = deque(maxlen=TIMES_KEPT)
        self._aside = 0

    def may(self, units: int = 1) -> bool:
        """Return whether so much may be done on the loop."""
        times = self._times_ms
        return not self._aside and len(times) == TIMES_KEPT and min(times) * units <= QUICK_MS_MAX

    def note(self, took_ms: float, units: int = 1, *, on_loop: bool) -> None:
        """Learn how long so much has taken."""
        self._times_ms.append(took_ms / units)
        if on_loop and took_ms > SLOW_MS:
            self._aside = ASIDE
        elif self._aside:
            self._aside -= 1
