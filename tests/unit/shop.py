"""A small journal with something of everything: done, dead, waiting, chains; made once, then copied."""

from __future__ import annotations

import asyncio
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import apsw

from headrace import App, Event, RetryPolicy
from headrace.journal.progress import progress
from headrace.journal.reader import Reader
from headrace.world import SystemClock

#: Orders handled, those that die (every fifth), and those that nobody has taken.
HANDLED, DEAD, WAITING = 20, 4, 3


class ShopOrder(Event, topic="orders", key="customer", type="Order"):
    """What the first handler takes."""

    customer: str
    number: int


class ShopPacked(Event, topic="packed", key="customer", type="Packed"):
    """What follows from it."""

    customer: str
    number: int


def made_app(path: str) -> App:
    """Return an app whose journal is at a path."""
    app = App("shop", journal=path)

    @app.handler(retry=RetryPolicy(attempts_max=2, backoff_first_ms=1, backoff_max_ms=1))
    async def pack(order: ShopOrder) -> ShopPacked:
        if order.number % 5 == 0:
            raise ValueError(f"no box for \x1b[31m{order.number}")
        return ShopPacked(customer=order.customer, number=order.number)

    @app.handler
    async def send(packed: ShopPacked) -> None:
        pass

    return app


def order(number: int) -> ShopOrder:
    """Return an order of one of four customers."""
    return ShopOrder(customer=f"customer-{number % 4}", number=number)


async def settle(app: App, path: str) -> None:
    """Run the app until nothing waits."""
    stop = asyncio.Event()
    serving = asyncio.create_task(app.run(stop))
    reader = Reader(path)
    try:
        while not _settled(reader):  # noqa: ASYNC110 - the journal is the judge
            await asyncio.sleep(0.005)
    finally:
        reader.close()
        stop.set()
        await serving


def _settled(reader: Reader) -> bool:
    found = progress(reader, SystemClock())
    return len(found) == 2 and not any(one.waiting or one.running for one in found)


async def _make(path: str) -> None:
    app = made_app(path)
    async with app:
        await app.publish([order(number) for number in range(HANDLED)])
        await settle(app, path)
        await app.publish([order(101 + number) for number in range(WAITING)])


@cache
def _template() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/shop.db"
        asyncio.run(_make(path))
        return Path(path).read_bytes()  # nobody has it open: the last to close has moved the WAL into it


def made_journal(folder: Path) -> str:
    """Return the path of a fresh copy."""
    path = folder / "shop.db"
    path.write_bytes(_template())
    return str(path)


def change(path: str, sql: str, *bindings: Any) -> list[Any]:
    """Change a journal behind Headrace's back."""
    db = apsw.Connection(path)
    try:
        return db.execute(sql, bindings).fetchall()
    finally:
        db.close()
