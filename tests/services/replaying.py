"""Replays on a broker: begun in this process or in one of their own, judged by a plain committed reader."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from tests.services.desks import Bench
from tests.services.reading import Found, committed

from headrace import App
from headrace.ports.replay import Order, ReplayPlan, ReplayState
from headrace.runtime.replay import ReplayWorker
from headrace.testing import CrashAt

NEW = "2"
#: The side of all replays here but where another is named.
SIDE = "trial"


def order(bench: Bench, **wanted: Any) -> Order:
    """Return an order about the bench's handler."""
    return Order(handler=bench.handler, topic=f"sent-{bench.name}", **({"side": SIDE} | wanted))


def worker(bench: Bench, app: App, **wanted: Any) -> ReplayWorker:
    """Return a worker of a replay."""
    return ReplayWorker(app.worker(only=[bench.handler]), order(bench, **wanted))


async def planned(bench: Bench, version: str = NEW, **wanted: Any) -> ReplayPlan:
    """Return what a replay would be allotted."""
    async with bench.app(version=version) as app:
        one = worker(bench, app, **wanted)
        try:
            return await one.plan()
        finally:
            await one.finish()


async def replayed(
    bench: Bench, version: str = NEW, *, faults: CrashAt | None = None, **wanted: Any
) -> ReplayState | ReplayPlan:
    """Run a replay to its end; a plan comes back where there is nothing to do."""
    async with bench.app(faults, version) as app:
        one = worker(bench, app, **wanted)
        begun = await one.begin()
        if isinstance(begun, ReplayPlan):
            await one.finish()
            return begun
        await one.until_done(asyncio.Event(), lambda _: None)
        return await one.state()


async def told(bench: Bench, topic: str = "") -> list[Found]:
    """Return the results of the side, or of a topic, as anybody sees them."""
    name = topic or f"read-{bench.name}.side.{SIDE}"
    try:
        return await asyncio.to_thread(committed, bench.broker, name)
    except KeyError:
        return []


def versions(found: list[Found]) -> Counter[tuple[int, str]]:
    """Count results by the number of the event and the version that has handled it."""
    return Counter((one.body()["number"], one.headers["ce_handler"].decode().split("@")[1]) for one in found)


async def side(bench: Bench, topic: str = "") -> list[int]:
    """Return the numbers of the results of the side, in order; each is that of one event."""
    return sorted(one.body()["number"] for one in await told(bench, topic))


async def _alone(broker: str, folder: str, name: str, point: str, hit: str) -> None:
    """Run a replay in this process until it is complete, or dies at a failpoint."""
    bench = Bench(broker, Path(folder), name=name)
    print(await replayed(bench, faults=CrashAt(point, int(hit)) if point else None))


if __name__ == "__main__":
    asyncio.run(_alone(*sys.argv[1:]))
