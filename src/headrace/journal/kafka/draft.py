"""What a replay on Kafka would be allotted: the history asked for, less what the version has had."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from headrace import errors
from headrace.codec.allotment import Allotment
from headrace.event.envelope import Head
from headrace.journal.allotment import REASONS, Cut, Interval, allotted, cut, points, union
from headrace.journal.kafka.past import OURS, Past
from headrace.journal.kafka.rows import Reading
from headrace.journal.kafka.spans import Bounds, Span
from headrace.journal.kafka.survey import Survey
from headrace.ports import VersionInfo
from headrace.ports.index import Bound
from headrace.ports.replay import Order, ReplayPlan

#: Events of a chain that are looked for; one of more is bounded by offset or time.
CHAIN_EVENTS_MAX = 100_000

Parts = dict[int, list[Interval]]


class Window(NamedTuple):
    """The history that is asked for, by partition."""

    parts: Parts
    #: The offsets of the events in it, in order, where each of them was looked at; else they are counted.
    events: Mapping[int, Sequence[int]] | None


class Draft(NamedTuple):
    """A plan, and what it was made of."""

    plan: ReplayPlan
    parts: Parts
    #: Up to where the plan has looked.
    looked: dict[int, int]
    #: What others had been allotted by then.
    others: Sequence[Allotment]


class Drafts:
    """Makes plans."""

    def __init__(self, survey: Survey, past: Past, order: Order) -> None:
        self._survey, self._past, self._order = survey, past, order
        self.topic = past.topic

    async def news(self, looked: Mapping[int, int]) -> bool:
        """Return whether live has closed something that was not looked at."""
        await self._past.read()
        return any(self._past.closed(at) > looked.get(at, 0) for at in self._past.positions)

    async def draft(
        self, version: VersionInfo, others: Sequence[Allotment], looked: Mapping[int, int] | None = None
    ) -> Draft:
        """Return what is to be allotted to a version, at and above the offsets that were looked at before.

        What live has done is read on before, what the index has not seen of the topic is indexed on the way.
        """
        before = looked or {}
        await self._past.read()
        bounds = {at: one for (_, at), one in (await self._survey.fill([self.topic])).items()}
        lines = {at: self._past.line(at, version.name, one) for at, one in bounds.items()}
        window = await self._window(bounds, before)
        taken = self._taken(version, others)
        own = self._order.again is not None
        cuts = {
            at: cut(window.parts.get(at, []), line, OURS, taken.get(at, []), own=own)
            for at, line in lines.items()
        }
        counts = await self._counts(window, cuts)
        skipped = {reason: counts[reason] for reason in REASONS if counts[reason]}
        plan = ReplayPlan(version, counts["allotted"], skipped)
        parts = {at: found for at, one in cuts.items() if (found := allotted(one))}
        # Never back, where a redrive has opened an event again: the consumer has passed it.
        now = {at: max(line.closed, before.get(at, 0)) for at, line in lines.items()}
        return Draft(plan, parts, now, others)

    def clashes(self, draft: Draft, others: Iterable[Allotment]) -> bool:
        """Return whether others have been allotted some of what is to be allotted."""
        taken = self._taken(draft.plan.version, others)
        return any(_inside(found, taken.get(at, [])) for at, found in draft.parts.items())

    def _taken(self, version: VersionInfo, others: Iterable[Allotment]) -> Parts:
        """Return what the replays of this ledger have been allotted for the version."""
        found: dict[int, list[Interval]] = {}
        for one in others:
            if (one.version, one.again, one.topic) == (
                version.name, self._order.again, self.topic.topic_id.hex(),
            ):  # fmt: skip
                for at, intervals in one.parts.items():
                    found.setdefault(at, []).extend(intervals)
        return {at: union(intervals) for at, intervals in found.items()}

    # --- the window ---------------------------------------------------------------------------

    async def _window(self, bounds: Mapping[int, Bounds], looked: Mapping[int, int]) -> Window:
        order, parts = self._order, Parts()
        for at, one in bounds.items():
            start = max(order.from_offset or 0, looked.get(at, 0))
            end = one.end if order.to_offset is None else min(order.to_offset + 1, one.end)
            parts[at] = union([(start, end)])
        if order.chain is not None:
            offsets = await self._chain(order.chain)
            parts = {at: _inside(parts.get(at, []), points(one + 1 for one in offsets[at])) for at in offsets}
        timed = order.from_us is not None or order.to_us is not None
        if not timed and order.chain is None and not looked:
            return Window(parts, None)
        # What has come since is less than the index, which is counted in one pass over all ids.
        window = await self._looked_at(parts, bounds)
        return window if timed else window._replace(parts=parts)

    async def _chain(self, event_id: bytes) -> dict[int, list[int]]:
        """Return the offsets of the events of a topic that belong to the chain of an event."""
        view, found = self._survey.log.index.view, dict[int, list[int]]()
        for root in {one.root for one in await self._survey.log.index.find(event_id)}:
            rows = await view.chain(root, CHAIN_EVENTS_MAX + 1)
            if len(rows) > CHAIN_EVENTS_MAX:
                problem = f"the chain has more than {CHAIN_EVENTS_MAX:,} events"
                raise errors.ReplayRefused(
                    handler=self._order.handler, problem=problem, hint="--from and --to bound it instead"
                )
            for _, place in rows:
                if place.topic_id == self.topic.topic_id:
                    found.setdefault(place.partition, []).append(place.offset)
        return found

    async def _looked_at(self, parts: Parts, bounds: Mapping[int, Bounds]) -> Window:
        """Look at each event of a window; return the stretches whose events are of the time asked for.

        Publishers have clocks of their own, so that may be many stretches.
        """
        scan = _Scan(self._order, parts)
        spans = [
            Span(self.topic.name, at, max(found[0][0], bounds[at].low), min(found[-1][1], bounds[at].end))
            for at, found in parts.items()
            if found
        ]
        rows = self._survey.log.reading(self.topic)
        async with self._survey.spans.reading(one for one in spans if one.start < one.end) as bursts:
            async for burst in bursts:
                pages: dict[int, list[Reading]] = {}
                for message in burst:
                    pages.setdefault(message.partition() or 0, []).append(rows.read(message))
                for at, page in pages.items():
                    scan.add(at, page, await self._copies(at, page))
        return scan.window()

    async def _copies(self, partition: int, page: Sequence[Reading]) -> set[int]:
        """Return the offsets of records that are copies of events before them."""
        ids = [one.seen.event_id for one in page]
        firsts = await self._survey.log.index.view.firsts(self.topic.topic_id, partition, ids)
        return {
            one.seen.offset
            for one in page
            if (first := firsts.get(one.seen.event_id)) is not None
            and first.offset != one.seen.offset
            and first.content == one.seen.content
        }

    # --- counts -------------------------------------------------------------------------------

    async def _counts(self, window: Window, cuts: Mapping[int, Sequence[Cut]]) -> Counter[str]:
        """Return how many events each label has."""
        labelled = [(label, bound) for at, found in cuts.items() for label, bound in _labelled(at, found)]
        counts: Counter[str] = Counter()
        if window.events is None:
            view, bounds = self._survey.log.index.view, [bound for _, bound in labelled]
            numbers = await view.counts(self.topic.topic_id, bounds)
        else:
            numbers = [_between(window.events.get(one.partition, ()), one) for _, one in labelled]
        for (label, _), number in zip(labelled, numbers, strict=True):
            counts[label] += number
        return counts


class _Scan:
    """Events of a window, looked at one by one."""

    def __init__(self, order: Order, parts: Parts) -> None:
        self._order, self._parts = order, parts
        self._found: Parts = {}
        self._events: dict[int, list[int]] = {}
        #: Where the stretch begins that is being looked at, by partition.
        self._begun: dict[int, int] = {}

    def add(self, partition: int, page: Sequence[Reading], copies: set[int]) -> None:
        """Look at the next records of a partition."""
        for one in page:
            offset = one.seen.offset
            if self._fits(one):
                self._begun.setdefault(partition, offset)
                self._found.setdefault(partition, [])
                if offset not in copies and _holds(self._parts[partition], offset):
                    self._events.setdefault(partition, []).append(offset)
            elif partition in self._begun:
                self._found[partition].append((self._begun.pop(partition), offset))

    def _fits(self, one: Reading) -> bool:
        order, head = self._order, one.row[5]
        if not isinstance(head, Head):  # it says nothing of its time: a dead letter, if live has taken it
            return order.from_us is None and order.to_us is None
        return (order.from_us is None or head.time_us >= order.from_us) and (
            order.to_us is None or head.time_us < order.to_us
        )

    def window(self) -> Window:
        """Return what was found."""
        for at, begun in self._begun.items():
            self._found[at].append((begun, self._parts[at][-1][1]))
        parts = {at: _inside(self._parts[at], union(found)) for at, found in self._found.items()}
        return Window(parts, self._events)


def _inside(some: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return what lies in both of two lists of intervals."""
    return union(
        (max(begin, after), min(end, upto))
        for begin, end in some
        for after, upto in _near(others, begin, end)
    )


def _near(intervals: Sequence[Interval], begin: int, end: int) -> Iterator[Interval]:
    """Yield the intervals that may overlap a stretch."""
    for one in intervals[bisect_left(intervals, begin, key=lambda each: each[1]) :]:
        if one[0] >= end:
            break
        yield one


def _holds(intervals: Sequence[Interval], offset: int) -> bool:
    """Return whether an offset lies in intervals that begin with their first offset."""
    at = bisect_left(intervals, offset + 1, key=lambda one: one[1])
    return at < len(intervals) and intervals[at][0] <= offset


def _labelled(partition: int, cuts: Sequence[Cut]) -> Iterator[tuple[str, Bound]]:
    before = 0
    for one in cuts:
        if one.label and one.upto > before:
            yield one.label, Bound(partition, max(0, before), one.upto)
        before = one.upto


def _between(offsets: Sequence[int], bound: Bound) -> int:
    return bisect_left(offsets, bound.upto) - bisect_left(offsets, bound.after)
