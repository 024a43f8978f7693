"""A worker of a replay ends with whatever ends its look at how far it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from headrace import App, Event
from headrace.ports.replay import Order, Replay, ReplayState
from headrace.runtime.replay import ReplayWorker
from headrace.settings import Settings


class Sent(Event, topic="sent"):
    """What is handled."""

    number: int


def app_of(folder: Path, version: str, handled: asyncio.Event | None = None) -> App:
    """Return an app of one handler, which tells that it was called."""
    app = App("shop", settings=Settings(journal=str(folder / "a.db")), events=[Sent])

    async def handle(event: Sent) -> None:
        if handled is not None:
            handled.set()

    app.handler(version=version)(handle)
    return app


def test_a_fault_of_who_looks_is_told(tmp_path: Path) -> None:
    """Nobody else would notice that all is done: it would go on for ever, and say nothing."""
    asyncio.run(fault_is_told(tmp_path))


async def fault_is_told(folder: Path) -> None:
    """Replay one event, with a fault in the telling."""
    stop = asyncio.Event()
    async with app_of(folder, "1", stop) as app:
        await app.publish(Sent(number=1))
        await app.run(stop)

    def told(_: ReplayState) -> None:
        raise ZeroDivisionError

    async with app_of(folder, "2") as app:
        order = Order(handler="shop.handle", topic="sent")
        one = ReplayWorker(app.worker(only=["shop.handle"]), order)
        assert isinstance(await one.begin(), Replay)
        stop = asyncio.Event()
        running = asyncio.create_task(one.until_done(stop, told))
        await asyncio.wait({running}, timeout=10)
        ended = running.done()
        stop.set()
        with pytest.raises(ZeroDivisionError):
            await running
        assert ended
