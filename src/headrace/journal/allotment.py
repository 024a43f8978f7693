"""Which offsets of one partition a replay may have: arithmetic on intervals, without a journal.

An interval (after, upto] stands for the offsets above ``after`` up to ``upto``; a list of them is sorted and
free of overlaps.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.ports.replay import Order

Interval = tuple[int, int]

#: The label of what is handed to the replay, and the reasons for which it is not.
ALLOTTED = "allotted"
BEFORE_START = "before_start"
UNFINISHED = "unfinished"
DEAD = "dead"
HANDLED = "handled"
REPLAYED = "replayed"
EXPIRED = "expired"
REASONS = (BEFORE_START, UNFINISHED, DEAD, HANDLED, REPLAYED, EXPIRED)


class Line(NamedTuple):
    """One partition of the live subscription, as far as it decides what is allotted."""

    start: int
    #: Up to here live has closed everything but `open`.
    closed: int
    #: Offsets below that stand open.
    open: Sequence[int]
    #: Version ranges: (after, version), in order.
    ranges: Sequence[tuple[int, int]]
    #: Offsets that another version than their range's has finished: (offset, version), in order.
    exceptions: Sequence[tuple[int, int]]
    #: Offsets of dead letters that count, with their versions.
    dead: Sequence[tuple[int, int]]
    #: Up to here events are not there any more.
    gone: int = 0


class Cut(NamedTuple):
    """Offsets up to ``upto`` (above those of the cut before) have one label; outside of the window none."""

    upto: int
    label: str


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Return intervals sorted, those that touch or overlap as one, empty ones left out."""
    found: list[Interval] = []
    for after, upto in sorted(intervals):
        if after >= upto:
            continue
        if found and after <= found[-1][1]:
            found[-1] = found[-1][0], max(upto, found[-1][1])
        else:
            found.append((after, upto))
    return found


def points(offsets: Iterable[int]) -> list[Interval]:
    """Return single offsets as intervals."""
    return union((one - 1, one) for one in offsets)


def holds(intervals: Sequence[Interval], offset: int) -> bool:
    """Return whether an offset lies in one of the intervals."""
    at = bisect_left(intervals, offset, key=lambda one: one[1])
    return at < len(intervals) and intervals[at][0] < offset


def cut(
    window: Sequence[Interval], line: Line, version: int | None, taken: Sequence[Interval], *, own: bool
) -> list[Cut]:
    """Label every offset of a window; with ``own`` the ledger is not the one that live keeps.

    ``taken`` is what other replays of the ledger have been allotted for the version.  The first reason that
    applies is told.
    """
    mine = [] if own or version is None else _handled(line, version)
    dead = points(offset for offset, by in line.dead if by == version)
    sets = (
        (BEFORE_START, union([(-1, line.start)])),
        (UNFINISHED, points(line.open)),
        (DEAD, dead),
        (HANDLED, mine),
        (REPLAYED, taken),
        (EXPIRED, union([(-1, line.gone)])),
    )
    ends = {end for _, found in sets for one in found for end in one} | {line.closed}
    ends |= {end for one in window for end in one}
    found: list[Cut] = []
    for upto in sorted(ends):
        label = ""
        if holds(window, upto):
            label = next((name for name, covers in sets if holds(covers, upto)), ALLOTTED)
            if upto > line.closed and label != BEFORE_START:
                label = UNFINISHED
        if found and found[-1].label == label:
            found.pop()
        found.append(Cut(upto, label))
    return found


def _handled(line: Line, version: int) -> list[Interval]:
    """Return what a version has finished by the ledger of live: its ranges, corrected by exceptions."""
    ends = [*(after for after, _ in line.ranges), line.closed][1:]
    ranged = [(after, end) for (after, by), end in zip(line.ranges, ends, strict=True) if by == version]
    found = union([*ranged, *points(offset for offset, by in line.exceptions if by == version)])
    others = [offset for offset, by in line.exceptions if by != version]
    return without(found, points(others))


def without(intervals: Sequence[Interval], less: Sequence[Interval]) -> list[Interval]:
    """Return intervals without what lies in others."""
    found: list[Interval] = []
    for start, upto in intervals:
        after = start
        for begin, end in less[bisect_left(less, after, key=lambda one: one[1]) :]:
            if begin >= upto:
                break
            if begin > after:
                found.append((after, begin))
            after = max(after, end)
        if after < upto:
            found.append((after, upto))
    return found


def allotted(cuts: Sequence[Cut]) -> list[Interval]:
    """Return what is handed to the replay."""
    befores = [0, *(one.upto for one in cuts)]
    return union(
        (before, one.upto) for before, one in zip(befores, cuts, strict=False) if one.label == ALLOTTED
    )


def wanted(order: Order) -> str:
    """Return what tells one order from another, beside handler, version, side and ledger."""
    told = {
        "from_offset": order.from_offset,
        "to_offset": order.to_offset,
        "from_us": order.from_us,
        "to_us": order.to_us,
        "chain": order.chain.hex() if order.chain else None,
        "follow": order.follow or None,
    }
    return json.dumps({name: value for name, value in told.items() if value is not None})
