"""How many events may begin now, where somebody has said how many a second; the caller brings the time."""

from __future__ import annotations

from math import ceil

#: As much of a second may begin at once, so that events of a quick handler are claimed together.
BURST_S = 0.1
#: What has come free within this time is taken together.
GRAIN_S = 0.02
RATE_PER_S_MAX = 1_000_000.0


#: No bound.
UNLIMITED = 1 << 30


class Rate:
    """A bucket that fills at a steady rate, and an event takes one drop; ``None`` is no bound."""

    def __init__(self, per_s: float | None) -> None:
        self.limited = per_s is not None
        self._per_s = per_s = per_s or RATE_PER_S_MAX
        self._most = max(1.0, per_s * BURST_S)
        self._grain = max(1.0, min(self._most, per_s * GRAIN_S))
        self._drops = self._most
        self._seen_ns: int | None = None

    def room(self, now_ns: int, in_hand: int) -> int:
        """Return how many may be taken now.

        What is in hand is bounded by what may begin in a second: behind a handler that hung, no more than
        that begins at once.
        """
        if not self.limited:
            return UNLIMITED
        self._fill(now_ns)
        if self._drops < self._grain:
            return 0
        return max(0, min(int(self._drops), ceil(max(1.0, self._per_s)) - in_hand))

    def take(self, count: int) -> None:
        """Note that so many were taken."""
        self._drops -= count

    def wait_s(self, now_ns: int) -> float:
        """Return how long until more may be taken."""
        if not self.limited:
            return 0.0
        self._fill(now_ns)
        short = self._grain - self._drops
        return short / self._per_s + 1e-6 if short > 0 else 0.0  # a little late rather than a little early

    def _fill(self, now_ns: int) -> None:
        since_s = 0.0 if self._seen_ns is None else (now_ns - self._seen_ns) / 1e9
        self._seen_ns = now_ns
        self._drops = min(self._most, self._drops + since_s * self._per_s)
