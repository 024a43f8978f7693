"""What a worker keeps in mind of one partition it owns: position, open offsets, lines of waiting keys."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter

from headrace.ports import Attempt, Clock, OpenState

#: How soon to look again at what is due but was not taken.
DUE_LOOK_S = 0.005


@dataclass(slots=True)
class Open:
    """One offset below the position that is not finished."""

    seq: int
    state: OpenState
    attempt: Attempt
    due_ns: int  # on the boot clock
    key: str | None


@dataclass(slots=True)
class Held:
    """One partition, as its owner knows it."""

    tp: int
    epoch: int
    high: int
    version: int
    #: The position in the journal; ``high`` may be ahead where no events of this partition lie between.
    stored: int = 0
    #: Where the range that was claimed last begins.
    claimed_after: int = 0
    #: Rows of the claimed range that no outcome has touched yet; 0 = a new range may be claimed.
    unsettled: int = 0
    leaving: bool = False
    open: dict[int, Open] = field(default_factory=dict[int, Open])
    #: Offsets that are open, by key, in order: one event in flight per key.
    lines: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    #: The open offsets that wait for their turn.
    waiting: set[int] = field(default_factory=set[int])
    #: Those of them without a key: the others wait in their lines.
    loose: set[int] = field(default_factory=set[int])

    def copy(self) -> Held:
        """Return an independent copy: in a transaction only copies are changed, so that it can fail."""
        lines = {key: line.copy() for key, line in self.lines.items()}
        waiting, loose = self.waiting.copy(), self.loose.copy()
        return Held(  # spelled out: `replace` takes twice as long, and every transaction copies
            tp=self.tp, epoch=self.epoch, high=self.high, version=self.version, stored=self.stored,
            claimed_after=self.claimed_after, unsettled=self.unsettled, leaving=self.leaving,
            open=self.open.copy(), lines=lines, waiting=waiting, loose=loose,
        )  # fmt: skip

    def add(self, entry: Open) -> None:
        """Keep an offset open, and its key blocked."""
        new = entry.seq not in self.open
        self.open[entry.seq] = entry
        if entry.state in (OpenState.RUNNING, OpenState.PARKED):
            self.waiting.discard(entry.seq)
            self.loose.discard(entry.seq)
        else:
            self.waiting.add(entry.seq)
            if entry.key is None:
                self.loose.add(entry.seq)
        if new and entry.key is not None:
            insort(self.lines.setdefault(entry.key, []), entry.seq)

    def close(self, seq: int) -> None:
        """Forget an offset that is finished."""
        entry = self.open.pop(seq, None)
        self.waiting.discard(seq)
        self.loose.discard(seq)
        if entry is None or entry.key is None:
            return
        line = self.lines[entry.key]
        line.remove(seq)
        if not line:
            del self.lines[entry.key]

    def may_run(self, entry: Open) -> bool:
        """Return whether no earlier or running event of the same key stands in the way."""
        if entry.state is OpenState.REDRIVEN and self.unsettled:
            return False  # an event of its key may be among those in hand, which are not in the lines yet
        if self.unsettled and entry.seq > self.claimed_after:
            return False  # closed before its claimed range, a crash would bring it back
        if entry.key is None:
            return True
        line = self.lines[entry.key]
        return line[0] == entry.seq and all(self.open[seq].state is not OpenState.RUNNING for seq in line)

    def blocks(self, key: str | None) -> bool:
        """Return whether a new event of the key has to wait for one that does not run now.

        Behind events that run here it only has to stand in line, which the worker sees to.
        """
        if key is None:
            return False
        return any(
            seq in self.waiting or self.open[seq].state is OpenState.PARKED for seq in self.lines.get(key, ())
        )

    def running(self) -> bool:
        """Return whether the worker has events of this partition in hand."""
        return self.unsettled > 0 or any(one.state is OpenState.RUNNING for one in self.open.values())

    def _foremost(self) -> list[Open]:
        """Return the waiting events that are the first of their line: no others may run, and they are few."""
        first = [line[0] for line in self.lines.values() if line[0] in self.waiting]
        return [self.open[seq] for seq in (*first, *self.loose)]

    def due(self, now_ns: int, limit: int) -> list[Open]:
        """Return the open events that may run now, the oldest first.

        A suspect of a crash comes back alone: at most one, and only as the first.
        """
        ripe = [entry for entry in self._foremost() if entry.due_ns <= now_ns and self.may_run(entry)]
        found: list[Open] = []
        for entry in sorted(ripe, key=attrgetter("seq")):
            if entry.attempt.crashes:
                return found or [entry]
            found.append(entry)
            if len(found) >= limit:
                break
        return found

    def next_due_ns(self) -> int | None:
        """Return when the earliest waiting event may run."""
        return min((entry.due_ns for entry in self._foremost() if self.may_run(entry)), default=None)


def next_due_ns(parts: Iterable[Held]) -> int | None:
    """Return when the earliest waiting event may run, on the boot clock."""
    due = [held.next_due_ns() for held in parts if held.waiting]
    return min((one for one in due if one is not None), default=None)


async def awoken(woken: asyncio.Event, seconds: float, due_ns: int | None, clock: Clock) -> None:
    """Return when somebody wakes, when something is due on the boot clock, or after ``seconds``."""
    if due_ns is not None:
        # One that is due already may be there because the server has no room for it: no hurry then.
        seconds = min(seconds, max(DUE_LOOK_S, (due_ns - clock.boot_ns()) / 1e9))
    timer = asyncio.get_running_loop().call_later(seconds, woken.set)
    try:
        await woken.wait()
    finally:
        timer.cancel()
        woken.clear()
