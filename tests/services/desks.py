"""Journals and apps on a broker that tests share: each test has topics, handlers and an index of its own."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from uuid import uuid4

import apsw
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.services.reading import committed

from headrace import App, Event, RetryPolicy, errors
from headrace.app import World
from headrace.codec.ledger import Position
from headrace.journal.index.postgres import PostgresIndex
from headrace.journal.index.sqlite import SqliteIndex
from headrace.journal.kafka import letters
from headrace.journal.kafka.client import cluster_of
from headrace.journal.kafka.journal import KafkaJournal
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.rules import violations
from headrace.journal.kafka.survey import Survey
from headrace.ports import Faults, NoFaults
from headrace.ports.index import Index
from headrace.ports.look import Filter, Letter, Violation
from headrace.settings import Settings
from headrace.testing import CrashAt
from headrace.world import SystemChance, SystemClock

PATIENCE_S = 60.0
ALL = Filter(decided=True)


@asynccontextmanager
async def opened(url: str, index: Path | str, faults: Faults | None = None) -> AsyncGenerator[KafkaJournal]:
    """Open a journal with its index in a file, or in a database."""
    clock, chance, told = SystemClock(), SystemChance(), faults or NoFaults()
    beside: Index
    if str(index).startswith("postgresql:"):
        beside = PostgresIndex(str(index), clock=clock, faults=told)
    else:
        beside = SqliteIndex(str(index), clock=clock, chance=chance, faults=told)
    journal = KafkaJournal(cluster_of(url), beside, clock=clock, chance=chance, faults=told)
    await journal.open()
    try:
        yield journal
    finally:
        await journal.close()


@asynccontextmanager
async def serving(app: App) -> AsyncGenerator[App]:
    """Open an app and have it work meanwhile; it stops in order."""
    stop = asyncio.Event()
    async with app:
        task = asyncio.create_task(app.run(stop))
        try:
            yield app
        finally:
            stop.set()
            await task


async def until(holds: Callable[[], Awaitable[object]]) -> None:
    """Wait until something holds; on a busy machine a look may come too early, or time out."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(errors.JournalUnavailable):
                if await holds():
                    return
            await asyncio.sleep(0.1)


def wipe(index: Path) -> None:
    """Empty an index, as a database that was made anew is."""
    db = apsw.Connection(str(index))
    db.set_busy_timeout(5_000)
    tables = db.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'meta'").fetchall()
    for (name,) in tables:
        db.execute(f"DELETE FROM {name}")
    db.close()


class Bench:
    """An app of one step on topics of its own, that fails for the numbers it is told to fail for."""

    def __init__(
        self, broker: str, folder: Path, *, name: str = "", attempts_max: int = 1, backoff_ms: int = 1
    ) -> None:
        self.broker = broker
        self.index: Path | str = folder / "index.db"
        self.url = f"kafka://{broker}"
        self.name = name or f"n{uuid4().hex[:8]}"
        self.broken: set[int] = set()
        #: Handlers wait while it is closed.
        self.gate = asyncio.Event()
        self.gate.set()
        self._policy = RetryPolicy(
            attempts_max=attempts_max, backoff_first_ms=backoff_ms, backoff_max_ms=backoff_ms
        )

        class Sent(Event, topic=f"sent-{self.name}", key="who"):
            who: str
            number: int

        class Read(Event, topic=f"read-{self.name}", key="who"):
            who: str
            number: int

        self.sent, self.read = Sent, Read
        self.handler = f"{self.name}.handle"

    def app(self, faults: Faults | None = None, version: str = "1") -> App:
        """Return a worker's app."""
        settings = Settings(journal=self.url, index=str(self.index), lease_ms=6_000)
        app = App(self.name, settings=settings, events=[self.sent, self.read])
        sent, read, broken, gate = self.sent, self.read, self.broken, self.gate

        async def handle(event: sent) -> read:  # type: ignore[valid-type]
            await gate.wait()
            if event.number in broken:  # type: ignore[attr-defined]
                raise ValueError(f"not {event.number}")  # type: ignore[attr-defined]
            return read(who=event.who, number=event.number)  # type: ignore[attr-defined]

        handle.__annotations__ = {"event": sent, "return": read}
        app.handler(retry=self._policy, version=version)(handle)
        app.place_in(World(faults=faults))
        return app

    async def publish(self, app: App, numbers: range, who: str = "") -> None:
        """Publish events, each under a key of its own unless one is given."""
        for number in numbers:
            await app.publish(self.sent(who=who or f"c{number}", number=number))

    async def results(self) -> list[int]:
        """Return the numbers of what followed, as a plain reader sees them."""
        try:
            found = await asyncio.to_thread(committed, self.broker, f"read-{self.name}")
        except KeyError:
            return []
        return sorted(one.body()["number"] for one in found)

    async def handled(self, count: int) -> None:
        """Wait for results; each number has one."""

        async def all_there() -> bool:
            return len(set(await self.results())) >= count

        await until(all_there)
        assert await self.results() == list(range(count))

    @asynccontextmanager
    async def log(self) -> AsyncGenerator[Log]:
        """Look into the journal."""
        async with opened(self.url, self.index) as journal:
            yield journal.log

    async def letters(self, wanted: Filter = ALL) -> list[Letter]:
        """Return the dead letters."""
        async with self.log() as log:
            with suppress(errors.HandlerUnknown):  # no worker has served it yet
                return await letters.letters(log, wanted._replace(handler=self.handler))
            return []

    async def positions(self) -> Counter[str]:
        """Return the sums of what the ledger says."""
        found: Counter[str] = Counter()
        for position in await self._positions():
            found += Counter({name: getattr(position, name) for name in ("taken", "done", "dead", "expired")})
            found["open"] += len(position.open)
        return +found

    async def _positions(self) -> list[Position]:
        async with self.log() as log:
            survey = Survey(log)
            try:
                ledgers = await survey.ledgers(await survey.catalogue())
            finally:
                await survey.close()
            return [at for one in ledgers if one.handler == self.handler for at in one.positions.values()]

    async def put_away(self) -> None:
        """Drop all letters, and wait until their owner has done it, or has said why not."""
        async with self.log() as log:
            found = await letters.letters(log, Filter(handler=self.handler))
            before = sum(one.commands for one in await self._positions())
            assert {one.problem for one in await letters.drop(log, found)} == {""}
        async with serving(self.app()):

            async def carried_out() -> bool:
                return sum(one.commands for one in await self._positions()) == before + len(found)

            await until(carried_out)
        assert [(one.fate, one.refused) for one in await self.letters()] == [("dropped", "")] * len(found)

    async def violations(self) -> list[Violation]:
        """Return the rules of the journal that this app's subscription breaks."""
        async with self.log() as log:
            survey = Survey(log)
            try:
                found = await violations(survey)
            finally:
                await survey.close()
        return [one for one in found if one.where.startswith(self.handler)]

    def eat(self, topic: str, partition: int | None = None, low: int = -1) -> None:
        """Delete the records of a topic (or of one partition below an offset), as retention does."""
        admin = AdminClient({"bootstrap.servers": self.broker})
        count = len(admin.list_topics(topic, timeout=10).topics[topic].partitions)
        partitions = range(count) if partition is None else [partition]
        for answer in admin.delete_records([TopicPartition(topic, at, low) for at in partitions]).values():
            answer.result(10)


async def _doomed(broker: str, folder: str, name: str, point: str, hit: str) -> None:
    """Work until the failpoint; all events fail once in three, so that there are retries and dead letters."""
    bench = Bench(broker, Path(folder), name=name)
    bench.broken |= {1, 2}
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with bench.app(CrashAt(point, int(hit))) as app:
        await app.run(stop)


if __name__ == "__main__":
    asyncio.run(_doomed(*sys.argv[1:]))
