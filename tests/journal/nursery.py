"""A process that has imported everything and forks a child per job: crashes for the price of a fork.

Started by the fixture `nursery`.  Reads jobs as JSON, one list a line; runs the jobs of a list side by side;
answers with the exit code of each (negative: the signal that killed it).  A child opens its own journal.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.journal.journals import Kind, kind_at
from tests.journal.lab import Lab, SeededChance

from headrace import App, Event, Options, RetryPolicy
from headrace.app import World
from headrace.errors import ContentTypeRefused
from headrace.ports import NoFaults
from headrace.testing import CrashAt, ManualClock, drain
from headrace.world import SystemClock

EVENTS = 8


class Thing(Event, topic="things", key="key"):
    """Published by every run, under the same ids."""

    key: str
    n: int


class Made(Event, topic="made", key="key"):
    """What becomes of it."""

    key: str
    n: int


def crashing_app() -> App:
    """Return an app whose events end in every way there is: done, after a retry, as a dead letter."""
    app = App("crash", journal=":memory:")
    failed: set[int] = set()

    @app.handler(retry=RetryPolicy(backoff_first_ms=1, crash_attempts_max=100))
    async def make(thing: Thing) -> Made | None:
        if thing.n % 4 == 1 and thing.n not in failed:
            failed.add(thing.n)
            raise ValueError("the first time only")
        if thing.n % 4 == 2:
            raise ContentTypeRefused
        return Made(key=thing.key, n=thing.n)

    return app


def named(n: int) -> bytes:
    """Return the id of the n-th event."""
    return bytes([1, 2, 3, 4, 5, 6, 0x70, 0, 0x80, 0, 0, 0, 0, 0, 0, n])


async def run_once(kind: Kind, folder: Path, faults: Any, *, late_s: float) -> App:
    """Publish all events and handle what there is; ``late_s`` after the first run."""
    app, clock = crashing_app(), ManualClock()
    clock.advance(late_s)
    world = World(clock=clock, chance=SeededChance(int(late_s)), faults=faults)
    world.journal = kind.make(folder, world)
    app.place_in(world)
    await app.open()
    unit = [(Thing(key=f"k{n % 3}", n=n), Options(event_id=named(n))) for n in range(EVENTS)]
    await app.publish(unit[: EVENTS // 2])
    worker = app.worker()
    await worker.start(keep=False)
    await drain(worker.servers, clock)
    await app.publish(unit[EVENTS // 2 :])
    await drain(worker.servers, clock)
    await worker.finish()
    return app


async def crash(kind: Kind, folder: Path, point: str, hit: int) -> None:
    """Run the app until a failpoint kills this process."""
    await (await run_once(kind, folder, CrashAt(point, hit) if point else NoFaults(), late_s=0)).close()


async def publish(kind: Kind, folder: Path, seed: int, units: int) -> None:
    """Publish units of three events each, with keys of all publishers, as fast as it goes."""
    lab = Lab(kind, folder, chance=SeededChance(seed))
    lab.clock = SystemClock()  # type: ignore[assignment]  # waits for the other writers in real time
    for n in range(units):
        await lab.publish(f"k{n % 5}", None, f"k{(n + 1) % 5}")
    await lab.close()


JOBS = {"crash": crash, "publish": publish}


def child(job: str, kind: str, folder: str, **given: Any) -> int:
    """Run one job in a child of its own; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        asyncio.run(JOBS[job](kind_at(kind), Path(folder), **given))
        code = 0
    finally:
        sys.stderr.flush()
        os._exit(code)


class Nursery:
    """The parent's side: runs jobs, returns their exit codes."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.journal.nursery"],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, *jobs: dict[str, Any]) -> list[int]:
        """Run jobs side by side."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(jobs), file=self._process.stdin, flush=True)
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)
        assert self._process.stdout is not None
        self._process.stdout.close()


if __name__ == "__main__":
    for line in sys.stdin:
        pids = [child(**job) for job in json.loads(line)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        print(json.dumps(codes), flush=True)
