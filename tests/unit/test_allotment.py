"""What a replay is allotted of one partition: each offset, looked at by itself, gets the same label."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.allotment import (
    ALLOTTED,
    BEFORE_START,
    DEAD,
    EXPIRED,
    HANDLED,
    REPLAYED,
    UNFINISHED,
    Cut,
    Interval,
    Line,
    allotted,
    cut,
    holds,
    points,
    union,
    without,
)

LAST = 24
OFFSET = st.integers(0, LAST)
INTERVALS = st.lists(st.tuples(OFFSET, OFFSET), max_size=5)
VERSION = st.integers(1, 3)
BY_OFFSET = st.dictionaries(st.integers(1, LAST), VERSION, max_size=8)


def held(intervals: list[Interval]) -> set[int]:
    """Return every offset that lies in an interval, one by one."""
    return {seq for after, upto in intervals for seq in range(after + 1, upto + 1)}


@given(INTERVALS, INTERVALS)
def test_intervals_are_sets_of_offsets(some: list[Interval], others: list[Interval]) -> None:
    """Union, difference and membership are those of the offsets; what comes back is sorted and apart."""
    one, other = union(some), union(others)
    less = without(one, other)

    assert held(one) == held(some)
    assert held(less) == held(some) - held(others)
    assert [seq for seq in range(-1, LAST + 2) if holds(one, seq)] == sorted(held(some))
    for found in (one, less):
        assert all(after < upto for after, upto in found)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(found))
    assert held(points(sorted(held(some)))) == held(some)


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """Return one partition of a live subscription, as it may be."""
    start = draw(st.integers(0, 6))
    closed = draw(st.integers(start, LAST))
    inside = st.integers(start + 1, max(closed, start + 1))
    opened = sorted({one for one in draw(st.sets(inside, max_size=4)) if one <= closed})
    ranges = sorted({start, *draw(st.sets(st.integers(start, closed), max_size=3))})
    exceptions = sorted(draw(BY_OFFSET).items())
    dead = sorted((seq, by) for seq, by in draw(BY_OFFSET).items() if seq not in opened)
    versions = [(after, draw(VERSION)) for after in ranges]
    return Line(start, closed, opened, versions, exceptions, dead, gone=draw(OFFSET))


def by_hand(line: Line, window: set[int], version: int, taken: set[int], seq: int, *, own: bool) -> str:
    """Return the label of one offset, from the rules as they are written."""
    if seq not in window:
        return ""
    if seq <= line.start:
        return BEFORE_START
    if seq > line.closed or seq in line.open:
        return UNFINISHED
    by = dict(line.exceptions).get(seq, [by for after, by in line.ranges if after < seq][-1])
    if dict(line.dead).get(seq) == version:
        return DEAD
    if not own and by == version:
        return HANDLED
    rest = EXPIRED if seq <= line.gone else ALLOTTED
    return REPLAYED if seq in taken else rest


def label_of(cuts: list[Cut], seq: int) -> str:
    """Return what the cuts say of an offset."""
    return next((one.label for one in cuts if seq <= one.upto), "")


@given(lines(), INTERVALS, VERSION, INTERVALS, st.booleans())
def test_every_offset_gets_the_label_of_the_rules(
    line: Line, window: list[Interval], version: int, taken: list[Interval], own: bool
) -> None:
    """Closed by live, and neither handled, dead nor replayed under the version: that alone is allotted."""
    cuts = cut(union(window), line, version, union(taken), own=own)

    wanted = {
        seq: by_hand(line, held(window), version, held(taken), seq, own=own) for seq in range(1, LAST + 2)
    }
    assert {seq: label_of(cuts, seq) for seq in wanted} == wanted
    assert held(allotted(cuts)) == {seq for seq, label in wanted.items() if label == ALLOTTED}
    assert all(one.upto < other.upto for one, other in itertools.pairwise(cuts))


def test_a_version_that_nobody_knows_has_handled_nothing() -> None:
    """All that live has closed is allotted to it."""
    line = Line(0, 9, [4], [(0, 1)], [(2, 2)], [(3, 1)])
    assert allotted(cut([(0, 20)], line, None, [], own=False)) == [(0, 3), (4, 9)]


def test_a_partition_without_events_has_nothing() -> None:
    """Neither ranges nor offsets: there is nothing to allot."""
    assert allotted(cut([(0, 20)], Line(0, 0, [], [], [], []), 1, [], own=False)) == []
