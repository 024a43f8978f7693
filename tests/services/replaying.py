"""Replays on a broker: begun in this process or in one of their own, judged by a plain committed reader."""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.services.desks import Bench, serving, until
from tests.services.reading import Found, committed

from headrace import App
from headrace.journal.kafka import letters
from headrace.ports.replay import Order, ReplayPlan, ReplayState
from headrace.runtime.replay import ReplayWorker
from headrace.testing import CrashAt

NEW = "2"
#: The side of all replays here but where another is named.
SIDE = "trial"


async def lived(bench: Bench, numbers: range, version: str = "1") -> None:
    """Publish events and have a version handle them."""
    async with serving(bench.app(version=version)) as app:
        await bench.publish(app, numbers)
        await closed(bench, numbers.stop)


async def closed(bench: Bench, count: int) -> None:
    """Wait until so many events are closed live, as the ledger says."""

    async def enough() -> bool:
        found = await bench.positions()
        return found["done"] + found["dead"] >= count and not found["open"]

    await until(enough)


async def redriven(bench: Bench, count: int, version: str) -> None:
    """Redrive dead letters; a worker of a version carries it out."""
    async with bench.log() as log:
        found = [one for one in await bench.letters() if one.fate is None]
        assert len(found) == count
        assert [one.problem for one in await letters.redrive(log, found)] == [""] * count
    async with serving(bench.app(version=version)):

        async def done() -> bool:
            told = await bench.positions()
            return all(one.fate for one in await bench.letters()) and not told["open"] and not told["dead"]

        await until(done)


def order(bench: Bench, **wanted: Any) -> Order:
    """Return an order about the bench's handler."""
    given: dict[str, Any] = {"side": SIDE, **wanted}
    return Order(handler=bench.handler, topic=f"sent-{bench.name}", **given)


def worker(bench: Bench, app: App, *, rate: float | None = None, **wanted: Any) -> ReplayWorker:
    """Return a worker of a replay."""
    return ReplayWorker(app.worker(only=[bench.handler]), order(bench, **wanted), rate=rate)


async def planned(bench: Bench, version: str = NEW, **wanted: Any) -> ReplayPlan:
    """Return what a replay would be allotted."""
    async with bench.app(version=version) as app:
        one = worker(bench, app, **wanted)
        try:
            return await one.plan()
        finally:
            await one.finish()


async def replayed(
    bench: Bench, wanted: dict[str, Any] | None = None, *, version: str = NEW, faults: CrashAt | None = None
) -> ReplayState | ReplayPlan:
    """Run a replay to its end; a plan comes back where there is nothing to do."""
    async with bench.app(faults, version) as app:
        one = worker(bench, app, **(wanted or {}))
        begun = await one.begin()
        if isinstance(begun, ReplayPlan):
            await one.finish()
            return begun
        await one.until_done(asyncio.Event(), lambda _: None)
        return await one.state()


async def ran(bench: Bench, wanted: dict[str, Any] | None = None, *, version: str = NEW) -> ReplayState:
    """Run a replay that has something to do to its end."""
    state = await replayed(bench, wanted, version=version)
    assert isinstance(state, ReplayState)
    assert state.complete
    assert state.allotted == state.done + state.dead + state.expired
    return state


async def told(bench: Bench, topic: str = "") -> list[Found]:
    """Return the results of the side, or of a topic, as anybody sees them."""
    try:
        return await asyncio.to_thread(committed, bench.broker, topic or f"read-{bench.name}.side.{SIDE}")
    except KeyError:
        return []


async def side(bench: Bench, topic: str = "") -> list[int]:
    """Return the numbers of the results of the side, in order; each is that of one event."""
    return sorted(one.body()["number"] for one in await told(bench, topic))


async def by_version(bench: Bench) -> Counter[tuple[int, str]]:
    """Count all results, live and of the side, by the number of the event and the version."""
    found = [*await told(bench), *await told(bench, f"read-{bench.name}")]
    return Counter((one.body()["number"], one.headers["ce_handler"].decode().split("@")[1]) for one in found)


class Apart:
    """A replay in a process of its own, to be killed."""

    def __init__(self, bench: Bench, point: str = "", hit: int = 1, rate: float = 0.0) -> None:
        folder, how = str(Path(bench.index).parent), (point, str(hit), str(rate))
        self._command = ("-m", "tests.services.replaying", bench.broker, folder, bench.name, *how)
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> asyncio.subprocess.Process:
        """Start it."""
        self._process = await asyncio.create_subprocess_exec(sys.executable, *self._command)
        return self._process

    async def kill(self) -> int:
        """Kill it, if it has not ended; return how many kills that were."""
        process = self._process or await self.start()
        alive = process.returncode is None
        if alive:
            process.kill()
        await process.wait()
        return int(alive)

    async def ended(self) -> int:
        """Wait for its end; return its code."""
        process = self._process or await self.start()
        try:
            return await asyncio.wait_for(process.wait(), 120)
        finally:
            with suppress(ProcessLookupError):
                process.kill()


async def _alone(broker: str, folder: str, name: str, point: str, hit: str, rate: str) -> None:
    """Run a replay in this process until it is complete, or dies at a failpoint."""
    bench = Bench(broker, Path(folder), name=name)
    wanted = {"rate": float(rate)} if float(rate) else {}
    await replayed(bench, wanted, faults=CrashAt(point, int(hit)) if point else None)


if __name__ == "__main__":
    asyncio.run(_alone(*sys.argv[1:]))
