"""How many events one handler may have in hand, and how many are claimed at once."""

from __future__ import annotations

from collections.abc import Callable

#: Events claimed at once by a handler that keeps up; it halves when a batch is not done in time.
CLAIM_MAX = 512
#: Events in hand of one handler, when most of them stand in line behind few keys.
ALOFT_MAX = 4 * CLAIM_MAX
#: So few are written before more is claimed; with more, claims go on meanwhile.
LITTLE = CLAIM_MAX // 4


class Window:
    """The bound of one handler: it grows where batches end in time, and shrinks where they do not."""

    def __init__(self, concurrency: int, *, apart: bool) -> None:
        """``apart`` says that the next batch is claimed ahead, not together with an outcome."""
        self._concurrency, self._batches = concurrency, 1 + apart
        self._size = CLAIM_MAX

    @property
    def bound(self) -> int:
        """How many events may be in hand: one batch more where the next is claimed ahead."""
        return self._size * self._batches

    def free(self, aloft: int, *, hungry: Callable[[], bool]) -> int:
        """Return how many may be claimed beside those in hand."""
        if aloft < self.bound:
            return min(CLAIM_MAX, self.bound - aloft)
        # A few keys have long lines, and nobody stands in the others: look for other keys.
        return self._size if aloft < ALOFT_MAX and hungry() else 0

    def adapt(self, *, in_time: bool) -> None:
        """Claim much where batches end in time, no more than what can run where they do not."""
        if in_time:
            self._size = min(CLAIM_MAX, self._size * 2)
        else:
            self._size = max(min(2 * self._concurrency, CLAIM_MAX), self._size // 2)
