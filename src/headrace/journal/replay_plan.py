"""What a replay would be allotted: read from the ledger at one moment, cut, and counted in events."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from headrace import errors
from headrace.codec.head import decode_head
from headrace.journal.allotment import Cut, Interval, Line, cut, points, union
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.ports import TopicInfo
from headrace.ports.replay import Order

#: Rows of one query while history is counted.
PAGE_ROWS = 5_000

Rows = Callable[[str, Sequence[Any]], list[Any]]


class Ground(NamedTuple):
    """What a plan is made on, all at one moment."""

    handler: int
    topic: TopicInfo
    lines: dict[int, Line]
    #: What other replays of the ledger have for the version, by partition.
    taken: dict[int, list[Interval]]
    #: The highest offset.
    last: int

    def only(self, earlier: Ground) -> Ground:
        """Return this ground, less what counts as closed now and did not at an earlier look."""
        lines = {
            tp: line._replace(
                closed=min(line.closed, earlier.lines[tp].closed),
                open=sorted({*line.open, *earlier.lines[tp].open}),
            )
            for tp, line in self.lines.items()
        }
        return self._replace(lines=lines, last=earlier.last)

    def cuts(self, order: Order, window: Sequence[Interval], version: int | None) -> dict[int, list[Cut]]:
        """Return what every offset of a window is, by partition."""
        return {tp: self.cut(order, tp, window, version) for tp in self.lines}

    def cut(self, order: Order, tp: int, window: Sequence[Interval], version: int | None) -> list[Cut]:
        """Return what every offset of a window is, in one partition."""
        own, line = order.again is not None, self.lines[tp]
        if own:
            line = line._replace(dead=())
        return cut(window, line, version, self.taken.get(tp, ()), own=own)


def ground_of(rows: Rows, order: Order, version: int | None) -> Ground:
    """Read the ledger; raises `ReplayRefused` for a handler that has no history."""
    queries: Any = load("replay.sql")
    found = rows(queries.live, (order.handler, order.topic))
    if not found:
        hint = "``headrace run`` it first: a handler that is new begins with the earliest event"
        if rows(queries.was_live, (order.handler, order.topic)):
            hint = "it was retired: ``headrace run`` takes it up again"
        problem = f"it has no live subscription to {order.topic}, so no history"
        raise errors.ReplayRefused(handler=order.handler, problem=problem, hint=hint)
    sub, number, name, partitions, handler = found[0]
    opened, ranges, exceptions, dead = (
        _by_partition(rows(sql, (sub,)))
        for sql in (queries.open, queries.ranges, queries.exceptions, queries.dead)
    )
    lines: dict[int, Line] = {}
    for tp, start, claimed in rows(queries.positions, (sub,)):
        stands = [seq for (seq,) in opened[tp]]
        line = Line(start, claimed, stands, ranges[tp], exceptions[tp], dead[tp])
        # Up to the first that is open, where what is closed later is to come later.
        lines[tp] = (
            line._replace(closed=min([claimed, *(seq - 1 for seq in stands)])) if order.follow else line
        )
    taken = _by_partition(rows(queries.taken, (handler, number, version, order.again)))
    ((last,),) = rows(queries.last_offset, ())
    topic = TopicInfo(number, name, partitions)
    return Ground(handler, topic, lines, {tp: union(found) for tp, found in taken.items()}, last)


def _by_partition(rows: list[Any]) -> defaultdict[int, list[Any]]:
    found: defaultdict[int, list[Any]] = defaultdict(list)
    for tp, *rest in rows:
        found[tp].append(tuple(rest))
    return found


def window_of(reader: Reader, order: Order, ground: Ground) -> list[Interval]:
    """Return the offsets that are asked for; what is read for it never changes."""
    after = max(0, (order.from_offset or 1) - 1)
    upto = ground.last if order.to_offset is None else min(order.to_offset, ground.last)
    if order.chain is None:
        return of_time(reader, order, ground.topic, union([(after, upto)]))
    queries: Any = load("replay.sql")
    found = reader.rows(queries.chain, (order.chain, ground.topic.id))
    return of_time(reader, order, ground.topic, points(seq for (seq,) in found if after < seq <= upto))


def of_time(reader: Reader, order: Order, topic: TopicInfo, window: Sequence[Interval]) -> list[Interval]:
    """Return the parts of a window whose events are of the time asked for.

    Publishers have clocks of their own, so that may be many parts: each event is looked at.
    """
    if order.from_us is None and order.to_us is None:
        return list(window)
    queries: Any = load("replay.sql")
    found: list[Interval] = []
    for part in window:
        before = after = part[0]
        for seq, head in _pages(reader, queries.heads, topic, part):
            time_us = decode_head(head).time_us
            early = order.from_us is not None and time_us < order.from_us
            if early or (order.to_us is not None and time_us >= order.to_us):
                found.append((after, before))
                after = seq
            before = seq
        found.append((after, before))
    return union(found)


def counts_of(reader: Reader, topic: TopicInfo, cuts: dict[int, list[Cut]]) -> Counter[str]:
    """Return how many events each label has."""
    queries: Any = load("replay.sql")
    counts: Counter[str] = Counter()
    ends = {tp: [one.upto for one in found] for tp, found in cuts.items()}
    labelled = [part for found in cuts.values() for part in _labelled(found)]
    whole = min((after for after, _ in labelled), default=0), max((upto for _, upto in labelled), default=0)
    for seq, tp in _pages(reader, queries.events, topic, whole):
        at = bisect_left(ends[tp], seq)
        if at < len(cuts[tp]):
            counts[cuts[tp][at].label] += 1
    return counts


def _labelled(cuts: Sequence[Cut]) -> Iterator[Interval]:
    before = 0
    for one in cuts:
        if one.label:
            yield before, one.upto
        before = one.upto


def _pages(reader: Reader, sql: str, topic: TopicInfo, part: Interval) -> Iterator[tuple[int, Any]]:
    """Yield offset and value of the events of an interval; no read transaction is held between two pages."""
    after, upto = part
    while page := reader.rows(sql, (topic.id, after, upto, PAGE_ROWS)):
        yield from page
        after = page[-1][0]
