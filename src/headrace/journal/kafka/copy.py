"""Copies a whole journal from SQLite: events first, then a look at every one of them, then positions.

A position counts the offsets of its journal, and those of Kafka have holes.  So offsets are told by number:
the third event of a partition here is the third there, which the look at all of them makes sure of.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from confluent_kafka import TopicPartition

from headrace import errors
from headrace.codec.copied import CopyState, chained
from headrace.codec.ledger import (
    EXCEPTION,
    LEDGER_PARTITION,
    POSITION,
    Key,
    read_key,
    write_key,
    write_position,
)
from headrace.event.envelope import Head
from headrace.journal.kafka.copy_replays import CarriedReplay
from headrace.journal.kafka.fetch import Fetcher
from headrace.journal.kafka.journal import KafkaJournal
from headrace.journal.kafka.log import COMPACTED, own_topics
from headrace.journal.kafka.match import NONE, Map, Matcher, Step, position_of
from headrace.journal.kafka.outcome import Origin, dead_record
from headrace.journal.kafka.produce import Out
from headrace.journal.kafka.rows import number_of
from headrace.journal.kafka.target import Target, Timed, Wanted, chunks, is_empty, settings_for, unfit
from headrace.journal.kafka.topics import DEAD_SUFFIX, OWN
from headrace.journal.source import (
    Source,
    SourceEvent,
    SourceLetter,
    SourceSubscription,
    SourceTopic,
)
from headrace.ports import Clock, DeadLetter, Row, TopicInfo, VersionOffer

#: Events of one transaction, and their bytes: what is lost when the copy is killed, and done again.
EVENTS_MAX, BYTES_MAX = 500, 8 << 20
#: Dead letters and exceptions of one transaction.
LETTERS_MAX, EXCEPTIONS_MAX = 50, 2_000


class TopicCopied(NamedTuple):
    """What there is of one topic, here and there alike."""

    name: str
    partitions: int
    events: int
    checksum: str


class HandlerCopied(NamedTuple):
    """How far a handler had come."""

    handler: str
    topic: str
    active: str
    taken: int
    done: int
    dead: int
    open: int


class Report(NamedTuple):
    """What was copied, and found to be the same."""

    topics: list[TopicCopied]
    handlers: list[HandlerCopied]
    letters: int
    #: Dead letters that were redriven or dropped: they stay where they are.
    letters_left: int
    #: Replays, finished or not.
    replays: int


class Copy:
    """One copy of a journal; every step may be repeated."""

    def __init__(self, source: Source, journal: KafkaJournal, clock: Clock, step: Step) -> None:
        self._source, self._journal, self._log = source, journal, journal.log
        self._clock, self._step = clock, step
        self._topics = {topic.id: topic for topic in source.topics()}
        self._infos: dict[str, TopicInfo] = {}
        self._fetcher = Fetcher(self._log.cluster, f"{OWN}.copy", clock)
        self._target = Target(self._log.cluster, source.name, self._fetcher)

    def close(self) -> None:
        """Disconnect."""
        self._fetcher.close()

    # --- may it be done -----------------------------------------------------------------------

    async def check(self) -> list[str]:
        """Return what would be done; raises `CopyRefused` or `TopicMismatch` where it may not be."""
        self._source.check_idle()
        await self._target.look(self._log.opened())
        state = self._target.state
        told: list[str] = []
        for topic in self._topics.values():
            told += await self._check_topic(_wanted(topic), empty=state is None)
        for wanted in self._letter_topics():
            told += await self._check_topic(wanted, empty=False)
        for one in self._source.subscriptions():
            await self._check_unused(one, begun=False)
        return told

    async def is_done(self) -> bool:
        """Return whether it was copied before; raises `CopyRefused` when the source has gone on since."""
        await self._target.look(self._log.opened())
        state = self._target.state
        if state is None or not state.finished:
            return False
        if state.finished == self._source.marks():
            return True
        problem = "it was copied already, and has been worked on since: now there are two histories"
        hint = "go on with one of them; to copy anew, delete the topics and the index of the target first"
        raise errors.CopyRefused(problem=problem, hint=hint)

    async def _check_topic(self, wanted: Wanted, *, empty: bool) -> list[str]:
        """Return what is done about a topic; raises where it cannot hold what it has to."""
        admin = self._log.opened()
        found = await admin.find(wanted.name)
        if found is None:
            return [f"topic {wanted.name} is created; it keeps its records for ever"]
        if found.partitions != wanted.partitions:
            raise errors.TopicMismatch(topic=wanted.name, found=found.partitions, asked=wanted.partitions)
        problem = unfit(wanted, await admin.settings(wanted.name), self._clock.wall_us())
        if not problem and empty and not is_empty(self._fetcher, wanted.name, found.partitions):
            problem = "it holds records already, which are none of this journal's"
        if problem:
            hint = "set it with kafka-configs.sh, or delete the topic: the copy creates it as it has to be"
            raise errors.CopyRefused(problem=f"topic {wanted.name} is there, and {problem}", hint=hint)
        return []

    def _letter_topics(self) -> list[Wanted]:
        """Return what the topics of the dead letters have to hold."""
        found = self._source.letter_topics()
        return [
            Wanted(topic.name + DEAD_SUFFIX, topic.partitions, *found.get(topic.id, (0, 0, 0)))
            for topic in self._topics.values()
        ]

    async def _check_unused(self, one: SourceSubscription, *, begun: bool) -> None:
        """Raise when a worker has begun on the target: it has handled what is only now being copied."""
        ledger, topic = _ledger(one.handler), self._topics[one.topic]
        admin = self._log.opened()
        problem = ""
        found = await admin.find(ledger)
        if found is not None and await self._log.owned(one.handler, topic.name):
            problem = f"a worker serves {one.handler} on the target"
        elif found is not None and found.partitions != LEDGER_PARTITION + 1:
            raise errors.TopicMismatch(topic=ledger, found=found.partitions, asked=LEDGER_PARTITION + 1)
        elif found is not None:
            for *_, records in chunks(self._fetcher, ledger, LEDGER_PARTITION, stable=not begun):
                keys = [read_key(record.key()) for record in records]
                if any(key is not None and key.kind == POSITION for key in keys):
                    problem = f"{one.handler} has a position on the target: it has worked there before"
        if problem:
            raise errors.CopyRefused(problem=problem, hint="nothing may run on the target before it is whole")

    # --- the copy -----------------------------------------------------------------------------

    async def run(self) -> Report:
        """Copy what is not copied yet, look at all of it, and let handlers go on there."""
        admin = self._log.opened()
        for topic in self._topics.values():
            await admin.make(topic.name, topic.partitions, **settings_for(_wanted(topic)))
            self._infos[topic.name] = await self._log.topic(topic.name)
        await self._target.begin(admin)
        self._copy_events()
        matcher = Matcher(self._source, self._log, self._fetcher, self._step)
        matched = await matcher.match()
        await self._copy_versions()
        await self._copy_letters(matched)
        await self._finish(matched)
        return self._report(matched)

    @property
    def _state(self) -> CopyState:
        assert self._target.state is not None, "begun"
        return self._target.state

    def _copy_events(self) -> None:
        state = self._state
        total = sum(topic.events for topic in self._topics.values())
        done = self._source.count_to(state.events_upto) if state.events_upto else 0
        batch, size = list[Timed](), 0
        last = state.events_upto
        while events := self._source.events(last):
            for event in events:
                batch.append(self._record(event))
                size += len(event.body)
                last = event.seq
                if len(batch) >= EVENTS_MAX or size >= BYTES_MAX:
                    self._target.commit(batch, CopyState(last, self._state.letters_upto))
                    done += len(batch)
                    self._step("events", done, total)
                    batch, size = [], 0
        if batch:
            self._target.commit(batch, CopyState(last, self._state.letters_upto))

    def _record(self, event: SourceEvent) -> Timed:
        topic, stamps = self._topics[event.topic], self._log.stamps
        headers = stamps.headers(event.event_id, event.depth, self._stamped(event))
        key = None if event.head.key is None else event.head.key.encode()
        return Timed(Out(topic.name, event.partition, key, event.body, headers), event.head.time_us // 1000)

    def _stamped(self, event: SourceEvent) -> Head:
        """Return the envelope with the number that its stamp has here."""
        event.head.stamp = self._log.stamps.number(event.stamp)
        return event.head

    # --- what handlers have come to -----------------------------------------------------------

    async def _copy_versions(self) -> None:
        """Make the versions known in the order of the source, so that models get the same epochs."""
        names, trials = dict[int, str](), self._source.trials()
        for info, model_declared in self._source.versions():
            offer = VersionOffer(info.handler, info.declared, info.model, info.digest, model_declared)
            if info.id in trials:  # not active when a worker brings it, or a roll-out would be a roll-back
                name = (await self._log.versions.try_out(offer)).name
            else:
                name = (await self._journal.offer(offer)).mine.name
            names[info.id] = info.name
            if name != info.name:
                problem = f"version {info.name} of {info.handler} is known to the target as {name}"
                hint = "another app has offered the same model there before; use an index of its own"
                raise errors.CopyRefused(problem=problem, hint=hint)
        for handler, number in self._source.active().items():
            await self._journal.activate(handler, names[number])

    async def _copy_letters(self, matched: Map) -> None:
        for wanted in self._letter_topics():
            await self._log.opened().make(wanted.name, wanted.partitions, **settings_for(wanted))
        replays = self._replays(matched)
        while letters := self._source.letters(self._state.letters_upto, LETTERS_MAX):
            records = [self._letter(one, matched, replays.get(one.replay)) for one in letters]
            self._target.commit(records, CopyState(self._state.events_upto, letters[-1].id))

    def _replays(self, matched: Map) -> dict[int, CarriedReplay]:
        """Return the replays by their numbers in the source."""
        found: dict[int, CarriedReplay] = {}
        for one in self._source.replays():
            info = self._infos[self._topics[one.progress.topic].name]
            topic_id = self._log.found(info).topic_id
            found[one.number] = CarriedReplay(self._source.name, one, matched, topic_id)
        return found

    def _letter(self, one: SourceLetter, matched: Map, replay: CarriedReplay | None) -> Timed:
        event, topic = one.event, self._topics[one.event.topic]
        offset = matched[topic.id, event.partition].offset(event.seq)
        place = self._log.place(self._infos[topic.name], event.partition)
        head = self._stamped(event)
        row: Row = (
            number_of(event.partition, offset), place, event.event_id, head.root or event.event_id,
            event.depth, head, event.body,
        )  # fmt: skip
        letter = DeadLetter(
            row, one.reason, one.code, one.error, one.traceback, one.attempt, one.trace, one.type
        )
        info = self._infos[topic.name]
        origin = Origin(one.handler, topic.name, self._log.found(info).topic_id, self._log.stamps)
        if replay is not None:
            origin = origin._replace(replay=replay.number, where=replay.where)
        out = dead_record(origin, event.partition, letter, one.version)
        return Timed(out, one.died_us // 1000)

    async def _finish(self, matched: Map) -> None:
        """Write the positions of all handlers in one transaction: from then on they may go on there."""
        self._source.check_idle()
        marks = self._source.marks()
        if marks[0] != self._state.events_upto:
            raise errors.CopyRefused(problem="events were published to the source meanwhile")
        records: list[Timed] = []
        offsets: dict[str, list[TopicPartition]] = {}
        for one in self._source.subscriptions():
            topic = self._topics[one.topic]
            await self._log.own_of(one.handler, self._infos[topic.name])
            await self._check_unused(one, begun=True)
            topic_id = self._log.found(self._infos[topic.name]).topic_id
            self._copy_exceptions(one, matched, topic_id.hex())
            for part in one.parts:
                position = position_of(part, matched.get((topic.id, part.partition), NONE), topic_id)
                key = write_key(Key(POSITION, part.partition))
                out = Out(_ledger(one.handler), LEDGER_PARTITION, key, write_position(position))
                records.append(Timed(out, 0))
                where = TopicPartition(topic.name, part.partition, position.low())
                offsets.setdefault(self._log.group_of(one.handler), []).append(where)
        for replay in self._replays(matched).values():
            await self._log.own_of(replay.name, self._infos[self._topics[replay.topic].name])
            await self._log.opened().make(replay.allotments, 1, **COMPACTED)
            records += [Timed(out, 0) for out in replay.records()]
        state = CopyState(self._state.events_upto, self._state.letters_upto, marks)
        self._target.commit(records, state, offsets)

    def _copy_exceptions(self, one: SourceSubscription, matched: Map, topic: str) -> None:
        """Write them apart: they may be many, and written twice they say the same."""
        for at in range(0, len(one.exceptions), EXCEPTIONS_MAX):
            records: list[Timed] = []
            for partition, seq, version in one.exceptions[at : at + EXCEPTIONS_MAX]:
                key = Key(EXCEPTION, partition, matched[one.topic, partition].offset(seq), topic)
                out = Out(_ledger(one.handler), LEDGER_PARTITION, write_key(key), version.encode())
                records.append(Timed(out, 0))
            self._target.commit(records, self._state)

    # --- what is told -------------------------------------------------------------------------

    def _report(self, matched: Map) -> Report:
        topics = [
            TopicCopied(topic.name, topic.partitions, topic.events, _checksum(topic, matched))
            for topic in self._topics.values()
        ]
        names = {info.id: info.name for info, _ in self._source.versions()}
        active = self._source.active()
        handlers = [
            HandlerCopied(
                one.handler,
                self._topics[one.topic].name,
                names.get(active.get(one.handler, 0), ""),
                sum(part.taken for part in one.parts),
                sum(part.done for part in one.parts),
                sum(part.dead for part in one.parts),
                sum(len(part.open) for part in one.parts),
            )
            for one in self._source.subscriptions()
        ]
        return Report(topics, handlers, *self._source.letter_counts(), len(self._source.replays()))


def _ledger(handler: str) -> str:
    return own_topics(handler)[0]


def _wanted(topic: SourceTopic) -> Wanted:
    return Wanted(topic.name, topic.partitions, topic.size_bytes, topic.largest_bytes, topic.oldest_us)


def _checksum(topic: SourceTopic, matched: Map) -> str:
    total = 0
    for partition in range(topic.partitions):
        total = chained(total, matched[topic.id, partition].checksum)
    return f"{total:016x}"


def as_document(report: Report) -> dict[str, Any]:
    """Return a report as JSON has it."""
    return {
        "topics": [one._asdict() for one in report.topics],
        "handlers": [one._asdict() for one in report.handlers],
        "dead_letters": report.letters,
        "dead_letters_left": report.letters_left,
        "replays": report.replays,
    }
