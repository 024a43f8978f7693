"""Journals on a real Kafka for the shared suite: the index in a SQLite file, or in a real PostgreSQL."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import psycopg
import pytest
from tests.journal.journals import Can
from tests.journal.lab import Member
from tests.services.journal.ledger import KafkaLedger
from tests.services.journal.records import Records

from headrace.journal.index.postgres import PostgresIndex
from headrace.journal.index.sqlite import SqliteIndex
from headrace.journal.kafka import letters as product
from headrace.journal.kafka.client import cluster_of
from headrace.journal.kafka.journal import KafkaJournal
from headrace.journal.kafka.letters import HANDLER_BITS
from headrace.journal.kafka.log import own_topics
from headrace.journal.kafka.versions import VERSIONS, Versions
from headrace.ports import (
    Clock,
    Consumer,
    Journal,
    Offered,
    Subscription,
    TopicInfo,
    VersionInfo,
    VersionOffer,
    World,
)
from headrace.ports.index import Index
from headrace.ports.look import Filter

#: What has not come about by then never will.
PATIENCE_S = 30.0
_LOOK_S = 0.003


class Sleeping:
    """The time of another clock; waits are for the broker, which knows real time only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        return getattr(self._clock, name)

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await asyncio.sleep(seconds)


class Apart(KafkaJournal):
    """A journal whose topics and handlers have the mark of one test: all tests share a broker."""

    def __init__(self, url: str, index: Index, mark: str, world: World) -> None:
        clock: Any = Sleeping(world.clock)
        super().__init__(cluster_of(url), index, clock=clock, chance=world.chance, faults=world.faults)
        self._mark = mark
        self._log.versions = Versions(self._log, self._own(VERSIONS))

    def _own(self, name: str) -> str:
        return name.removesuffix(self._mark) + self._mark

    async def topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        """Return a topic of the test."""
        return await super().topic(self._own(name), partitions)

    async def offer(self, offer: VersionOffer) -> Offered:
        """Make a version of a handler of the test known."""
        return await super().offer(offer._replace(handler=self._own(offer.handler)))

    async def activate(self, handler: str, version: str) -> VersionInfo:
        """Make a known version of a handler of the test the active one."""
        return await super().activate(self._own(handler), version)

    async def subscribe(
        self, handler: str, topic: str, *, latest: bool = False, was: str | None = None
    ) -> Subscription:
        """Return the subscription of a handler of the test."""
        former = None if was is None else self._own(was)
        return await super().subscribe(self._own(handler), topic, latest=latest, was=former)


class Kafka:
    """What a journal on Kafka is, whatever its index."""

    can = Can(
        refuses_conflicts=False,
        tells_copies=False,
        knows_parents=False,
        leases=False,
        hands_over_idle=False,
        failpoints=False,
        queues_publishes=False,
        replays=False,
    )

    name = ""
    lease_ms = 4_000
    sees_redriven = "_write_down"

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self.where = f"{self.name} {bootstrap}"
        self._records: dict[Path, Records] = {}

    def _mark(self, folder: Path) -> str:
        return f"-{hashlib.blake2b(str(folder).encode(), digest_size=4).hexdigest()}"

    def _index(self, folder: Path, world: World) -> Index:
        raise NotImplementedError

    def _rows(self, folder: Path, sql: str) -> list[Any]:
        raise NotImplementedError

    def make(self, folder: Path, world: World) -> Journal:
        """Return a journal on the topics of a test."""
        return Apart(f"kafka://{self._bootstrap}", self._index(folder, world), self._mark(folder), world)

    def ledger(self, folder: Path, journal: Journal) -> KafkaLedger:
        """Read as any consumer would."""
        assert isinstance(journal, KafkaJournal)
        records = self._records.setdefault(folder, Records(self._bootstrap, self._mark(folder)))
        return KafkaLedger(records, lambda sql: self._rows(folder, sql), journal._log.topic_names)

    def sub(self, subscription: Subscription) -> tuple[str, str]:
        """Return handler and topic."""
        return subscription.handler, subscription.topic.name

    async def arrived(self, member: Member) -> None:
        """Return when the group is at rest and all that is committed has come to its workers."""
        if member.consumer._share.poller is None:  # type: ignore[attr-defined] # has not joined, or has left
            return
        topic = member.subscription.topic
        ends = dict.fromkeys(range(topic.partitions), -1)
        ledger = member.lab.ledger
        assert isinstance(ledger, KafkaLedger)
        for one in ledger._records.of(topic.name):
            ends[one.partition] = one.offset
        commands = {one.partition: one.offset for one in ledger._records.of(_commands_of(member))}
        async with asyncio.timeout(PATIENCE_S):
            while not _at_rest(member.group, ends, commands):  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(_LOOK_S)
        for one in member.group if commands else ():
            await one.consumer._write_down()  # type: ignore[attr-defined] # as `take` does

    def die(self, journal: Journal, consumer: Consumer) -> None:
        """Leave the group without a word to the index: its session would run out in real time."""
        poller = consumer._share.poller  # type: ignore[attr-defined]
        poller._loop = asyncio.new_event_loop()
        poller._loop.close()  # nobody hears of it
        poller._stopped.set()
        poller._thread.join()

    def forget(self, folder: Path) -> None:
        """Delete the topics of a test."""
        records = self._records.pop(folder, None)
        if records is not None:
            records.forget()

    async def redrive(self, journal: Journal, letters: Sequence[int]) -> list[str]:
        """Ask for it; it is done by the owner of the partition."""
        assert isinstance(journal, KafkaJournal)
        log = journal._log
        known = {one.id >> HANDLER_BITS: one for one in await product.letters(log, Filter(decided=True))}
        found: list[str] = []
        for number in letters:
            letter = known.get(number)
            told = await product.redrive(log, [letter] if letter else [])
            found.append(told[0].problem if told else "there is no such dead letter")
        return found

    def bound_open(self, patch: pytest.MonkeyPatch, offsets_max: int) -> None:
        """Set the constant wherever it is looked up."""
        for name, module in sys.modules.items():
            if name.startswith("headrace.journal.") and hasattr(module, "OPEN_MAX"):
                patch.setattr(module, "OPEN_MAX", offsets_max)


def _commands_of(member: Member) -> str:
    _, commands = own_topics(member.subscription.handler)
    return commands


def _at_rest(group: Sequence[Member], ends: dict[int, int], commands: dict[int, int]) -> bool:
    """Return whether each partition has one owner, who is ready and has all of it up to its end."""
    shares = [member.consumer._share for member in group]  # type: ignore[attr-defined]
    if any(share._fault is not None for share in shares):
        return True  # the next call says so
    parts = [part for share in shares for part in share.parts.values()]
    if sorted(part.partition for part in parts) != sorted(ends):
        return False
    if max(len(share.parts) for share in shares) > -(-len(ends) // len(shares)):
        return False  # somebody has not come in yet
    return all(
        part.ready
        and _reached(part) >= ends[part.partition]
        and max([part.commands - 1, *(one.offset() for one in part.asked)])
        >= commands.get(part.partition, -1)
        for part in parts
    )


def _reached(part: Any) -> int:
    number = part.waiting.records[-1].row[0] if part.waiting.records else part.held.high
    return number >> 10 if number >= 0 else -1


class KafkaSqlite(Kafka):
    """Kafka with its index in a SQLite file: workers of one host."""

    name = "kafka-sqlite"

    def _index(self, folder: Path, world: World) -> Index:
        where = str(folder / "index.db")
        return SqliteIndex(where, clock=world.clock, chance=world.chance, faults=world.faults)

    def _rows(self, folder: Path, sql: str) -> list[Any]:
        names = {name: name for name in _TABLES}
        db = apsw.Connection(str(folder / "index.db"), flags=apsw.SQLITE_OPEN_READONLY)
        return db.execute(sql.format(**names)).fetchall()


class KafkaPostgres(Kafka):
    """Kafka with its index in PostgreSQL, in a schema of the test."""

    name = "kafka-postgres"

    def __init__(self, bootstrap: str, postgres: str) -> None:
        super().__init__(bootstrap)
        self._url = postgres
        self.where += f" {postgres}"

    def _schema(self, folder: Path) -> str:
        return f"test_{self._mark(folder)[1:]}"

    def _index(self, folder: Path, world: World) -> Index:
        schema = self._schema(folder)
        with psycopg.connect(self._url, autocommit=True) as db:
            db.execute(f"CREATE SCHEMA IF NOT EXISTS {schema}".encode())
        url = f"{self._url}?options=-csearch_path%3D{schema}"
        return PostgresIndex(url, clock=world.clock, faults=world.faults)

    def _rows(self, folder: Path, sql: str) -> list[Any]:
        names = {name: f"{self._schema(folder)}.headrace_{name}" for name in _TABLES}
        with psycopg.connect(self._url, autocommit=True) as db:
            return db.execute(sql.format(**names).encode()).fetchall()


_TABLES = ("place", "first", "claim", "tried", "version", "model", "handler")
KINDS: tuple[type[Kafka], ...] = (KafkaSqlite, KafkaPostgres)


def at(where: str) -> Kafka:
    """Return the kind that another process has."""
    name, *services = where.split()
    (kind,) = (one for one in KINDS if one.name == name)
    return kind(*services)
