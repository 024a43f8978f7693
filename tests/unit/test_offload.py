"""Plain handlers in processes: results, errors, deaths, and a deadline that ends them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.unit import offload_calls as calls

from headrace import errors
from headrace.runtime.offload import ProcessPool


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let children import what stands beside this file, as they import an app."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def run(main: Callable[[ProcessPool], Awaitable[None]]) -> None:
    """Run a test with a pool of one process."""

    async def whole() -> None:
        pool = ProcessPool("unit.handler", 1)
        try:
            await main(pool)
        finally:
            pool.shutdown()

    asyncio.run(whole())


async def gone(pid: int) -> bool:
    """Return whether a process ends soon."""
    for _ in range(2_000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.01)
    return False


def test_a_call_runs_elsewhere_and_comes_back_whole() -> None:
    """Results and coded errors cross the border, the error with its context and words."""

    async def main(pool: ProcessPool) -> None:
        number, pid = await pool.calling(calls.double)(21)
        assert number == 42
        assert pid != os.getpid()
        with pytest.raises(errors.InputRefused, match="There it is") as refused:
            await pool.calling(calls.fail)(7)
        assert refused.value.context == {"problem": "7"}
        with pytest.raises(RuntimeError, match="StopIteration"):  # which no future can carry
            await asyncio.wait_for(pool.calling(calls.stop)(1), 20)
        assert await pool.calling(calls.double)(1) == (2, pid)

    run(main)


def test_a_death_is_a_crash_and_the_next_call_is_served(caplog: pytest.LogCaptureFixture) -> None:
    """Every call in hand is told so, the log says whose process it was, and a new one takes over."""

    async def main(pool: ProcessPool) -> None:
        found = await asyncio.gather(*(pool.calling(calls.die)(3) for _ in range(2)), return_exceptions=True)
        assert [type(one) for one in found] == [errors.PoolCrashed] * 2
        assert "unit.handler" in str(found[0])
        assert (await pool.calling(calls.double)(4))[0] == 8

    run(main)
    assert "a process of handler unit.handler died" in caplog.text


def test_a_deadline_ends_the_process(tmp_path: Path) -> None:
    """What hangs in a child cannot be told to stop: it is killed, and the next call is served."""

    async def main(pool: ProcessPool) -> None:
        note = tmp_path / "pid"
        task = asyncio.ensure_future(pool.calling(calls.hang)(str(note)))
        while not (note.exists() and note.read_text().endswith("\n")):
            assert not task.done(), task
            await asyncio.sleep(0.005)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await gone(int(note.read_text()))
        assert (await pool.calling(calls.double)(5))[0] == 10

    run(main)


def test_nothing_starts_before_it_is_needed() -> None:
    """A pool without calls has no processes, and its end is harmless, twice."""

    async def main(pool: ProcessPool) -> None:
        assert pool._pool is None
        pool.shutdown()
        pool.shutdown(wait=True)

    run(main)
