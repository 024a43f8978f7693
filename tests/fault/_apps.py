"""The apps that the worker processes of the fault tests run, and the roles that they play.

A process says what it did in one JSON line on standard output.  Handlers note each call in a file that
outlives them, one line per call: `calls_of` reads it.
"""

# ruff: noqa: ASYNC110, ASYNC240, ASYNC251 - a test waits for other processes, and looks at their files

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from headrace import App, Context, Event, Model, RetryPolicy
from headrace.app import World
from headrace.errors import JournalUnavailable
from headrace.ports import Faults, NoFaults
from headrace.settings import Settings
from headrace.testing import CrashAt
from headrace.world import SystemClock

LEASE_MS = 500
#: A worker or publisher that is not done by then hangs; it is ended, so that no test leaves one behind.
LIFE_S_MAX = 60


class Job(Event, topic="jobs", key="key", type="fault.job"):
    """Work that takes a while, or goes wrong."""

    name: str
    key: str | None = None
    ms: int = 0
    #: What the handler does: a name in `DEEDS`.
    deed: str = "rest"


class JobDone(Event, topic="jobs-done", key="key", type="fault.job.done"):
    """What comes of it."""

    name: str
    key: str | None = None
    process: int


class Number(Event, topic="numbers", type="fault.number"):
    """A number for a model."""

    x: float


class NumberSeen(Event, topic="numbers-seen", type="fault.number.seen"):
    """What the model makes of it, and who asked."""

    x: float
    y: float
    process: int


# --- calls --------------------------------------------------------------------------------------


class Call(NamedTuple):
    """One line of a handler's diary."""

    what: str
    name: str
    process: int
    at_s: float


class Calls:
    """The diary: appended to by several processes at once, one short write per line."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._clock = SystemClock()

    def note(self, what: str, name: str) -> None:
        """Add a line."""
        line = json.dumps([what, name, os.getpid(), self._clock.boot_ns() / 1e9])
        os.write(self._fd, line.encode() + b"\n")


def calls_of(path: Path, what: str | None = None) -> list[Call]:
    """Return the lines of a diary (of one kind)."""
    if not path.exists():
        return []
    lines = [Call(*json.loads(line)) for line in path.read_text("utf-8").splitlines()]
    return [one for one in lines if what is None or one.what == what]


# --- apps ---------------------------------------------------------------------------------------


async def rest(job: Job) -> None:
    """Wait as a handler should; where ``HASTY`` is set the cause is mended."""
    await asyncio.sleep(0 if "HASTY" in os.environ else job.ms / 1000)


async def block(job: Job) -> None:
    """Wait as no asynchronous handler should; where ``HASTY`` is set the cause is mended."""
    time.sleep(0 if "HASTY" in os.environ else job.ms / 1000)


async def hang(_job: Job) -> None:
    """Never return; where ``HASTY`` is set the cause is mended."""
    if "HASTY" not in os.environ:
        await asyncio.get_running_loop().create_future()


async def leave(_job: Job) -> None:
    """Take the process along, as the out-of-memory killer does: nothing is flushed or closed."""
    os._exit(9)


async def fault(_job: Job) -> None:
    """Die of a signal, as native code does."""
    os.kill(os.getpid(), signal.SIGSEGV)


async def interrupt(_job: Job) -> None:
    """Raise what Ctrl-C raises."""
    if "HASTY" not in os.environ:
        raise KeyboardInterrupt


DEEDS: dict[str, Callable[[Job], Awaitable[None]]] = {
    "rest": rest, "block": block, "hang": hang, "leave": leave, "fault": fault, "interrupt": interrupt,
}  # fmt: skip


def settings(told: dict[str, Any]) -> Settings:
    """Return the settings of a process."""
    return Settings(
        journal=told["journal"],
        durability=told.get("durability", "full"),
        lease_ms=told.get("lease_ms", LEASE_MS),
        stop_grace_ms=told.get("stop_grace_ms", 2_000),
    )


def options(told: dict[str, Any]) -> dict[str, Any]:
    """Return what the handler is declared with."""
    retry = RetryPolicy(
        attempts_max=told.get("attempts_max", 5),
        backoff_first_ms=told.get("backoff_first_ms", 10.0),
        crash_attempts_max=told.get("crash_attempts_max", 3),
    )
    return {
        "retry": retry,
        "concurrency": told.get("concurrency"),
        "deadline_ms": told.get("deadline_ms", 60_000),
    }


def jobs(told: dict[str, Any]) -> App:
    """Return an app whose one handler does as each job says."""
    app, calls = App("fault", settings=settings(told)), Calls(told["calls"])

    @app.handler(**options(told))
    async def work(job: Job, ctx: Context) -> JobDone:
        calls.note("begin", job.name)
        calls.note(str(ctx.idempotency_key), job.name)
        await DEEDS[job.deed](job)
        calls.note("end", job.name)
        return JobDone(name=job.name, key=job.key, process=os.getpid())

    return app


def plain_jobs(told: dict[str, Any]) -> App:
    """Return the same app with a plain function, which runs in a thread."""
    app, calls = App("fault", settings=settings(told)), Calls(told["calls"])

    @app.handler(**options(told))
    def work(job: Job) -> JobDone:
        calls.note("begin", job.name)
        time.sleep(job.ms / 1000)
        calls.note("end", job.name)
        return JobDone(name=job.name, key=job.key, process=os.getpid())

    return app


def numbers(told: dict[str, Any]) -> App:
    """Return an app that asks an ONNX model; declaring it loads nothing."""
    app, calls = App("fault", settings=settings(told)), Calls(told["calls"])

    @app.handler(model=Model.onnx(told["model"], name="plus"), **options(told))
    async def add(number: Number, model: Any) -> NumberSeen:
        calls.note("begin", str(number.x))
        return NumberSeen(x=number.x, y=float(await model(number.x)), process=os.getpid())

    return app


APPS: dict[str, Callable[[dict[str, Any]], App]] = {
    "jobs": jobs,
    "plain_jobs": plain_jobs,
    "numbers": numbers,
}


# --- faults -------------------------------------------------------------------------------------


class Outage:
    """The store does not answer for a while, counted from the first take-over of a partition."""

    def __init__(self, from_s: float, upto_s: float) -> None:
        self._from_s, self._upto_s = from_s, upto_s
        self._clock = SystemClock()
        self._began_ns = 0

    def at(self, point: str) -> None:
        """Fail inside the window."""
        if point == "balance.taken" and not self._began_ns:
            self._began_ns = self._clock.boot_ns()
        now_s = (self._clock.boot_ns() - self._began_ns) / 1e9
        # Handlers are not the store, and what is committed is committed.
        of_store = not point.startswith("handle.") and not point.endswith(".committed")
        if self._began_ns and of_store and self._from_s <= now_s < self._upto_s:
            raise JournalUnavailable("The store blinks.", path="(made up)")


class SlowOrUndone:
    """A writer that dawdles inside its transaction, and now and then undoes it."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def at(self, point: str) -> None:
        """Wait with the number given out, not committed; or fail."""
        if point == "publish.inserted":
            time.sleep(self._chance.random() / 500)
            if self._chance.random() < 0.1:
                raise JournalUnavailable("Undone on purpose.", path="(made up)")


def faults(told: dict[str, Any]) -> Faults:
    """Return the failpoints of a process."""
    if "crash_at" in told:
        return CrashAt(told["crash_at"], told.get("hit", 1))
    return Outage(*told["outage_s"]) if "outage_s" in told else NoFaults()


# --- roles --------------------------------------------------------------------------------------


async def serve(app: App, told: dict[str, Any]) -> int:
    """Handle events until SIGTERM; return how many were handed back."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    app.place_in(World(faults=faults(told)))
    async with app:
        return await app.run(stop)


def worker(told: dict[str, Any]) -> None:
    """Serve one app."""
    try:
        say(handed_back=asyncio.run(serve(APPS[told["app"]](told), told)))
    except KeyboardInterrupt:
        say(interrupted=True)
        raise SystemExit(130) from None


def pair(told: dict[str, Any]) -> None:
    """Make the app, then serve it in two processes of the start method that is asked for."""
    app = APPS[told["app"]](told)
    say(loaded="onnxruntime" in sys.modules)
    context = get_context(told["start"])
    target, args = (_forked, (app, told)) if told["start"] == "fork" else (worker, (told,))
    children = [context.Process(target=target, args=args) for _ in range(2)]
    signal.signal(signal.SIGTERM, lambda *_: [child.terminate() for child in children if child.pid])
    for child in children:
        child.start()
    for child in children:
        child.join()
    raise SystemExit(max(abs(child.exitcode or 0) for child in children))


def _forked(app: App, told: dict[str, Any]) -> None:
    """In a forked child: the app is the parent's, made before the fork."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    asyncio.run(serve(app, told))


async def _publish(told: dict[str, Any]) -> None:
    app = App("fault", settings=settings(told))
    app.place_in(World(faults=SlowOrUndone(told["seed"]) if "seed" in told else NoFaults()))
    names = [f"{told['prefix']}-{n}" for n in range(told["count"])]
    kept: list[str] = []
    size = told.get("at_once", 1)

    async def one(name: str) -> None:
        with suppress(JournalUnavailable):
            await app.publish(Job(name=name, key=told.get("key")))
            kept.append(name)

    async with app:
        await app.journal.topic("jobs")
        while "go" in told and not Path(told["go"]).exists():
            await asyncio.sleep(0.005)
        for start in range(0, len(names), size):
            await asyncio.gather(*[one(name) for name in names[start : start + size]])
    say(accepted=kept)


def publisher(told: dict[str, Any]) -> None:
    """Publish jobs, some at once; say which were accepted."""
    asyncio.run(_publish(told))


def say(**what: Any) -> None:
    """Say something on standard output, as one JSON line."""
    print(json.dumps(what), flush=True)


ROLES = {"worker": worker, "pair": pair, "publisher": publisher}


def main() -> None:
    """Play the role that the command line names; every process ends, whatever becomes of its test."""
    signal.alarm(LIFE_S_MAX)
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(process)d: %(message)s")
    ROLES[sys.argv[1]](json.loads(sys.argv[2]))
