"""How far a replay on Kafka is, by its own ledger."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from headrace import errors
from headrace.codec.allotment import Allotment
from headrace.codec.ledger import FORM, LEDGER_PARTITION, POSITION, Position, read_key, read_position
from headrace.journal.kafka.allotter import Allotments
from headrace.journal.kafka.log import own_topics
from headrace.journal.kafka.spans import Bounds
from headrace.journal.kafka.survey import Survey
from headrace.journal.kafka.topics import replay_name
from headrace.ports import OpenState
from headrace.ports.replay import ReplayState


def where_of(allotment: Allotment) -> str:
    """Return where the results of a replay lie, for people."""
    return "live topics" if allotment.side is None else f"side {allotment.side}"


class Course:
    """The ledger of one replay, read on and on."""

    def __init__(self, survey: Survey, handler: str, replay: str) -> None:
        self._survey, self._log = survey, survey.log
        self.name = replay_name(handler, replay)
        self._ledger, self._commands = own_topics(self.name)
        self._upto = 0
        self._there = False
        self.positions: dict[int, Position] = {}

    async def read(self) -> Mapping[int, Position]:
        """Return the positions as they are now; a replay that nobody has worked on has none."""
        log = self._log
        if not self._there:
            self._there = await log.opened().find(self._ledger) is not None
        for message in await log.read_on(self._ledger, LEDGER_PARTITION, self._upto) if self._there else ():
            self._upto = (message.offset() or 0) + 1
            key = read_key(message.key())
            if key is not None and key.kind == POSITION:
                position = read_position(message.value() or b"")
                if position.form > FORM:
                    raise errors.JournalNewer(path=log.address, found=position.form, known=FORM)
                self.positions[key.partition] = position
        return self.positions

    async def state(self, allotment: Allotment) -> ReplayState:
        """Return how far it is; what was claimed and has no outcome yet counts as waiting."""
        positions = await self.read()
        states, told = states_of(positions.values()), positions.values()
        done, dead = sum(one.done for one in told), sum(one.dead for one in told)
        expired = sum(one.expired for one in told)
        # One that follows may have been allotted more, and handled it, elsewhere: the ledger is read last.
        known = max(allotment.allotted, states.total() + done + dead + expired)
        found = ReplayState(
            known,
            states[OpenState.RUNNING],
            done,
            dead,
            sum(one.emitted for one in told),
            complete=False,
            expired=expired,
        )
        if not finished(allotment, positions):
            return found
        return found._replace(complete=not await self._is_asked(positions))

    async def _is_asked(self, positions: Mapping[int, Position]) -> bool:
        """Return whether something was decided about its dead letters that is not carried out yet."""
        topic = await self._log.opened().find(self._commands)
        if topic is None:
            return False
        where = [(self._commands, at) for at in range(topic.partitions)]
        ends: dict[tuple[str, int], Bounds] = await self._survey.spans.bounds(where)
        return any(at in positions and positions[at].commands < one.end for (_, at), one in ends.items())


def finished(allotment: Allotment, positions: Mapping[int, Position]) -> bool:
    """Return whether everything that was allotted has come to an end."""
    return not any(one.open for one in positions.values()) and all(
        at in positions and positions[at].high + 1 >= found[-1][1]
        for at, found in allotment.parts.items()
        if found
    )


class Replaying(NamedTuple):
    """A replay, and how far it is."""

    handler: str
    allotment: Allotment
    course: Course
    state: ReplayState


async def replays_of(survey: Survey, handlers: Sequence[str]) -> list[Replaying]:
    """Return the replays of handlers, oldest first."""
    found: list[Replaying] = []
    for handler in handlers:
        for allotment in await Allotments(survey.log, handler).read():
            course = Course(survey, handler, allotment.replay)
            found.append(Replaying(handler, allotment, course, await course.state(allotment)))
    return sorted(found, key=lambda one: one.allotment.at_us)


async def handled(survey: Survey, handler: str | None) -> Counter[str]:
    """Return how many events each version of a handler has finished in replays, but for repetitions."""
    found: Counter[str] = Counter()
    for one in await replays_of(survey, [] if handler is None else [handler]):
        if one.allotment.again is None:
            found[one.allotment.version] += one.state.done + one.state.dead
    return found


def states_of(positions: Iterable[Position]) -> Counter[str]:
    """Return how many open events there are, by state."""
    return Counter(entry.state for one in positions for entry in one.open)
