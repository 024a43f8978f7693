"""How far the subscriptions of a journal on Kafka have come, and which version has handled what.

A moment is, for each partition, that of the last record of its ledger.  Ledgers are read first, then the
ends of the topics, then the index is filled up to there: so whatever a ledger counts as taken is indexed, and
what came after it waits, or is in somebody's hand.  Events are counted in the index: offsets have holes, and
copies are no events.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from headrace.journal.kafka import course
from headrace.journal.kafka.client import Member
from headrace.journal.kafka.poll import CLIENT
from headrace.journal.kafka.spans import At, Bounds, Span
from headrace.journal.kafka.survey import Catalogue, Ledger, Survey
from headrace.journal.kafka.versions import Known
from headrace.ports import OpenState, VersionInfo
from headrace.ports.history import History, Range
from headrace.ports.index import Bound
from headrace.ports.look import Owner, Progress, Topic, moment

_PID = re.compile(rf"{CLIENT}-(\d+)")
#: The oldest event that waits is looked for in so many offsets: markers and what was aborted lie between.
OLDEST_OFFSETS = 200


class Counts(NamedTuple):
    """The events of one partition."""

    #: Since the start of the subscription.
    published: int
    #: Above the position of the ledger; and of these, in somebody's hand.
    above: int
    in_hand: int


class Moment(NamedTuple):
    """Everything there is to count, read in an order in which it agrees."""

    catalogue: Catalogue
    known: Known
    ledgers: list[Ledger]
    #: First offset beyond what is in hand, by handler and partition.
    claimed: dict[str, dict[int, int]]
    bounds: dict[At, Bounds]


async def moment_of(survey: Survey, *, whole: bool = False) -> Moment:
    """Look at claims, ledgers and topics, in this order, and bring the index up to their ends."""
    known, catalogue = await survey.known(), await survey.catalogue()
    claims = await survey.log.index.view.claims()
    ledgers = await survey.ledgers(catalogue, whole=whole)
    bounds = await survey.fill(catalogue.topics.values())
    claimed = {one.handler: one.claimed(claims) for one in ledgers}
    return Moment(catalogue, known, ledgers, claimed, bounds)


async def counted(survey: Survey, now: Moment, ledger: Ledger) -> dict[int, Counts]:
    """Count the events of a subscription, by partition."""
    asked: list[Bound] = []
    for partition, position in ledger.positions.items():
        end = now.bounds[ledger.topic.name, partition].end
        asked += (
            Bound(partition, position.start, end),
            Bound(partition, position.high + 1, end),
            Bound(partition, position.high + 1, now.claimed[ledger.handler][partition]),
        )
    numbers = iter(await survey.log.index.view.counts(ledger.topic.topic_id, asked))
    found: dict[int, Counts] = {}
    for partition, position in ledger.positions.items():
        published, above, in_hand = next(numbers), next(numbers), next(numbers)
        if now.bounds[ledger.topic.name, partition].low > position.start:
            # What retention has eaten may be in no index that was made since: the ledger has counted it.
            published = position.taken + above
        found[partition] = Counts(published, above, in_hand)
    return found


# --- progress -----------------------------------------------------------------------------------


async def topics(survey: Survey) -> list[Topic]:
    """Return the topics and how many events each holds or has held."""
    catalogue = await survey.catalogue()
    bounds = await survey.fill(catalogue.topics.values())
    found: list[Topic] = []
    for name, one in sorted(catalogue.topics.items()):
        asked = [Bound(at, 0, bounds[name, at].end) for at in range(one.partitions)]
        events = sum(await survey.log.index.view.counts(one.topic_id, asked))
        found.append(Topic(name, one.partitions, events))
    return found


async def progress(survey: Survey) -> list[Progress]:
    """Return the progress of every subscription."""
    now = await moment_of(survey)
    groups = {one.handler: survey.log.group_of(one.handler) for one in now.ledgers}
    members = await survey.log.opened().members(list(groups.values()))
    workers = {(one.client, one.host) for told in members.values() for one in told}
    found: list[Progress] = []
    for ledger in now.ledgers:
        counts = await counted(survey, now, ledger)
        oldest = await _oldest(survey, now, ledger, counts)
        mine = members[groups[ledger.handler]]
        found.append(_progress(now, ledger, counts, mine, len(workers))._replace(oldest_waiting=oldest))
    return found


def _progress(
    now: Moment, ledger: Ledger, counts: Mapping[int, Counts], members: list[Member], workers: int
) -> Progress:
    positions = ledger.positions.values()
    states = Counter(entry.state for one in positions for entry in one.open)
    in_hand = sum(one.in_hand for one in counts.values())
    return Progress(
        handler=ledger.handler,
        topic=ledger.topic.name,
        active=now.known.active(ledger.handler),
        partitions=ledger.topic.partitions,
        published=sum(one.published for one in counts.values()),
        untaken=sum(one.above for one in counts.values()) - in_hand,
        open={state: count for state, count in states.items() if state != OpenState.RUNNING},
        running=states[OpenState.RUNNING] + in_hand,
        done=sum(one.done for one in positions),
        dead=sum(one.dead for one in positions),
        expired=sum(one.expired for one in positions),
        taken=sum(one.taken for one in positions) + in_hand,
        owners=owners(members, ledger.topic.name),
        serving=len(members),
        workers=workers,
        oldest_waiting=None,
        events_per_s=round(ledger.events_per_s, 1),
        # The first assignment is none; those that led to no outcome are in no ledger.
        rebalances=max((one.assigned - 1 for one in positions if one.assigned), default=0),
    )


def owners(members: Iterable[Member], topic: str, partition: int | None = None) -> tuple[Owner, ...]:
    """Return the members of a group that have partitions of a topic, or the one that has this partition."""
    found: list[Owner] = []
    for one in members:
        held = [at for name, at in one.partitions if name == topic and partition in (None, at)]
        if held:
            pid = _PID.fullmatch(one.client)
            found.append(Owner(int(pid[1]) if pid else None, len(held), alive=True, host=one.host))
    return tuple(found)


async def _oldest(
    survey: Survey, now: Moment, ledger: Ledger, counts: Mapping[int, Counts]
) -> datetime | None:
    """Return when the oldest event that waits was published, as its record says."""
    topic = ledger.topic.name
    spans: list[Span] = []
    for partition, position in ledger.positions.items():
        low, end = now.bounds[topic, partition]
        waits = position.open or counts[partition].above
        start = max(low, position.low())
        if waits and start < end:
            spans.append(Span(topic, partition, start, min(end, start + OLDEST_OFFSETS)))
    rows = survey.log.reading(ledger.topic)
    oldest: dict[int, int] = {}
    async with survey.spans.reading(spans) as bursts:
        async for burst in bursts:
            for message in burst:
                if (message.partition() or 0) not in oldest:
                    head = rows.read(message).row[5]
                    recorded_us = message.timestamp()[1] * 1000
                    oldest[message.partition() or 0] = getattr(head, "time_us", recorded_us)
    return moment(min(oldest.values())) if oldest else None


# --- versions -----------------------------------------------------------------------------------


async def histories(survey: Survey, handlers: Iterable[str]) -> list[History]:
    """Return which version has handled what, of each of the handlers."""
    now = await moment_of(survey, whole=True)
    found: list[History] = []
    for handler in handlers:
        ledger = next((one for one in now.ledgers if one.handler == handler), None)
        found.append(await _history(survey, now, handler, ledger))
    return found


async def _history(survey: Survey, now: Moment, handler: str, ledger: Ledger | None) -> History:
    versions = {one.name: one for one in now.known.of(handler)}
    ranges = [] if ledger is None else await _ranges(survey, ledger, versions)
    positions = [] if ledger is None else list(ledger.positions.values())
    handled = Counter({one.id: 0 for one in versions.values()})
    for one in ranges:
        handled[one.version.id] += one.handled
        handled.update(by.id for _, by in one.exceptions)
    replayed = await course.handled(survey, handler if handler in now.catalogue.replayed else None)
    return History(
        handler=handler,
        active=now.known.active(handler),
        versions=list(versions.values()),
        ranges=ranges,
        handled=dict(handled),
        taken=sum(one.taken for one in positions),
        unfinished=sum(len(one.open) for one in positions),
        neither=0 if ledger is None else await _neither(survey, now, ledger, ranges),
        replayed={versions[name].id: count for name, count in replayed.items() if name in versions},
    )


async def _ranges(survey: Survey, ledger: Ledger, versions: Mapping[str, VersionInfo]) -> list[Range]:
    parts: list[tuple[int, str, Bound]] = []
    for partition, position in sorted(ledger.positions.items()):
        ends = [one.after for one in position.ranges[1:]] + [position.high]
        for one, end in zip(position.ranges, ends, strict=False):
            parts.append((partition, one.version, Bound(partition, one.after + 1, end + 1)))
    counts = await survey.log.index.view.counts(ledger.topic.topic_id, [bound for _, _, bound in parts])
    found: list[Range] = []
    for (partition, version, bound), taken in zip(parts, counts, strict=True):
        open_ones = {one.offset for one in ledger.positions[partition].open}
        found.append(
            Range(
                partition=partition,
                version=_version(versions, ledger.handler, version),
                first=bound.after,
                last=bound.upto - 1,
                taken=taken,
                unfinished=sum(bound.after <= offset < bound.upto for offset in open_ones),
                exceptions=tuple(
                    (offset, _version(versions, ledger.handler, by))
                    for (at, offset), by in sorted(ledger.exceptions.items())
                    if at == partition and bound.after <= offset < bound.upto and offset not in open_ones
                ),
            )
        )
    return found


def _version(versions: Mapping[str, VersionInfo], handler: str, name: str) -> VersionInfo:
    """Return a version by the name that stands in the ledger, also one that nobody has offered."""
    return versions.get(name) or VersionInfo(0, handler, name, None, None, None)


async def _neither(survey: Survey, now: Moment, ledger: Ledger, ranges: list[Range]) -> int:
    """Return how many events were taken that lie in no range."""
    covered = Counter[int]()
    for one in ranges:
        covered[one.partition] += one.taken
    parts = [
        (partition, Bound(partition, position.start, position.high + 1))
        for partition, position in ledger.positions.items()
        if now.bounds[ledger.topic.name, partition].low <= position.start
    ]
    counts = await survey.log.index.view.counts(ledger.topic.topic_id, [bound for _, bound in parts])
    return sum(max(0, count - covered[at]) for (at, _), count in zip(parts, counts, strict=True))
