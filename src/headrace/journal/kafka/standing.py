"""Where one event of a journal on Kafka stands with each handler of its topic."""

from __future__ import annotations

from uuid import UUID

from headrace.codec.ledger import OpenEntry, Position
from headrace.journal.kafka import letters
from headrace.journal.kafka.counting import Moment, moment_of, owners
from headrace.journal.kafka.events import Events
from headrace.journal.kafka.survey import Ledger, Survey
from headrace.journal.kafka.topics import split_name
from headrace.journal.scan import OPEN_MAX
from headrace.ports import OpenState, VersionInfo, index
from headrace.ports.index import Bound
from headrace.ports.look import Filter, Letter, Standing, State, StoredEvent, moment


async def standings(survey: Survey, event: StoredEvent) -> list[Standing]:
    """Return where an event stands, one entry per handler of its topic."""
    now = await moment_of(survey, whole=True)
    mine = [one for one in now.ledgers if one.topic.name == event.envelope.topic]
    groups = {one.handler: survey.log.group_of(one.handler) for one in now.ledgers}
    members = await survey.log.opened().members(list(groups.values()))
    workers = len({(one.client, one.host) for told in members.values() for one in told})
    found: list[Standing] = []
    for ledger in mine:
        partition, group = event.envelope.partition, groups[ledger.handler]
        owner = owners(members[group], ledger.topic.name, partition)
        base = Standing(
            handler=ledger.handler,
            state=State.DONE,
            active=now.known.active(ledger.handler),
            owner=owner[0] if owner else None,
            serving=len(members[group]),
            workers=workers,
            paused=len(ledger.positions[partition].open) >= OPEN_MAX,
        )
        found.append(await _placed(survey, now, ledger, event, base))
    return found


async def _placed(
    survey: Survey, now: Moment, ledger: Ledger, event: StoredEvent, base: Standing
) -> Standing:
    partition, offset = event.envelope.partition, event.envelope.offset
    position = ledger.positions[partition]
    if offset < position.start:
        return base._replace(state=State.SKIPPED)
    version = _version(now, ledger, position, partition, offset)
    if offset > position.high:
        claimed = now.claimed[ledger.handler][partition]
        if offset < claimed:
            active = base.active
            return base._replace(state=State.RUNNING, version=active, attempts=1)
        asked = [Bound(partition, claimed, offset)]
        (ahead,) = await survey.log.index.view.counts(ledger.topic.topic_id, asked)
        return base._replace(state=State.WAITING, ahead=ahead)
    entry = next((one for one in position.open if one.offset == offset), None)
    if entry is not None:
        return await _opened(survey, now, ledger, event, base, entry)
    letter = await letter_of(survey, ledger.handler, event) if position.dead else None
    if letter is not None:
        return base._replace(state=State.DEAD, version=version, letter=letter)
    return base._replace(state=State.DONE, version=version)


async def _opened(
    survey: Survey, now: Moment, ledger: Ledger, event: StoredEvent, base: Standing, entry: OpenEntry
) -> Standing:
    first = None if entry.state == OpenState.RUNNING else await _first_of_key(survey, now, ledger, event)
    return stands_open(base, entry)._replace(blocked_by=first)


def stands_open(base: Standing, entry: OpenEntry) -> Standing:
    """Return a standing with what a ledger says of an open offset."""
    return base._replace(
        state=State(entry.state),
        attempts=entry.number,
        crashes=entry.crashes,
        generation=entry.generation,
        due=moment(entry.due_us) if entry.due_us else None,
        errors=tuple(entry.errors),
    )


async def _first_of_key(survey: Survey, now: Moment, ledger: Ledger, event: StoredEvent) -> UUID | None:
    """Return the open event of the same key that has to end before this one."""
    key, partition, offset = event.envelope.key, event.envelope.partition, event.envelope.offset
    if key is None:
        return None
    below = [one.offset for one in ledger.positions[partition].open if one.offset < offset]
    places = [index.Place(ledger.topic.topic_id, partition, one, b"", 0) for one in below]
    found = await Events(survey).at(now.catalogue, places)
    # An event far back in the line waits for the one before it, which tells of the next.
    earlier = sorted((one.envelope for one in found.values()), key=lambda one: one.offset, reverse=True)
    return next((one.event_id for one in earlier if one.key == key), None)


def _version(
    now: Moment, ledger: Ledger, position: Position, partition: int, offset: int
) -> VersionInfo | None:
    """Return the version that has finished an offset, or is to."""
    name = ledger.exceptions.get((partition, offset)) or next(
        (one.version for one in reversed(position.ranges) if one.after < offset), None
    )
    return next((one for one in now.known.of(ledger.handler) if one.name == name), None)


async def letter_of(survey: Survey, name: str, event: StoredEvent) -> Letter | None:
    """Return the dead letter of a handler, or of a replay, that counts: the last one, unless redriven.

    The last by how often the event was redriven: clocks of two hosts differ, and wall clocks are set.
    """
    everything = await letters.named(survey.log, Filter(handler=split_name(name)[0], decided=True))
    here = event.envelope
    mine = [
        one
        for by, one in everything
        if by == name
        and (told := one.event.envelope).event_id == here.event_id
        and told.offset == here.offset
    ]
    last = max(mine, key=lambda one: one.generation, default=None)
    return None if last is None or last.fate == "redriven" else last
