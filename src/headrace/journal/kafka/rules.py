"""Is a journal on Kafka sound?  Ledgers, of replays too, against each other, the topics and the index."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import combinations, pairwise

from headrace.codec.allotment import Allotment
from headrace.codec.ledger import Position
from headrace.journal.kafka.allotted import Allotted
from headrace.journal.kafka.allotter import Allotments
from headrace.journal.kafka.counting import Moment, counted, moment_of
from headrace.journal.kafka.course import where_of
from headrace.journal.kafka.survey import Ledger, Survey
from headrace.journal.kafka.topics import split_name
from headrace.ports import OpenState
from headrace.ports.look import Violation

#: Of one kind; where one partition breaks a rule all may.
VIOLATIONS_MAX = 20


async def violations(survey: Survey) -> list[Violation]:
    """Return every rule that does not hold, with where; an empty list for a sound journal."""
    # Before the moment: what a replay has taken was allotted and indexed by then.
    replayed = await _replayed(survey)
    now = await moment_of(survey, whole=True)
    found = [
        Violation("topic", f"{handler}: the cluster does not have its topic any more")
        for handler in await survey.lost(now.catalogue)
    ]
    for ledger in now.ledgers:
        names = {version.name for version in now.known.of(ledger.handler)}
        found += _written(now, ledger, ledger.handler, names)
        found += await _counted(survey, now, ledger)
    for handler in sorted({*now.catalogue.replayed, *(split_name(one.handler)[0] for one in replayed)}):
        found += await _replays(survey, now, handler, replayed)
    kept: dict[str, int] = {}
    few: list[Violation] = []
    for one in found:
        kept[one.rule] = kept.get(one.rule, 0) + 1
        if kept[one.rule] <= VIOLATIONS_MAX:
            few.append(one)
    return few


def _written(now: Moment, ledger: Ledger, who: str, names: Collection[str]) -> list[Violation]:
    """Return what is wrong with the records of a ledger; ``names`` are the versions that it may name."""
    found: list[Violation] = []
    for partition in sorted(ledger.positions):
        where = f"{who}, {ledger.topic.name}/{partition}"
        told = [*_position(now, ledger, partition), *_ranges(ledger.positions[partition], names)]
        found += [Violation(rule, f"{where}: {text}") for rule, text in told]
    return [*found, *_exceptions(ledger, who, names)]


def _position(now: Moment, ledger: Ledger, partition: int) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with the ledger record of a partition by itself."""
    one = ledger.positions[partition]
    end = now.bounds[ledger.topic.name, partition].end
    open_ones = [entry.offset for entry in one.open]
    closed = one.done + one.dead + one.expired
    if one.taken != len(open_ones) + closed:
        yield "accounting", f"taken {one.taken} is not open {len(open_ones)} + closed {closed}"
    if not one.start - 1 <= one.high < max(end, one.start):
        yield "bounds", f"start {one.start}, high {one.high}, end of the log {end} are out of order"
    if len(set(open_ones)) < len(open_ones):
        yield "open_twice", "an offset is open twice"
    for offset in open_ones:
        if not one.start <= offset <= one.high:
            yield "open_place", f"offset {offset} is open and must not be"
    unknown = {entry.state for entry in one.open} - {state.value for state in OpenState}
    if unknown:
        yield "open_state", f"states {', '.join(sorted(unknown))} are unknown"


def _ranges(one: Position, names: Collection[str]) -> Iterator[tuple[str, str]]:
    begins = [part.after for part in one.ranges]
    if one.taken > one.expired and (not begins or begins[0] >= max(one.start, 0)):
        yield "ranges", f"events were taken from offset {one.start} on, ranges begin after {begins[:1]}"
    if begins != sorted(set(begins)) or (begins and begins[-1] > one.high):
        yield "range_place", f"ranges begin after {begins}, the position is {one.high}"
    for part in one.ranges:
        if part.version not in names:
            yield "range_version", f"nobody has offered version {part.version} (after {part.after})"


async def _counted(survey: Survey, now: Moment, ledger: Ledger) -> list[Violation]:
    """Compare what was counted as taken with what the index has up to there."""
    found: list[Violation] = []
    for partition, counts in (await counted(survey, now, ledger)).items():
        one = ledger.positions[partition]
        passed = counts.published - counts.above
        if passed != one.taken:
            where = f"{ledger.handler}, {ledger.topic.name}/{partition}"
            found.append(Violation("taken", f"{where}: events passed {passed}, counted as taken {one.taken}"))
    return found


def _exceptions(ledger: Ledger, who: str, names: Collection[str]) -> Iterator[Violation]:
    for (partition, offset), version in sorted(ledger.exceptions.items()):
        one = ledger.positions.get(partition)
        if one is None or not one.start <= offset <= one.high or version not in names:
            where = f"{who}, {ledger.topic.name}/{partition}"
            yield Violation(
                "exception_place", f"{where}: the exception at {offset} (version {version}) is out of place"
            )


# --- replays ------------------------------------------------------------------------------------


async def _replayed(survey: Survey) -> list[Ledger]:
    """Return the ledgers of replays; of a topic that was deleted there is nothing to compare with."""
    catalogue = await survey.catalogue()
    return await survey.ledgers(catalogue._replace(ledgers=catalogue.replays), whole=True)


async def _replays(survey: Survey, now: Moment, handler: str, replayed: Iterable[Ledger]) -> list[Violation]:
    """Return what is wrong with the replays of a handler: each by itself, then one beside another."""
    allotments = {one.replay: one for one in await Allotments(survey.log, handler).read()}
    names = {version.name for version in now.known.of(handler)}
    found = [
        Violation("replay_version", f"{_who(handler, one)}: nobody has offered version {one.version}")
        for one in allotments.values()
        if one.version not in names
    ]
    for ledger in replayed:
        of, number = split_name(ledger.handler)
        if of != handler:
            continue
        one = allotments.get(number)
        if one is None:
            found.append(Violation("replay_lost", f"{ledger.handler}: nothing says what it was allotted"))
        elif bytes.fromhex(one.topic) == ledger.topic.topic_id:
            found += _written(now, ledger, _who(handler, one), {one.version})
            found += await _allotted(survey, now, ledger, one)
    return found + _twice(handler, list(allotments.values()))


def _who(handler: str, one: Allotment) -> str:
    again = f", again {one.again}" if one.again else ""
    return f"{handler}, replay {one.replay} ({where_of(one)}{again})"


async def _allotted(survey: Survey, now: Moment, ledger: Ledger, one: Allotment) -> list[Violation]:
    """Compare what a replay was allotted, and has taken of it, with what the index has there."""
    allotted, who, whole = Allotted(one.parts), _who(split_name(ledger.handler)[0], one), True
    found: list[Violation] = []
    total = 0
    for partition, position in sorted(ledger.positions.items()):
        where = f"{who}, {ledger.topic.name}/{partition}"
        bounds = allotted.within(partition, 0, allotted.stop(partition))
        # One that nobody has begun says where the topic begins now, not where the replay does.
        begun = position.high >= position.start
        passed = allotted.within(partition, 0, position.high + 1) if begun else []
        numbers = await survey.log.index.view.counts(ledger.topic.topic_id, [*bounds, *passed])
        count, total = sum(numbers[len(bounds) :]), total + sum(numbers[: len(bounds)])
        # What retention has eaten may be in no index that was made since.
        there = now.bounds[ledger.topic.name, partition].low <= (allotted.first(partition) or 0)
        whole = whole and (there or not bounds)
        if count > position.taken or (count < position.taken and there):
            text = f"events passed {count}, counted as taken {position.taken}"
            found.append(Violation("replay_taken", f"{where}: {text}"))
        found += [
            Violation("replay_open", f"{where}: offset {entry.offset} is open and was not allotted")
            for entry in position.open
            if not allotted.has(partition, entry.offset)
        ]
    if total > one.allotted or (total < one.allotted and whole):
        text = f"it was allotted {one.allotted} events, and {total} lie in that"
        found.append(Violation("replay_count", f"{who}: {text}"))
    return found


def _twice(handler: str, allotments: list[Allotment]) -> list[Violation]:
    """Return where two replays of one ledger were allotted the same offsets for one version."""
    found: list[Violation] = []
    for one, other in combinations(allotments, 2):
        if (one.version, one.again, one.topic) != (other.version, other.again, other.topic):
            continue
        for partition in sorted(one.parts.keys() & other.parts.keys()):
            both = sorted([*one.parts[partition], *other.parts[partition]])
            at = next((second[0] for first, second in pairwise(both) if second[0] < first[1]), None)
            if at is not None:
                text = f"partition {partition}, offset {at} was allotted to replay {one.replay} as well"
                found.append(Violation("replay_twice", f"{_who(handler, other)}: {text}"))
    return found
