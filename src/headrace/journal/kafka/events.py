"""The events of a journal on Kafka: by place, by id, by chain, and as they come."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import AsyncExitStack, suppress

from confluent_kafka import Message

from headrace import errors
from headrace.event.envelope import Head, Place, Stamp, envelope_of
from headrace.event.lineage import id_of
from headrace.journal.kafka.client import Topic
from headrace.journal.kafka.rows import Reading, Unreadable, offset_of
from headrace.journal.kafka.spans import At, Bounds, Span, Spans
from headrace.journal.kafka.survey import Catalogue, Survey
from headrace.journal.kafka.topics import OWN
from headrace.journal.reader import CANDIDATES_MAX, check_one, id_bounds, unreadable
from headrace.ports import index
from headrace.ports.look import CHAIN_EVENTS_MAX, Fits, StoredEvent, always

#: Records of a partition that lie so near to each other are read in one go.
NEAR_OFFSETS = 500
#: Events of one page, shared among the partitions; and the fewest offsets of one that are worth a request.
PAGE_EVENTS, PAGE_OFFSETS_MIN = 10_000, 50
#: Who follows looks for topics that are new when it was silent so long, and in any case now and then.
TOPICS_S, LISTEN_S_MAX = 3.0, 30.0
#: Beyond all offsets.
_FOREVER = 1 << 62

Placed = tuple[bytes, index.Place]


def stored(survey: Survey, topic: Topic, reading: Reading) -> StoredEvent:
    """Return a record as commands show it."""
    number, place, event_id, _, depth, head, body = reading.row
    at = Place(topic.name, place & 1023, offset_of(number))
    if isinstance(head, Unreadable):
        return unreadable(event_id, depth, at, body, head.problem)
    assert isinstance(head, Head), "a row of Kafka has an envelope, or says why not"
    stamp = survey.log.stamps.stamp(head.stamp) or Stamp("?", "?", 0)
    return StoredEvent(envelope_of(event_id, depth, head, stamp, at), body)


class Events:
    """Finds events in the index and reads them from the topics."""

    def __init__(self, survey: Survey) -> None:
        self._survey, self._view = survey, survey.log.index.view

    async def at(self, catalogue: Catalogue, places: Iterable[index.Place]) -> dict[Place, StoredEvent]:
        """Return the events at places; what retention has eaten is left out."""
        names = {topic.topic_id: topic for topic in catalogue.topics.values()}
        wanted: dict[At, list[int]] = {}
        for one in places:
            if one.topic_id in names:
                wanted.setdefault((names[one.topic_id].name, one.partition), []).append(one.offset)
        bounds = await self._survey.spans.bounds(wanted)
        parts = {
            at: _near([one for one in sorted(set(offsets)) if bounds[at].low <= one < bounds[at].end])
            for at, offsets in wanted.items()
        }
        found: dict[Place, StoredEvent] = {}
        while any(parts.values()):
            spans = [Span(*at, *part.pop(0)) for at, part in parts.items() if part]
            async with self._survey.spans.reading(spans) as bursts:
                async for burst in bursts:
                    for message in burst:
                        at = (message.topic() or "", message.partition() or 0)
                        if (message.offset() or 0) in wanted[at]:
                            topic = catalogue.topics[at[0]]
                            reading = self._survey.log.reading(topic).read(message)
                            event = stored(self._survey, topic, reading)
                            found[Place(*at, event.envelope.offset)] = event
        return found

    # --- by id --------------------------------------------------------------------------------

    async def find(self, text: str, *, topic: str | None = None) -> StoredEvent:
        """Return the event of an id, of the beginning of one, or of the name that its publisher gave it."""
        catalogue = await self._survey.catalogue()
        await self._survey.fill(catalogue.topics.values())
        wanted = None if topic is None else catalogue.topics.get(topic)
        several = "Several begin so"
        rows = await self._beginning_with(text)
        if not rows:
            rows, several = await self._named(text, catalogue), "Several publishers have given it"
        if topic is not None:
            rows = [row for row in rows if wanted is not None and row[1].topic_id == wanted.topic_id]
        check_one(text, topic, [row[0] for row in rows], several)
        found = await self.at(catalogue, [place for _, place in rows])
        if not found:
            raise errors.EventNotFound(
                "The index knows it, but no topic of the journal holds its record any more.", event_id=text
            )
        return min(found.values(), key=lambda one: (one.envelope.time, one.envelope.topic))

    async def _beginning_with(self, text: str) -> list[Placed]:
        bounds = id_bounds(text)
        return [] if bounds is None else await self._view.between(*bounds, CANDIDATES_MAX + 1)

    async def _named(self, text: str, catalogue: Catalogue) -> list[Placed]:
        """Look for an event under the id that each publisher would have made of its name.

        Publishers are the apps whose handlers are known, and those that do not say who they are.
        """
        known = await self._survey.known()
        sources = {f"{OWN}/{handler.rpartition('.')[0]}" for handler in known.handlers()}
        sources |= {f"kafka:{name}" for name in catalogue.topics} | set(self._survey.log.stamps.sources())
        found: list[Placed] = []
        for source in sorted(sources):
            with suppress(errors.EnvelopeInvalid):  # empty, too long: nobody can have given it
                event_id = id_of(text, source)
                found += await self._view.between(event_id, event_id, CANDIDATES_MAX)
        return found

    async def chain(self, event: StoredEvent) -> list[StoredEvent]:
        """Return the chain of an event, causes before effects."""
        catalogue = await self._survey.catalogue()
        await self._survey.fill(catalogue.topics.values())
        rows = await self._view.chain(event.envelope.causality_id.bytes, CHAIN_EVENTS_MAX)
        found = await self.at(catalogue, [place for _, place in rows])
        return sorted(found.values(), key=lambda one: (one.envelope.depth, one.envelope.time))


def _near(offsets: Sequence[int]) -> list[tuple[int, int]]:
    """Return spans that hold all offsets, those that are near to each other together."""
    spans: list[tuple[int, int]] = []
    for offset in offsets:
        if spans and offset - spans[-1][1] < NEAR_OFFSETS:
            spans[-1] = (spans[-1][0], offset + 1)
        else:
            spans.append((offset, offset + 1))
    return spans


class KafkaFeed:
    """The records of topics: in order within a partition, by their times among partitions."""

    ordered = False

    def __init__(self, survey: Survey, topic: str | None, from_offset: int) -> None:
        self._survey, self._topic, self._from = survey, topic, from_offset
        self._topics: dict[str, Topic] = {}
        self._reached: dict[At, int] = {}
        self._live: Spans | None = None
        self._stack = AsyncExitStack()
        self._bursts: AsyncGenerator[list[Message]] | None = None
        self._until_ns = 0
        self._waiting: list[Message] = []

    async def _look(self) -> dict[At, Bounds]:
        """Return the bounds of all partitions, new topics included."""
        catalogue = await self._survey.catalogue()
        self._topics = {name: one for name, one in catalogue.topics.items() if self._topic in (None, name)}
        where = [at for at in catalogue.partitions() if at[0] in self._topics]
        bounds = await self._survey.spans.bounds(where)
        for at, one in bounds.items():
            self._reached[at] = max(self._reached.get(at, self._from), one.low)
        return bounds

    def _events(self, messages: Iterable[Message]) -> list[StoredEvent]:
        """Return records in order: of a partition as they lie, among partitions by time."""
        keyed: list[tuple[int, At, int, Message]] = []
        latest: dict[At, int] = {}
        for message in messages:
            at = (message.topic() or "", message.partition() or 0)
            latest[at] = max(latest.get(at, 0), message.timestamp()[1])
            keyed.append((latest[at], at, message.offset() or 0, message))
        rows = {name: self._survey.log.reading(topic) for name, topic in self._topics.items()}
        return [
            stored(self._survey, self._topics[at[0]], rows[at[0]].read(message))
            for _, at, _, message in sorted(keyed, key=lambda one: one[:3])
        ]

    async def newest(self, count: int, fits: Fits = always) -> list[StoredEvent]:
        """Return the last events that fit, oldest first."""
        bounds = await self._look()
        self._reached |= {at: one.end for at, one in bounds.items()}
        if not count:
            return []
        offsets = max(2 * count, PAGE_OFFSETS_MIN)
        while True:
            read = self._events(await self._survey.spans.last(bounds, offsets))
            found = [one for one in read if fits(one)]
            if len(found) >= count or all(one.end - offsets <= one.low for one in bounds.values()):
                return found[-count:]
            offsets *= 8

    async def page(self) -> list[StoredEvent]:
        """Return the next events."""
        if self._bursts is not None:
            waiting, self._waiting = self._waiting, []
            return self._events(waiting)
        bounds = await self._look()
        share = max(PAGE_OFFSETS_MIN, PAGE_EVENTS // max(1, len(bounds)))
        while True:
            spans = [
                Span(*at, self._reached[at], min(one.end, self._reached[at] + share))
                for at, one in bounds.items()
                if self._reached[at] < one.end
            ]
            if not spans:
                return []
            found: list[Message] = []
            async with self._survey.spans.reading(spans) as bursts:
                async for burst in bursts:
                    found += burst
            self._reached |= {(one.topic, one.partition): one.end for one in spans}
            if found:
                return self._events(found)

    # --- as they come -------------------------------------------------------------------------

    async def wait(self) -> None:
        """Return when there are further records; topics that are new meanwhile are found, too."""
        clock = self._survey.log.clock
        while True:
            if self._bursts is None:
                await self._listen()
            # When nobody says anything, or has talked for long: time to look for topics.
            with suppress(errors.JournalUnavailable):
                if self._bursts is not None and clock.boot_ns() < self._until_ns:
                    self._waiting = await anext(self._bursts)
                    for message in self._waiting:
                        at = (message.topic() or "", message.partition() or 0)
                        self._reached[at] = (message.offset() or 0) + 1
                    return
            await self._hush()

    async def _listen(self) -> None:
        log = self._survey.log
        await self._look()
        spans = [Span(*at, offset, _FOREVER) for at, offset in self._reached.items()]
        self._until_ns = log.clock.boot_ns() + int(LISTEN_S_MAX * 1e9)
        if not spans:
            await log.clock.sleep(TOPICS_S)
            return
        self._live = self._live or Spans(log.cluster, OWN, log.clock)
        reading = self._live.reading(spans, silent_s_max=TOPICS_S)
        self._bursts = await self._stack.enter_async_context(reading)

    async def _hush(self) -> None:
        self._bursts = None
        await self._stack.aclose()

    async def close(self) -> None:
        """Disconnect."""
        await self._hush()
        if self._live is not None:
            await self._live.close()
