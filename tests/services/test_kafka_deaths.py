"""A worker dies at each step of a transaction and of a take-over: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.services.desks import PATIENCE_S, Bench, serving, until

from headrace.journal.kafka import letters
from headrace.ports import KAFKA_FAILPOINTS
from headrace.ports.look import Filter

EVENTS = 30
#: The first transaction says where the subscription begins, the second one is an outcome.
_LATER = ("settle.begin", "settle.records", "settle.offsets", "settle.committed", "handle.after")
DEATHS = [*((one, 1) for one in KAFKA_FAILPOINTS), *((one, 2) for one in _LATER)]
#: So many at a time: most of it is waiting for the sessions of the dead to run out.
ABREAST = 7


async def die(bench: Bench, folder: Path, point: str, hit: int) -> int:
    """Run a worker that dies; return how it ended."""
    command = ("-m", "tests.services.desks", bench.broker, str(folder), bench.name, point, str(hit))
    process = await asyncio.create_subprocess_exec(sys.executable, *command)
    if point == "decide.noted":

        async def dead() -> bool:
            return len(await bench.letters(Filter())) == 2

        await until(dead)
        async with bench.log() as log:
            await letters.redrive(log, await bench.letters(Filter()))
    if point == "release.committed":

        async def done() -> bool:
            return len(await bench.results()) == EVENTS - 2

        await until(done)
        process.terminate()
    try:
        return await asyncio.wait_for(process.wait(), PATIENCE_S)
    finally:
        with suppress(ProcessLookupError):  # it has died, as it should
            process.kill()


async def survive(broker: str, folder: Path, point: str, hit: int) -> None:
    """Let a worker die and another go on, on topics of their own; see what came of it."""
    await asyncio.to_thread(folder.mkdir)
    bench = Bench(broker, folder)
    async with bench.app() as app:
        await bench.publish(app, range(EVENTS))
    assert await die(bench, folder, point, hit) == -signal.SIGKILL, f"it has not died at {point}"
    async with serving(bench.app()):

        async def complete() -> bool:
            return len(await bench.results()) + len(await bench.letters(Filter())) >= EVENTS

        await until(complete)
        found, dead = await bench.results(), await bench.letters(Filter())
    handled = {*found, *(int((one.event.envelope.key or "c")[1:]) for one in dead)}
    assert handled == set(range(EVENTS)), point
    assert len(found) + len(dead) == EVENTS, point
    counted = await bench.positions()
    assert (counted["taken"], counted["done"], counted["dead"]) == (EVENTS, len(found), len(dead)), point
    assert await bench.violations() == [], point


@pytest.mark.parametrize("some", [DEATHS[at : at + ABREAST] for at in range(0, len(DEATHS), ABREAST)])
async def test_the_next_worker_goes_on(some: list[tuple[str, int]], broker: str, tmp_path: Path) -> None:
    """Each event is handled once, or is a dead letter once; the counts say the same."""
    runs = (survive(broker, tmp_path / f"{point}-{hit}", point, hit) for point, hit in some)
    await asyncio.gather(*runs)
