"""Events that stand in line: which of them may be run at the same time.

A batch begins as one line, in commit order, for one walker: enough for a handler that does not wait.  When
that walker suspends, or there are others, the line is parted: one line per key, one for each event without.
"""

from __future__ import annotations

from collections import deque

from headrace.runtime.flight import Line
from headrace.runtime.slot import Slot


class Lines:
    """The lines of one handler; not locked, the pipeline does that for threads."""

    __slots__ = ("by_key", "ready", "whole")

    def __init__(self) -> None:
        #: Lines that wait for a walker.
        self.ready: deque[Line] = deque()
        #: Lines of one key that are not at their end: later events of the key join them.
        self.by_key: dict[str | None, Line] = {}
        #: The line of a whole batch that was not parted, while it is not at its end.
        self.whole: Line | None = None

    def waiting(self) -> bool:
        """Return whether there is an event that another walker could begin with."""
        return bool(self.ready) or (self.whole is not None and len(self.whole) > 1)

    def add(self, line: Line, *, parted: bool) -> None:
        """Let walkers have the events of a batch."""
        if not line:
            return
        if parted:
            self._part(line)
        else:
            self.whole = line
            self.ready.append(line)

    def part(self, slots: set[Slot]) -> None:
        """Part the line that was not; what has the key of the event it is at stays behind that event."""
        line, self.whole = self.whole, None
        if line is None:
            return
        slot = next((one for one in slots if one.line is line), None)
        if slot is None or not slot.at:
            self.ready.remove(line)
            self._part(line)
            return
        rest = line[slot.at :]
        del line[slot.at :]
        key = line[slot.at - 1][2].key
        if key is not None:
            self.by_key[key] = line
        self._part(rest)

    def _part(self, line: Line) -> None:
        by_key, ready = self.by_key, self.ready.append
        for entry in line:
            key = entry[2].key
            if key is None:
                ready([entry])
            elif (known := by_key.get(key)) is None:
                known = by_key[key] = [entry]
                ready(known)
            else:
                known.append(entry)

    def end(self, line: Line, key: str | None) -> None:
        """Note that a line is at its end: from now on events of its key begin a new one."""
        if line is self.whole:
            self.whole = None
        else:
            self.by_key.pop(key, None)
