"""What live has made of a topic, as far as it decides what a replay is allotted: ledger and dead letters.

What is told here as closed and done stays so, whatever live does later: a position only moves on, an
offset that was closed is opened again by a redrive alone, and only while its last letter counts.  So it need
not be locked.

The records of one transaction may lie on both sides of what was the end of the ledger when it was asked
for.  So a redrive counts only once the ledger was read on behind it: the position that goes with it is known
by then, and says that the event is open again.  Letters are read last: those that go with a position are
there by then.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from confluent_kafka import Message

from headrace import errors
from headrace.codec.ledger import (
    EXCEPTION,
    FATE,
    FORM,
    LEDGER_PARTITION,
    POSITION,
    Fate,
    Position,
    read_fate,
    read_key,
    read_position,
)
from headrace.journal.allotment import Line
from headrace.journal.kafka.client import Topic
from headrace.journal.kafka.decisions import REDRIVEN
from headrace.journal.kafka.log import own_topics
from headrace.journal.kafka.rows import DEAD_PREFIX, headers_of
from headrace.journal.kafka.spans import At, Bounds, Span
from headrace.journal.kafka.survey import Survey
from headrace.journal.kafka.topics import DEAD_SUFFIX
from headrace.ports.replay import Order

#: In place of the numbers of versions: the one that history is to go through, and all others.
OURS, OTHERS = 1, 0

#: A partition and an offset of it.
Spot = tuple[int, int]
#: What is asked of a dead letter.
_SAID = ("handler", "topic", "replay", "offset", "generation")


class Past:
    """Ledger and dead letters of a live subscription, read on and on."""

    def __init__(self, survey: Survey, order: Order, topic: Topic) -> None:
        self._survey, self._log = survey, survey.log
        self._handler, self._follow, self.topic = order.handler, order.follow, topic
        self._ledger = own_topics(order.handler)[0]
        self._upto = 0
        self.positions: dict[int, Position] = {}
        self._exceptions: dict[Spot, str] = {}
        #: What was decided about letters; and what of it the ledger was not read on behind yet.
        self._fates: dict[Spot, Fate] = {}
        self._fresh: dict[Spot, Fate] = {}
        #: The generation of the last letter of each offset, and how far letters were read.
        self._letters: dict[Spot, int] = {}
        self._letters_upto: dict[At, int] = {}

    async def read(self) -> None:
        """Read on to the present; raises `ReplayRefused` for a handler that has no history."""
        if await self._log.opened().find(self._ledger) is not None:
            for _ in range(2):
                before, self._fresh = self._fresh, {}
                await self._read_ledger()
                self._fates |= before
        if not self.positions:
            raise no_history(self._handler, self.topic.name)
        await self._read_letters()

    async def _read_ledger(self) -> None:
        for message in await self._log.read_on(self._ledger, LEDGER_PARTITION, self._upto):
            self._upto = (message.offset() or 0) + 1
            key, value = read_key(message.key()), message.value() or b""
            if key is None or not key.fits(self.topic.topic_id):
                continue
            if key.kind == POSITION:
                self._note(key.partition, read_position(value))
            elif key.kind == EXCEPTION:
                self._exceptions[key.partition, key.offset] = value.decode(errors="replace")
            elif key.kind == FATE:
                self._fresh[key.partition, key.offset] = read_fate(value)

    def _note(self, partition: int, position: Position) -> None:
        if position.form > FORM:
            raise errors.JournalNewer(path=self._log.address, found=position.form, known=FORM)
        if position.topic_id == self.topic.topic_id:
            self.positions[partition] = position

    async def _read_letters(self) -> None:
        name = self.topic.name + DEAD_SUFFIX
        found = await self._log.opened().find(name)
        if found is None:
            return
        bounds = await self._survey.spans.bounds((name, at) for at in range(found.partitions))
        spans = [
            Span(*at, max(one.low, self._letters_upto.get(at, 0)), one.end) for at, one in bounds.items()
        ]
        async with self._survey.spans.reading(spans) as bursts:
            async for burst in bursts:
                for message in burst:
                    self._note_letter(message)
        self._letters_upto = {at: one.end for at, one in bounds.items()}

    def _note_letter(self, message: Message) -> None:
        """Note a dead letter of this subscription; those of others, and of replays, do not count."""
        told = dict(headers_of(message))
        said = {name: (told.get(DEAD_PREFIX + name) or b"").decode(errors="replace") for name in _SAID}
        if (said["handler"], said["topic"], said["replay"]) != (
            self._handler, self.topic.topic_id.hex(), "",
        ):  # fmt: skip
            return
        with suppress(ValueError):  # somebody else has written it
            spot = message.partition() or 0, int(said["offset"])
            self._letters[spot] = max(self._letters.get(spot, 0), int(said["generation"]))

    def line(self, partition: int, version: str, bounds: Bounds) -> Line:
        """Return what decides which offsets of a partition a version may have.

        An interval (after, upto] of these lines is that of the offsets from ``after`` on, before ``upto``.
        """
        position = self.positions.get(partition) or Position(bounds.low - 1, bounds.low)
        return Line(
            position.start,
            self.closed(partition) if partition in self.positions else bounds.low,
            sorted(one.offset + 1 for one in position.open),
            [(one.after + 1, _by(one.version, version)) for one in position.ranges],
            sorted(
                (offset + 1, _by(by, version))
                for (at, offset), by in self._exceptions.items()
                if at == partition
            ),
            sorted((offset + 1, OURS) for at, offset in self._dead() if at == partition),
            gone=bounds.low,
        )

    def closed(self, partition: int) -> int:
        """Return the first offset that is not closed yet, or is beyond the position."""
        position = self.positions[partition]
        # Up to the first that is open, where what is closed later is to come later.
        return position.low() if self._follow else position.high + 1

    def _dead(self) -> Iterator[Spot]:
        """Yield the offsets whose last letter was not redriven."""
        for spot, generation in self._letters.items():
            if self._fates.get(spot, Fate()).of(generation) != REDRIVEN:
                yield spot


def _by(found: str, version: str) -> int:
    return OURS if found == version else OTHERS


def no_history(handler: str, topic: str) -> errors.ReplayRefused:
    """Return the error for a handler that was never live."""
    return errors.ReplayRefused(
        handler=handler,
        problem=f"it has no live subscription to {topic}, so no history",
        hint="``headrace run`` it first: a handler that is new begins with the earliest event",
    )
