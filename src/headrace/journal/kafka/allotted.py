"""What a replay was allotted of a topic, by partition, as its consumer has it in mind."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence

from headrace.journal.allotment import Interval
from headrace.ports.index import Bound


class Allotted:
    """Intervals of offsets; (after, upto) are those from ``after`` on and before ``upto``.

    They only ever grow, at their ends.  Threads may read while that happens.
    """

    def __init__(
        self, parts: Mapping[int, Sequence[Interval]], where: str = "", topic_id: bytes = b""
    ) -> None:
        self._parts = {at: list(found) for at, found in parts.items() if found}
        #: The cluster's id of the topic: of one that was deleted and made again this says nothing.
        self.topic_id = topic_id
        #: For people: where the results lie.
        self.where = where

    def grow(self, parts: Mapping[int, Sequence[Interval]]) -> None:
        """Take note of what was allotted since: these are all intervals there are."""
        self._parts = {at: list(found) for at, found in parts.items() if found}

    def first(self, partition: int) -> int | None:
        """Return the first offset of a partition, ``None`` where it has nothing of it."""
        found = self._parts.get(partition)
        return found[0][0] if found else None

    def stop(self, partition: int) -> int:
        """Return the first offset beyond the last interval of a partition."""
        found = self._parts.get(partition)
        return found[-1][1] if found else 0

    def has(self, partition: int, offset: int) -> bool:
        """Return whether an offset is to be handled."""
        found = self._parts.get(partition, ())
        at = bisect_right(found, offset, key=_after) - 1
        return at >= 0 and offset < found[at][1]

    def within(self, partition: int, after: int, upto: int) -> list[Bound]:
        """Return what of a stretch is to be handled."""
        return [
            Bound(partition, max(after, begin), min(upto, end))
            for begin, end in self._parts.get(partition, ())
            if begin < upto and end > after
        ]


def _after(interval: Interval) -> int:
    return interval[0]
