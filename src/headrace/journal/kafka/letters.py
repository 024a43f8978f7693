"""Dead letters of a journal on Kafka: what the ``.dlq`` topics hold, and what was decided about each.

A letter's number is made of the offset and the partition of its record and of the number of its handler: the
same at every look, in every process, and with every index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from confluent_kafka import Message

from headrace.codec.commands import Decide, read_decision, write_command
from headrace.codec.ledger import FATE, POSITION, Fate, read_fate, read_key, read_position
from headrace.event.envelope import Head, Place, envelope_of
from headrace.journal.kafka.client import Topic
from headrace.journal.kafka.decisions import DROPPED, REDRIVEN
from headrace.journal.kafka.log import Log, own_topics
from headrace.journal.kafka.produce import Out
from headrace.journal.kafka.rows import DEAD_PREFIX, PARTITION_BITS, headers_of, number_of
from headrace.journal.kafka.spans import Span, Spans
from headrace.journal.kafka.topics import DEAD_SUFFIX
from headrace.journal.kafka.versions import Known
from headrace.journal.reader import unreadable
from headrace.journal.versions import handler_unknown
from headrace.ports.look import UNDECIDED, Decided, Filter, Letter, StoredEvent, moment

#: The low bits of a letter's number are that of its handler; more handlers than this one journal has not.
HANDLER_BITS = 10
_HANDLERS = (1 << HANDLER_BITS) - 1


class Spot(NamedTuple):
    """An event of a handler."""

    handler: str
    partition: int
    offset: int


class Told(NamedTuple):
    """What the topics say: the letters, what became of them, and what is asked for and not done yet."""

    letters: list[Message]
    fates: dict[Spot, Fate]
    asked: dict[tuple[Spot, int], str]

    def fate(self, spot: Spot, generation: int) -> str | None:
        """Return what was decided about a letter, done or not done yet."""
        done = self.fates.get(spot, Fate()).of(generation)
        return done or self.asked.get((spot, generation))


async def letters(log: Log, wanted: Filter = UNDECIDED) -> list[Letter]:
    """Return all dead letters that pass, oldest first; raises `HandlerUnknown`.

    ``fate`` is what was asked for or done; one that its owner refused is undecided again, and says why.
    """
    known = await log.versions.catch_up()
    handlers = _handlers(known, wanted.handler)
    told = await _read(log, handlers)
    found = [_letter(log, known, told, message) for message in told.letters]
    mine = [one for one in found if one is not None and one.handler in handlers]
    died = {(one.handler, *_place(one), one.generation): (one.reason, one.code) for one in mine}
    mine = [
        one._replace(
            again=died.get((one.handler, *_place(one), one.generation - 1)) == (one.reason, one.code)
        )
        for one in mine
    ]
    return sorted((one for one in mine if _passes(one, wanted)), key=lambda one: (one.died, one.id))


async def redrive(log: Log, wanted: Sequence[Letter]) -> list[Decided]:
    """Ask for events to be handled again: durable when this returns, done by the partition's owner."""
    return await _ask(log, wanted, REDRIVEN)


async def drop(log: Log, wanted: Sequence[Letter]) -> list[Decided]:
    """Ask for letters to be put away: durable when this returns."""
    return await _ask(log, wanted, DROPPED)


async def refusals(log: Log, wanted: Sequence[Letter], *, drop: bool = False) -> list[Decided]:
    """Return what `redrive` (or `drop`) would say of each letter, without doing it."""
    known = await log.versions.catch_up()
    now = {one.id: one for one in await letters(log, Filter(decided=True))}
    return [Decided(one.id, _problem(known, now.get(one.id), drop=drop)) for one in wanted]


async def _ask(log: Log, wanted: Sequence[Letter], fate: str) -> list[Decided]:
    answers = await refusals(log, wanted, drop=fate == DROPPED)
    for letter, answer in zip(wanted, answers, strict=True):
        if not answer.problem:
            partition, offset = _place(letter)
            at, now_us = letter.id >> HANDLER_BITS + PARTITION_BITS, log.clock.wall_us()
            command = Decide(fate, offset, letter.generation, at, now_us)
            _, topic = own_topics(letter.handler)
            await log.publisher.publish(Out(topic, partition, None, write_command(command)))
    return answers


def _problem(known: Known, letter: Letter | None, *, drop: bool) -> str:
    """Return why nothing can be done about a letter, or an empty string; its owner has the last word."""
    if letter is None:
        return "there is no such dead letter"
    reasons = (
        (letter.fate is not None, f"it was {letter.fate} before"),
        (not drop and letter.reason == "expired", "nobody has its event any more"),
        (not drop and known.active(letter.handler) is None, f"{letter.handler} has no active version"),
    )
    return next((text for applies, text in reasons if applies), "")


def _handlers(known: Known, wanted: str | None) -> list[str]:
    """Return the handlers that a name means: whole, or without what stands before its last dot."""
    if wanted is None:
        return known.handlers()
    found = [one for one in known.handlers() if one == wanted or one.endswith(f".{wanted}")]
    if not found:
        raise handler_unknown(wanted, known.handlers())
    return found


def _passes(letter: Letter, wanted: Filter) -> bool:
    return (
        wanted.reason in (None, letter.reason)
        and wanted.type in (None, letter.type)
        and (wanted.decided or letter.fate is None)
    )


# --- topics -----------------------------------------------------------------------------------------


async def _read(log: Log, handlers: Iterable[str]) -> Told:
    """Read the dead letters, and the ledgers and commands of handlers."""
    own = {topic: (handler, at) for handler in handlers for at, topic in enumerate(own_topics(handler))}
    topics = [one for one in await log.opened().topics() if one.name in own or one.name.endswith(DEAD_SUFFIX)]
    told, ledgers = Told([], {}, {}), dict[Spot, int]()
    commands: list[tuple[str, Message]] = []
    for message in await _records(log, topics):
        topic = message.topic() or ""
        if topic not in own:
            told.letters.append(message)
            continue
        handler, at = own[topic]
        if at:
            commands.append((handler, message))
        else:
            _note(told, ledgers, handler, message)
    for handler, message in commands:
        command, partition = read_decision(message.value() or b""), message.partition() or 0
        if command and (message.offset() or 0) >= ledgers.get(Spot(handler, partition, 0), 0):
            told.asked[Spot(handler, partition, command.offset), command.generation] = command.fate
    return told


async def _records(log: Log, topics: Sequence[Topic]) -> list[Message]:
    found: list[Message] = []
    spans = Spans(log.cluster, "headrace", log.clock)
    try:
        bounds = await spans.bounds((one.name, at) for one in topics for at in range(one.partitions))
        async with spans.reading([Span(*at, *bound) for at, bound in bounds.items()]) as bursts:
            async for burst in bursts:
                found += burst
    finally:
        await spans.close()
    return found


def _note(told: Told, ledgers: dict[Spot, int], handler: str, message: Message) -> None:
    """Note what a record of a ledger says: of a letter, or how far commands are carried out."""
    key, value = read_key(message.key()), message.value() or b""
    if key is not None and key.kind == FATE:
        told.fates[Spot(handler, key.partition, key.offset)] = read_fate(value)
    elif key is not None and key.kind == POSITION:
        ledgers[Spot(handler, key.partition, 0)] = read_position(value).commands


# --- letters ----------------------------------------------------------------------------------------


def _letter(log: Log, known: Known, told: Told, message: Message) -> Letter | None:
    """Return a record of a topic of dead letters; ``None`` for one that somebody else has written."""
    why = {
        name.removeprefix(DEAD_PREFIX): (value or b"").decode(errors="replace")
        for name, value in headers_of(message)
        if name.startswith(DEAD_PREFIX)
    }
    try:
        offset, generation = int(why["offset"]), int(why["generation"])
        attempts, crashes = int(why["attempts"]), int(why["crashes"])
        earlier, topic_id = tuple(map(str, json.loads(why["errors"]))), bytes.fromhex(why["topic"])
        spot = Spot(why["handler"], message.partition() or 0, offset)
    except (KeyError, ValueError):
        return None
    source = Topic((message.topic() or "").removesuffix(DEAD_SUFFIX), topic_id, 0)
    kind, event = _event(log, source, spot, message)
    number = number_of(spot.partition, message.offset() or 0) << HANDLER_BITS
    return Letter(
        id=number | known.number_of(spot.handler) & _HANDLERS,
        handler=spot.handler,
        type=kind,
        reason=why["reason"],
        code=why["code"],
        error=why["error"],
        traceback=why["traceback"],
        attempts=attempts,
        crashes=crashes,
        errors=earlier,
        generation=generation,
        version=why["version"],
        died=moment(message.timestamp()[1] * 1000),
        fate=told.fate(spot, generation),
        again=False,
        event=event,
        refused=told.fates.get(spot, Fate()).problem,
    )


def _event(log: Log, topic: Topic, spot: Spot, message: Message) -> tuple[str, StoredEvent]:
    """Return the type of a dead event, and the event."""
    row = log.reading(topic).restore(message, spot.offset).row
    place, head = Place(topic.name, spot.partition, spot.offset), row[5]
    if not isinstance(head, Head):
        return "", unreadable(row[2], row[4], place, row[6], head.problem)
    stamp = log.stamps.stamp(head.stamp)
    assert stamp is not None, "the reader has numbered it"
    return stamp.type, StoredEvent(envelope_of(row[2], row[4], head, stamp, place), row[6])


def _place(letter: Letter) -> tuple[int, int]:
    envelope = letter.event.envelope
    return envelope.partition, envelope.offset
