"""Dead letters of a journal on Kafka: what the ``.dlq`` topics hold, and what was decided about each.

A letter's number is made of the offset and the partition of its record and of the number of its handler: the
same at every look, in every process, and with every index.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
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
from headrace.journal.kafka.topics import DEAD_SUFFIX, OWN, replay_name, split_name
from headrace.journal.kafka.versions import Known
from headrace.journal.reader import unreadable
from headrace.journal.versions import handler_unknown
from headrace.ports.look import UNDECIDED, Decided, Filter, Letter, StoredEvent, moment

#: The low bits of a letter's number are that of its handler; more handlers than this one journal has not.
HANDLER_BITS = 10
_HANDLERS = (1 << HANDLER_BITS) - 1


class Spot(NamedTuple):
    """An event of a subscription."""

    #: The name of the handler, or of one of its replays.
    name: str
    partition: int
    offset: int
    #: The cluster's id of its topic, in base 16; empty where nobody has said it.
    topic: str = ""


class Told(NamedTuple):
    """What the topics say: the letters, what became of them, and what is asked for and not done yet."""

    letters: list[Message]
    fates: dict[Spot, Fate]
    asked: dict[tuple[Spot, int], str]

    def fate(self, spot: Spot, generation: int) -> str | None:
        """Return what was decided about a letter, done or not done yet."""
        return self.told(spot).of(generation) or self.asked.get((spot._replace(topic=""), generation))

    def told(self, spot: Spot) -> Fate:
        """Return what the ledger says of an event."""
        return self.fates.get(spot) or self.fates.get(spot._replace(topic=""), Fate())


async def letters(log: Log, wanted: Filter = UNDECIDED) -> list[Letter]:
    """Return all dead letters that pass, oldest first; raises `HandlerUnknown`.

    ``fate`` is what was asked for or done; one that its owner refused is undecided again, and says why.
    """
    return [one for _, one in await named(log, wanted)]


async def named(log: Log, wanted: Filter = UNDECIDED) -> list[tuple[str, Letter]]:
    """Return dead letters with the names of the subscriptions that they died in: a handler, or a replay."""
    known = await log.versions.catch_up()
    handlers = _handlers(known, wanted.handler)
    told = await _read(log, handlers)
    found = [_letter(log, known, told, message) for message in told.letters]
    mine = [pair for pair in found if pair is not None and pair[1].handler in handlers]
    died = {(name, *_place(one), one.generation): (one.reason, one.code) for name, one in mine}
    mine = [
        (name, one._replace(again=died.get((name, *_place(one), one.generation - 1)) == _why(one)))
        for name, one in mine
    ]
    return sorted((pair for pair in mine if _passes(pair[1], wanted)), key=lambda pair: _age(pair[1]))


def _why(letter: Letter) -> tuple[str, str]:
    return letter.reason, letter.code


def _age(letter: Letter) -> tuple[datetime, int]:
    return letter.died, letter.id


async def redrive(log: Log, wanted: Sequence[Letter]) -> list[Decided]:
    """Ask for events to be handled again: durable when this returns, done by the partition's owner."""
    return await _ask(log, wanted, REDRIVEN)


async def drop(log: Log, wanted: Sequence[Letter]) -> list[Decided]:
    """Ask for letters to be put away: durable when this returns."""
    return await _ask(log, wanted, DROPPED)


async def refusals(log: Log, wanted: Sequence[Letter], *, drop: bool = False) -> list[Decided]:
    """Return what `redrive` (or `drop`) would say of each letter, without doing it."""
    known, now = await log.versions.catch_up(), await _now(log)
    return _refusals(known, now, wanted, drop=drop)


async def _now(log: Log) -> dict[int, tuple[str, Letter]]:
    return {pair[1].id: pair for pair in await named(log, Filter(decided=True))}


def _refusals(
    known: Known, now: Mapping[int, tuple[str, Letter]], wanted: Sequence[Letter], *, drop: bool
) -> list[Decided]:
    letters = [now[one.id][1] if one.id in now else None for one in wanted]
    return [
        Decided(one.id, _problem(known, letter, drop=drop))
        for one, letter in zip(wanted, letters, strict=True)
    ]


async def _ask(log: Log, wanted: Sequence[Letter], fate: str) -> list[Decided]:
    known, now = await log.versions.catch_up(), await _now(log)
    answers = _refusals(known, now, wanted, drop=fate == DROPPED)
    for letter, answer in zip(wanted, answers, strict=True):
        if not answer.problem:
            partition, offset = _place(letter)
            at, now_us = letter.id >> HANDLER_BITS + PARTITION_BITS, log.clock.wall_us()
            command = Decide(fate, offset, letter.generation, at, now_us)
            _, topic = own_topics(now[letter.id][0])
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
    everything, wanted = await log.opened().topics(), set(handlers)
    replays = {name for one in everything for name in _replays(one.name)}
    names = wanted | {name for name in replays if split_name(name)[0] in wanted}
    own = {topic: (name, at) for name in names for at, topic in enumerate(own_topics(name))}
    topics = [one for one in everything if one.name in own or one.name.endswith(DEAD_SUFFIX)]
    told, ledgers = Told([], {}, {}), dict[Spot, int]()
    commands: list[tuple[str, Message]] = []
    for message in await _records(log, topics):
        topic = message.topic() or ""
        if topic not in own:
            told.letters.append(message)
            continue
        name, at = own[topic]
        if at:
            commands.append((name, message))
        else:
            _note(told, ledgers, name, message)
    for name, message in commands:
        command, partition = read_decision(message.value() or b""), message.partition() or 0
        if command and (message.offset() or 0) >= ledgers.get(Spot(name, partition, 0), 0):
            told.asked[Spot(name, partition, command.offset), command.generation] = command.fate
    return told


def _replays(topic: str) -> Iterator[str]:
    """Yield the name of the replay whose ledger a topic is."""
    name = topic.removeprefix(f"{OWN}.").removesuffix(".ledger")
    if split_name(name)[1] and topic == own_topics(name)[0]:
        yield name


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


def _note(told: Told, ledgers: dict[Spot, int], name: str, message: Message) -> None:
    """Note what a record of a ledger says: of a letter, or how far commands are carried out."""
    key, value = read_key(message.key()), message.value() or b""
    if key is not None and key.kind == FATE:
        told.fates[Spot(name, *key[1:])] = read_fate(value)
    elif key is not None and key.kind == POSITION:
        ledgers[Spot(name, key.partition, 0)] = read_position(value).commands


# --- letters ----------------------------------------------------------------------------------------


def _letter(log: Log, known: Known, told: Told, message: Message) -> tuple[str, Letter] | None:
    """Return a dead letter, and where it died; ``None`` for a record that somebody else has written."""
    why = {
        name.removeprefix(DEAD_PREFIX): (value or b"").decode(errors="replace")
        for name, value in headers_of(message)
        if name.startswith(DEAD_PREFIX)
    }
    try:
        offset, generation = int(why["offset"]), int(why["generation"])
        attempts, crashes = int(why["attempts"]), int(why["crashes"])
        earlier, topic_id = tuple(map(str, json.loads(why["errors"]))), bytes.fromhex(why["topic"])
        replay = why.get("replay")
        name = replay_name(why["handler"], replay) if replay else why["handler"]
        spot = Spot(name, message.partition() or 0, offset, why["topic"])
    except (KeyError, ValueError):
        return None
    source = Topic((message.topic() or "").removesuffix(DEAD_SUFFIX), topic_id, 0)
    kind, event = _event(log, source, spot, message)
    number = number_of(spot.partition, message.offset() or 0) << HANDLER_BITS
    return name, Letter(
        id=number | known.number_of(why["handler"]) & _HANDLERS,
        handler=why["handler"],
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
        refused=told.told(spot).problem,
        replay=why.get("results", ""),
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
