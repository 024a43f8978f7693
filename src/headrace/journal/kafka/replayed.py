"""The replays of a journal on Kafka, for those who look into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.journal.kafka.allotted import Allotted
from headrace.journal.kafka.client import Member
from headrace.journal.kafka.counting import owners
from headrace.journal.kafka.course import Replaying, replays_of, states_of, where_of
from headrace.journal.kafka.standing import letter_of, stands_open
from headrace.journal.kafka.survey import Catalogue, Survey
from headrace.journal.kafka.versions import Known
from headrace.journal.scan import OPEN_MAX
from headrace.ports import OpenState, VersionInfo
from headrace.ports.index import Bound
from headrace.ports.look import Replayed, Standing, State, StoredEvent, moment


async def replays(survey: Survey) -> list[Replayed]:
    """Return every replay; what is in hand is counted in the index."""
    claims = await survey.log.index.view.claims()
    catalogue, known = await survey.catalogue(), await survey.known()
    found = await replays_of(survey, catalogue.replayed)
    members = await _members(survey, found)
    shown: list[Replayed] = []
    for one in found:
        claimed = {claim.partition: claim.upto for claim in claims if claim.subscription == one.course.name}
        in_hand = 0 if one.state.complete else await _in_hand(survey, one, claimed)
        shown.append(_shown(one, catalogue, known, members[one.course.name], in_hand))
    return shown


async def _members(survey: Survey, found: Sequence[Replaying]) -> dict[str, list[Member]]:
    """Return the members of the groups of replays, by their names."""
    groups = {one.course.name: survey.log.group_of(one.course.name) for one in found}
    told = await survey.log.opened().members(list(groups.values()))
    return {name: told[group] for name, group in groups.items()}


async def _in_hand(survey: Survey, one: Replaying, claimed: Mapping[int, int]) -> int:
    """Return how many events were claimed and have no outcome yet."""
    allotted, bounds = Allotted(one.allotment.parts), list[Bound]()
    for partition, upto in claimed.items():
        position = one.course.positions.get(partition)
        after = position.high + 1 if position is not None else allotted.first(partition) or 0
        bounds += allotted.within(partition, after, upto)
    topic_id = bytes.fromhex(one.allotment.topic)
    return sum(await survey.log.index.view.counts(topic_id, bounds)) if bounds else 0


def _shown(
    one: Replaying, catalogue: Catalogue, known: Known, members: Sequence[Member], in_hand: int
) -> Replayed:
    allotment, state = one.allotment, one.state
    topic = catalogue.everything.get(bytes.fromhex(allotment.topic))
    name = allotment.topic if topic is None else topic.name  # one that was deleted has no name any more
    states = states_of(one.course.positions.values())
    running = state.running + in_hand
    ended = running + state.done + state.dead + state.expired
    return Replayed(
        handler=one.handler,
        topic=name,
        version=_version(known, one),
        side=allotment.side,
        again=allotment.again,
        follow=allotment.follow,
        allotted=state.allotted,
        waiting=0 if state.complete else state.allotted - ended,
        open={by: count for by, count in states.items() if by != OpenState.RUNNING},
        running=running,
        done=state.done,
        dead=state.dead,
        emitted=state.emitted,
        skipped=allotment.skipped,
        complete=state.complete,
        owners=owners(members, name),
        begun=moment(allotment.at_us),
        expired=state.expired,
    )


def _version(known: Known, one: Replaying) -> VersionInfo | None:
    return next((by for by in known.of(one.handler) if by.name == one.allotment.version), None)


# --- one event --------------------------------------------------------------------------------------


async def standings(survey: Survey, event: StoredEvent) -> list[Standing]:
    """Return where an event stands with the replays that were allotted it."""
    catalogue, here = await survey.catalogue(), event.envelope
    topic = catalogue.topics.get(here.topic)
    mine = [
        one
        for one in await replays_of(survey, catalogue.replayed)
        if topic is not None
        and bytes.fromhex(one.allotment.topic) == topic.topic_id
        and Allotted(one.allotment.parts).has(here.partition, here.offset)
    ]
    if not mine:
        return []
    known, members = await survey.known(), await _members(survey, mine)
    workers = len({(one.client, one.host) for told in members.values() for one in told})
    return [await _standing(survey, known, event, one, members[one.course.name], workers) for one in mine]


async def _standing(
    survey: Survey,
    known: Known,
    event: StoredEvent,
    one: Replaying,
    members: Sequence[Member],
    workers: int,
) -> Standing:
    partition, offset = event.envelope.partition, event.envelope.offset
    position = one.course.positions.get(partition)
    owner, version = owners(members, event.envelope.topic, partition), _version(known, one)
    base = Standing(
        handler=one.handler,
        state=State.DONE,
        active=version,
        owner=owner[0] if owner else None,
        serving=len(members),
        workers=workers,
        version=version,
        paused=position is not None and len(position.open) >= OPEN_MAX,
        replay=where_of(one.allotment),
    )
    if position is None or offset > position.high:
        bounds = Allotted(one.allotment.parts).within(
            partition, 0 if position is None else position.high + 1, offset
        )
        ahead = sum(await survey.log.index.view.counts(bytes.fromhex(one.allotment.topic), bounds))
        return base._replace(state=State.WAITING, version=None, ahead=ahead)
    entry = next((each for each in position.open if each.offset == offset), None)
    if entry is not None:
        return stands_open(base, entry)
    letter = await letter_of(survey, one.course.name, event) if position.dead else None
    return base if letter is None else base._replace(state=State.DEAD, letter=letter)
