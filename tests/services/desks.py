"""Journals and apps on a broker that tests share: each test has topics, handlers and an index of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import apsw

from headrace import App
from headrace.journal.index.sqlite import SqliteIndex
from headrace.journal.kafka.client import cluster_of
from headrace.journal.kafka.journal import KafkaJournal
from headrace.ports import Faults, NoFaults
from headrace.world import SystemChance, SystemClock

PATIENCE_S = 60.0


@asynccontextmanager
async def opened(url: str, index: Path, faults: Faults | None = None) -> AsyncGenerator[KafkaJournal]:
    """Open a journal with its index in a file."""
    clock, chance, told = SystemClock(), SystemChance(), faults or NoFaults()
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
    """Wait until something holds."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
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
