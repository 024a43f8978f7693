"""Is a journal on Kafka sound?  Ledgers against each other, against the topics, and against the index."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.codec.ledger import Position
from headrace.journal.kafka.counting import Moment, counted, moment_of
from headrace.journal.kafka.survey import Ledger, Survey
from headrace.ports import OpenState
from headrace.ports.look import Violation

#: Of one kind; where one partition breaks a rule all may.
VIOLATIONS_MAX = 20


async def violations(survey: Survey) -> list[Violation]:
    """Return every rule that does not hold, with where; an empty list for a sound journal."""
    now = await moment_of(survey, whole=True)
    found = [
        Violation("topic", f"{handler}: the cluster does not have its topic any more")
        for handler in await survey.lost(now.catalogue)
    ]
    for ledger in now.ledgers:
        for partition in sorted(ledger.positions):
            where = f"{ledger.handler}, {ledger.topic.name}/{partition}"
            found += [Violation(rule, f"{where}: {text}") for rule, text in _position(now, ledger, partition)]
        found += await _counted(survey, now, ledger)
        found += list(_exceptions(now, ledger))
    kept: dict[str, int] = {}
    few: list[Violation] = []
    for one in found:
        kept[one.rule] = kept.get(one.rule, 0) + 1
        if kept[one.rule] <= VIOLATIONS_MAX:
            few.append(one)
    return few


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
    yield from _ranges(now, ledger, one)


def _ranges(now: Moment, ledger: Ledger, one: Position) -> Iterator[tuple[str, str]]:
    names = {version.name for version in now.known.of(ledger.handler)}
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


def _exceptions(now: Moment, ledger: Ledger) -> Iterator[Violation]:
    names = {version.name for version in now.known.of(ledger.handler)}
    for (partition, offset), version in sorted(ledger.exceptions.items()):
        one = ledger.positions.get(partition)
        if one is None or not one.start <= offset <= one.high or version not in names:
            where = f"{ledger.handler}, {ledger.topic.name}/{partition}"
            yield Violation(
                "exception_place", f"{where}: the exception at {offset} (version {version}) is out of place"
            )
