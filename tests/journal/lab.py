"""A journal in a world that is moved by hand, and short forms for what tests of journals do to it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.journal.journals import Kind, SqliteFile
from tests.journal.ledger import Ledger

from headrace.app import World
from headrace.event.envelope import Head, Stamp
from headrace.event.lineage import Derivation, partition_of, uuid7
from headrace.ports import (
    FIRST_ATTEMPT,
    Attempt,
    Batch,
    Consumer,
    DeadLetter,
    Faults,
    Journal,
    NewEvent,
    NoFaults,
    OpenState,
    Outcome,
    Receipt,
    Row,
    Settled,
    Subscription,
    VersionInfo,
    VersionOffer,
    Waiting,
    Worker,
)
from headrace.testing import ManualClock

TOPIC, OUT = "things", "made"
HANDLER = "lab.make"
LEASE_MS = SqliteFile.lease_ms


class SeededChance:
    """Chance that is the same in every run."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def bytes(self, size: int) -> bytes:
        """Return bytes."""
        return self._random.randbytes(size)

    def unit(self) -> float:
        """Return a number in [0, 1)."""
        return self._random.random()


class Switch:
    """Failpoints that a test turns on while it runs; counts what is passed."""

    def __init__(self) -> None:
        self.now: Faults = NoFaults()
        self.passed: Counter[str] = Counter()

    def at(self, point: str) -> None:
        """Pass a failpoint."""
        self.passed[point] += 1
        self.now.at(point)


class Content(NamedTuple):
    """What makes two copies of an event the same, and under which stamp it is published."""

    key: str | None = "a"
    body: bytes = b"{}"
    type: str = "Thing"
    source: str = "headrace/lab"


PLAIN = Content()


def offer(digest: str | None = None, declared: str = "1", *, handler: str = HANDLER) -> VersionOffer:
    """Return the offer of a version: with a model when there is a digest."""
    return VersionOffer(handler, declared, digest and "model", digest)


@dataclass
class Lab:
    """One journal, opened once or several times, and the world around it."""

    kind: Kind
    folder: Path
    clock: ManualClock = field(default_factory=ManualClock)
    chance: SeededChance = field(default_factory=SeededChance)
    faults: Switch = field(default_factory=Switch)
    partitions: int = 4
    _open: list[Journal] = field(default_factory=list)
    #: Workers that have partitions.
    members: list[Member] = field(default_factory=list)
    #: They, and those that have left or died.
    _joined: list[Member] = field(default_factory=list)
    _ledger: Ledger | None = None

    @property
    def world(self) -> World:
        """The world that the journals of this lab are opened in."""
        return World(clock=self.clock, chance=self.chance, faults=self.faults)

    async def journal(self) -> Journal:
        """Return the journal, open and with its topics."""
        return self._open[0] if self._open else await self.another()

    async def another(self) -> Journal:
        """Return a further connection to the same data."""
        assert not self._open or self.kind.can.several_connections, (
            "mark the test: needs('several_connections')"
        )
        journal = self.kind.make(self.folder, self.world)
        await journal.open()
        self._open.append(journal)
        for name in (TOPIC, OUT):
            await journal.topic(name, self.partitions)
        return journal

    async def close(self) -> None:
        """Close every connection."""
        self.faults.now = NoFaults()
        for member in self._joined:
            await member.consumer.release()
        for journal in self._open:
            await journal.close()
        self._open.clear()
        self.kind.forget(self.folder)

    @property
    def ledger(self) -> Ledger:
        """What the journal has written down."""
        if self._ledger is None:
            self._ledger = self.kind.ledger(self.folder, self._open[0])
        return self._ledger

    # --- publishing ---------------------------------------------------------------------------

    async def event(
        self,
        content: Content = PLAIN,
        *,
        event_id: bytes | None = None,
        parents: Sequence[bytes] = (),
        topic: str = TOPIC,
        journal: Journal | None = None,
    ) -> NewEvent:
        """Return an event as a publisher would prepare it."""
        journal = journal or await self.journal()
        (stamp,) = await journal.intern([Stamp(content.type, content.source, 1)])
        drawn = event_id or uuid7(self.clock.wall_us(), self.chance.bytes(10))
        info = await journal.topic(topic)
        place = journal.place(info, partition_of(content.key, drawn, info.partitions))
        head = head_of(stamp, self.chance, content.key, tuple(parents), self.clock.wall_us())
        return NewEvent(topic, place, drawn, head, content.body, may_exist=event_id is not None)

    async def publish(self, *keys: str | None, journal: Journal | None = None) -> list[NewEvent]:
        """Publish one event per key as one unit; the body of each says which it is."""
        unit = [
            await self.event(Content(key, f'{{"n":{n}}}'.encode()), journal=journal)
            for n, key in enumerate(keys)
        ]
        await (journal or await self.journal()).publish(unit)
        return unit

    async def publish_one(self, content: Content = PLAIN, **options: Any) -> Receipt:
        """Publish one event by itself."""
        journal = options.get("journal") or await self.journal()
        (receipt,) = await journal.publish([await self.event(content, **options)])
        return receipt

    # --- handling -----------------------------------------------------------------------------

    async def member(
        self,
        version: VersionOffer | None = None,
        *,
        journal: Journal | None = None,
        handler: str = HANDLER,
        topic: str = TOPIC,
        latest: bool = False,
        balance: bool = True,
    ) -> Member:
        """Return a worker that serves a handler and has taken the partitions that are its share."""
        journal = journal or await self.journal()
        worker = await journal.join(self.kind.lease_ms)
        subscription = await journal.subscribe(handler, topic, latest=latest)
        offered = await journal.offer(version or offer(handler=handler))
        consumer = journal.consumer(worker, subscription)
        member = Member(self, journal, worker, subscription, consumer, offered.mine)
        if balance:
            await member.balance()
        return member

    async def rows(self, topic: str = TOPIC) -> list[Row]:
        """Return all events of a topic as a new handler would see them."""
        reader = await self.member(handler=f"lab.reads-{self.chance.bytes(4).hex()}", topic=topic)
        found: list[Row] = []
        while batch := await reader.take():
            found += batch.rows
            await reader.settle(batch)
        await reader.leave()
        return sorted(found)

    def expire(self) -> None:
        """Let every lease that nobody renews run out."""
        self.clock.advance(LEASE_MS / 1000 + 0.001)

    def sound(self) -> None:
        """Check every rule of the ledger."""
        assert self.ledger.breaches() == []


@dataclass
class Member:
    """A worker that serves one handler."""

    lab: Lab
    journal: Journal
    worker: Worker
    subscription: Subscription
    consumer: Consumer
    version: VersionInfo

    @property
    def sub(self) -> Any:
        """What the ledger knows the subscription by."""
        return self.lab.kind.sub(self.subscription)

    @property
    def group(self) -> list[Member]:
        """All workers of the subscription that live, this one with them."""
        return [one for one in self.lab.members if one.subscription.handler == self.subscription.handler]

    async def balance(self) -> int:
        """Take the partitions that are this worker's share."""
        if self not in self.lab.members:
            self.lab.members.append(self)
            self.lab._joined.append(self)
        await self.consumer.balance()
        await self.lab.kind.arrived(self)
        return self.consumer.held()

    async def take(self, limit: int = 1_000) -> Batch | None:
        """Claim events under this worker's version."""
        await self.lab.kind.arrived(self)
        return await self.consumer.take(limit, self.version)

    async def taken(self, limit: int = 1_000) -> Batch:
        """Claim events; there must be some."""
        batch = await self.take(limit)
        assert batch is not None, "there is something to take"
        return batch

    async def settle(self, batch: Batch, outcome: Outcome | None = None, *, limit: int = 0) -> Settled:
        """Commit an outcome; by default everything is done and emits nothing."""
        outcome = Outcome(done=list(batch.rows)) if outcome is None else outcome
        await self.lab.kind.arrived(self)
        (settled,) = await self.consumer.settle([(batch, outcome)], limit=limit)
        return settled

    async def made(self, batch: Batch, rows: Iterable[Row] | None = None) -> Outcome:
        """Return an outcome in which each row is done and has one child."""
        rows = list(batch.rows if rows is None else rows)
        (stamp,) = await self.journal.intern([self.stamp(batch.version)])
        out = await self.journal.topic(OUT)
        ids = Derivation(batch.version.handler, batch.version.name)
        outcome = Outcome(done=rows, causes=[row[0] for row in rows])
        for row in rows:
            head = head_of(stamp, self.lab.chance, self.key(row), (row[2],), self.lab.clock.wall_us())
            head.root = self.journal.decode_head(row[5]).root or row[2]
            child = ids.child(row[2], 0)
            place = self.journal.place(out, partition_of(head.key, child, out.partitions))
            outcome.emitted.append(self.journal.emitted(place, child, row[3], row[4] + 1, head, row[6]))
        return outcome

    def stamp(self, version: VersionInfo) -> Stamp:
        """Return the stamp of what a version emits."""
        return Stamp(
            "Made", "headrace/lab", 1, "application/json", f"{HANDLER}@{version.declared}", version.model_name
        )

    def key(self, row: Row) -> str | None:
        """Return the key of a row."""
        return self.journal.decode_head(row[5]).key

    def attempt(self, batch: Batch, row: Row) -> Attempt:
        """Return which attempt at a row this is."""
        return batch.attempts.get(row[0], FIRST_ATTEMPT)

    def waits(
        self, batch: Batch, row: Row, *, after_ms: float = 0.0, state: OpenState = OpenState.RETRY
    ) -> Waiting:
        """Return a row as failed, to be tried again."""
        attempt = self.attempt(batch, row)
        if state in (OpenState.RETURNED, OpenState.BLOCKED):  # not begun: it does not count
            attempt = attempt._replace(number=attempt.number - 1)
        else:
            attempt = attempt._replace(errors=(*attempt.errors, f"attempt {attempt.number} failed"))
        return Waiting(row, state, attempt, after_ms)

    def dies(self, batch: Batch, row: Row, reason: str = "failed") -> DeadLetter:
        """Return a row as a dead letter."""
        return DeadLetter(row, reason, "HR-E407", "It failed.", "", self.attempt(batch, row), b"", "Thing")

    async def drain(self) -> None:
        """Finish everything that can be taken, with one child for each event."""
        while batch := await self.take():
            await self.settle(batch, await self.made(batch))

    def die(self) -> None:
        """Stop without a word: nothing is renewed, settled or handed back from now on."""
        self._gone()
        self.lab.kind.die(self.journal, self.consumer)

    async def leave(self) -> None:
        """Stop in order."""
        self._gone()
        await self.consumer.release()
        await self.worker.leave()

    def _gone(self) -> None:
        if self in self.lab.members:
            self.lab.members.remove(self)


def head_of(
    stamp: int, chance: SeededChance, key: str | None, parents: tuple[bytes, ...], time_us: int
) -> Head:
    """Return an envelope."""
    return Head(stamp, parents, b"", chance.bytes(16), chance.bytes(8), 1, b"", time_us, "service:lab", key)


def offsets(rows: Iterable[Row]) -> list[int]:
    """Return the offsets of rows."""
    return [row[0] for row in rows]
