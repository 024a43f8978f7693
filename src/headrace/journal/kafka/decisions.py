"""What persons have decided about dead letters, carried out by the owner of the partition.

A decision is a record of the subscription's topic of commands, so that what it leads to is one transaction
with an input offset, like any other: the event is open again, or the letter put away; the ledger says which,
and that the command is done.  The answer to a command that cannot be followed is in the ledger, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from confluent_kafka import Message

from headrace.codec.commands import Decide, read_decision
from headrace.codec.ledger import (
    FATE,
    LEDGER_PARTITION,
    Fate,
    Key,
    read_fate,
    read_key,
    write_fate,
    write_key,
)
from headrace.journal.held import Open
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.outcome import EXPIRED, key_of
from headrace.journal.kafka.part import Part
from headrace.journal.kafka.produce import Out
from headrace.journal.kafka.rows import DEAD_PREFIX, headers_of, number_of
from headrace.journal.kafka.topics import DEAD_SUFFIX, split_name
from headrace.ports import Attempt, OpenState, Row, Subscription

#: Commands of one transaction: enough to share it, few enough that others do not wait for long.
COMMANDS_MAX = 100
REDRIVEN, DROPPED = "redriven", "dropped"


class Decision(NamedTuple):
    """One command, and what follows from it."""

    command: Decide
    #: What the ledger is to say of the event, and under which key.
    key: Key
    fate: Fate
    #: The event that is open again; ``None`` where there is none.
    row: Row | None


class Plan(NamedTuple):
    """Commands of one partition that can be carried out together."""

    decisions: Sequence[Decision]
    #: How many records of the topic of commands they are, and the first offset beyond.
    records: int
    upto: int

    def redriven(self) -> list[int]:
        """Return the offsets that are open again."""
        return [one.command.offset for one in self.decisions if one.row is not None]

    def apply(self, part: Part, ledger: str) -> Iterator[Out]:
        """Change the partition; yield what the ledger is to say of each letter."""
        for command, key, fate, row in self.decisions:
            if row is not None:
                attempt = Attempt(0, generation=command.generation + 1)
                part.open(row, Open(row[0], OpenState.REDRIVEN, attempt, 0, key_of(row)))
                part.letters[row[0]] = command.letter
                part.dead -= 1
            yield Out(ledger, LEDGER_PARTITION, write_key(key), write_fate(fate))
        part.commands = self.upto


class Decisions:
    """Reads what a plan needs: the letters, what became of them before, and their events."""

    def __init__(self, log: Log, subscription: Subscription, ledger: str) -> None:
        self._log, self._ledger = log, ledger
        (self._handler, self._replay), self._topic = split_name(subscription.handler), subscription.topic
        self._rows = log.rows_of(subscription.topic)
        #: What was decided, as of the records of the ledger before an offset.
        self._fates: dict[Key, Fate] = {}
        self._read_upto = 0

    async def plan(self, part: Part) -> Plan:
        """Return what the commands at hand lead to."""
        messages = list(part.asked)[:COMMANDS_MAX]
        await self._read_fates()
        fates = {key: fate for key, fate in self._fates.items() if key.partition == part.partition}
        decisions: list[Decision] = []
        for message in messages:
            command = read_decision(message.value() or b"")
            if command is not None:
                decision = await self._decide(part, command, fates)
                fates[decision.key] = decision.fate
                decisions.append(decision)
        return Plan(decisions, len(messages), (messages[-1].offset() or 0) + 1)

    async def _read_fates(self) -> None:
        for message in await self._log.read_on(self._ledger, LEDGER_PARTITION, self._read_upto):
            key = read_key(message.key())
            if key is not None and key.kind == FATE:
                self._fates[key] = read_fate(message.value() or b"")
            self._read_upto = (message.offset() or 0) + 1

    async def _decide(self, part: Part, command: Decide, fates: Mapping[Key, Fate]) -> Decision:
        letter = await self._log.read_one(self._topic.name + DEAD_SUFFIX, part.partition, command.letter)
        now_us = self._log.clock.wall_us()
        key = Key(FATE, part.partition, command.offset, _topic_of(letter) or part.topic_id.hex())
        known = fates.get(key) or fates.get(key._replace(topic=""), Fate())
        problem = self._problem(part, command, known, letter)
        row = None
        if not problem and command.fate == REDRIVEN:
            row = await self.event(part.partition, command.offset, letter)
        if problem:
            # What was decided before stands; the last refusal stands beside it, for whoever asks why.
            return Decision(command, key, Fate(known.generation, known.fate, problem, now_us), None)
        return Decision(command, key, Fate(command.generation, command.fate, "", now_us), row)

    def _problem(self, part: Part, command: Decide, known: Fate, letter: Message | None) -> str:
        """Return why a command is not followed, or an empty string."""
        told = {} if letter is None else dict(headers_of(letter))
        names = ("handler", "replay", "offset", "generation")
        said = tuple(told.get(DEAD_PREFIX + name, b"") for name in names)
        wanted = (self._handler, self._replay, str(command.offset), str(command.generation))
        before, again = known.of(command.generation), command.fate == REDRIVEN
        # What cannot be run any more can be put away all the same.
        expired = told.get(f"{DEAD_PREFIX}reason") == EXPIRED.encode()
        foreign = told.get(f"{DEAD_PREFIX}topic") != part.topic_id.hex().encode()
        reasons = (
            (letter is None or said != tuple(map(str.encode, wanted)), "there is no such dead letter"),
            (again and expired, "nobody has its event any more"),
            (command.fate not in (REDRIVEN, DROPPED), f"{command.fate!r} is nothing that can be done"),
            (before != "", f"it was {before} before"),
            (again and foreign, "its topic was deleted and made again; publish the payload anew"),
            # Nothing but this worker closes offsets, so that is a letter of which the ledger knows nothing.
            (
                not foreign and number_of(part.partition, command.offset) in part.held.open,
                "its event is open already",
            ),
        )
        return next((text for applies, text in reasons if applies), "")

    async def event(self, partition: int, offset: int, letter: Message | None) -> Row:
        """Return an event that was dead: from its topic, or from its letter once retention has eaten it."""
        found = await self._log.read_one(self._topic.name, partition, offset)
        if found is not None:
            return self._rows.read(found).row
        if letter is not None:
            return self._rows.restore(letter, offset).row
        return self._rows.gone(partition, offset)

    async def reopened(self, partition: int, offset: int, letter: int) -> Row:
        """Return an event that is open; one that nobody has any more is `Gone`."""
        found = None
        if letter >= 0:
            found = await self._log.read_one(self._topic.name + DEAD_SUFFIX, partition, letter)
        return await self.event(partition, offset, found)


def _topic_of(letter: Message | None) -> str:
    """Return the cluster's id of the topic that a dead letter is about; empty where there is none."""
    told = {} if letter is None else dict(headers_of(letter))
    return (told.get(f"{DEAD_PREFIX}topic") or b"").decode(errors="replace")
