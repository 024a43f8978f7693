"""The processes of `kafka_chaos.py` and `kafka_handover.py`: an app of two steps on Kafka, in several roles.

``weigh`` (async, with an ONNX model) makes one Weighed of every Asked, which says which weights it was made
with; it fails now and then, every thirteenth event always the first time, and then waits.  ``file`` (plain
``def``) makes one Filed of every Weighed, but refuses some for good: a dead letter each.

The handlers note in a diary when they begin (+), have a result (-) and fail (x): what the driver knows of who
has which event in hand comes from there.
"""

# No annotations as strings: the classes of events are made where the names of their topics are known.

import asyncio
import faulthandler
import hashlib
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import onnxruntime  # noqa: F401 - the children find it imported
from _spawner import UNLOADABLE, UNREACHABLE

from headrace import App, Context, Event, Model, Options, RetryPolicy, errors
from headrace.app import World
from headrace.journal.index import postgres  # noqa: F401 - as above
from headrace.journal.kafka import journal  # noqa: F401 - as above
from headrace.ports import NoFaults
from headrace.settings import Settings
from headrace.testing import CrashAt

STEPS = ("weigh", "file")
TWICE_EVERY, WAITS_EVERY, DOOMED_EVERY = 5, 13, 41
_log = logging.getLogger(__name__)
AGAIN_S = 0.2
#: No publisher goes on for ever.
EVENTS_MAX = 20_000


@dataclass(frozen=True)
class Task:
    """What one process is to do; travels as JSON."""

    role: str
    folder: str
    #: Names the app, its topics and its model.
    name: str
    journal: str
    index: str
    seed: int
    lease_ms: int = 2_000
    partitions: int = 4
    #: Die at this failpoint, or stop there, the ``hit``-th time.
    failpoint: str = ""
    hit: int = 1
    freezes: bool = False
    #: How long handlers are busy, and events fail and wait; False for a measured load.
    troubled: bool = True
    #: The number of the first event, events of one unit, and the mean wait between units.
    first: int = 0
    last: int = EVENTS_MAX
    unit: int = 1
    pace_ms: float = 10.0
    #: The file of the weights to go back to.
    weights: str = ""
    #: A rule of Headrace to switch off, to see that the judge notices.
    sabotage: str = ""


class Flaky(Exception):
    """What handlers fail with."""


class FreezeAt:
    """Stops this process (SIGSTOP) the ``hit``-th time that a failpoint is passed."""

    def __init__(self, point: str, hit: int, told: Path) -> None:
        self._point, self._left, self._told = point, hit, told

    def at(self, point: str) -> None:
        """Stand still here, or pass."""
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                self._told.touch()
                os.kill(os.getpid(), signal.SIGSTOP)


class Diary:
    """One line for each thing a handler does; whole also when the process dies right after."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "calls.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, what: str, step: str, number: int, weights: float = 0.0) -> None:
        """Add a line."""
        os.write(self._fd, f"{what} {step} {number} {os.getpid()} {weights}\n".encode())


def drawn(*what: object) -> bytes:
    """Return bytes that follow from something."""
    return hashlib.blake2b(":".join(map(str, what)).encode(), digest_size=16).digest()


def event_id(seed: int, number: int) -> UUID:
    """Return the id of an event: the same in every publisher."""
    return UUID(bytes=drawn(seed, number), version=4)


def fails(number: int, attempt: int) -> bool:
    """Tell whether `weigh` fails: one attempt in fifty, and the first of every thirteenth event."""
    return (attempt == 1 and number % WAITS_EVERY == 0) or drawn("weigh", number, attempt)[0] < 5


# --- sabotage -----------------------------------------------------------------------------------


def _no_copies() -> None:
    """An event that was published twice is handled twice."""
    from headrace.journal.kafka.part import Fetched

    pop = Fetched.pop

    def forget(self: Fetched) -> None:
        pop(self)

    Fetched.pop = forget  # type: ignore[method-assign,assignment]


def _no_open() -> None:
    """The ledger does not say what is open behind its position: what waits goes with its owner."""
    from headrace.journal.kafka.part import Part

    position = Part.position

    def closed(self: Part, clock: Any) -> Any:
        found = position(self, clock)
        found.open = []
        return found

    Part.position = closed  # type: ignore[method-assign]


def _no_waiting() -> None:
    """Events pass an earlier one of their key that waits for its retry."""
    from headrace.journal.held import Held

    Held.blocks = lambda self, key: False  # type: ignore[method-assign]


SABOTAGES: dict[str, Callable[[], None]] = {
    "no_copies": _no_copies,
    "no_open": _no_open,
    "no_waiting": _no_waiting,
}


# --- the app ------------------------------------------------------------------------------------


def build(task: Task) -> tuple[App, Callable[..., Event]]:
    """Return the app of a process, and what is published."""
    folder, name = Path(task.folder), task.name

    class Asked(Event, topic=f"{name}-asked", key="who"):
        number: int
        who: str

    class Weighed(Event, topic=f"{name}-weighed", key="who"):
        number: int
        who: str
        weights: float

    class Filed(Event, topic=f"{name}-filed", key="who"):
        number: int
        who: str

    settings = Settings(journal=task.journal, index=task.index, lease_ms=task.lease_ms, stop_grace_ms=2_000)
    app, diary = App(name, settings=settings, events=(Asked, Weighed, Filed)), Diary(folder)
    patient = RetryPolicy(
        attempts_max=1_000_000, backoff_first_ms=1_500, backoff_max_ms=1_500, crash_attempts_max=1_000_000
    )

    @app.handler(model=Model.onnx(folder / "plus.onnx", name=f"plus-{name}"), retry=patient)
    async def weigh(asked: Asked, model: Any, ctx: Context) -> Weighed:
        number, troubled = asked.number, task.troubled
        diary.note("+", "weigh", number)
        weights = float(await model(0.0))
        if troubled:
            await asyncio.sleep(drawn(number)[1] / 10_000)
            if fails(number, ctx.attempt):
                diary.note("x", "weigh", number)
                raise Flaky
        diary.note("-", "weigh", number, weights)
        return Weighed(number=number, who=asked.who, weights=weights)

    refusing = RetryPolicy(attempts_max=2, backoff_first_ms=50, crash_attempts_max=1_000_000)

    @app.handler(retry=refusing)
    def file(weighed: Weighed) -> Filed:
        diary.note("+", "file", weighed.number)
        if task.troubled:
            time.sleep(drawn(weighed.number)[2] / 50_000)
            if weighed.number % DOOMED_EVERY == 0:
                diary.note("x", "file", weighed.number)
                raise Flaky
        diary.note("-", "file", weighed.number)
        return Filed(number=weighed.number, who=weighed.who)

    app.place_in(World(faults=_faults_of(task)))
    return app, Asked


def _faults_of(task: Task) -> Any:
    if task.freezes:
        return FreezeAt(task.failpoint, task.hit, Path(task.folder, "frozen"))
    return CrashAt(task.failpoint, task.hit) if task.failpoint else NoFaults()


# --- what a process does ------------------------------------------------------------------------


async def work(app: App) -> None:
    """Handle events until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await app.run(stop)


async def publish(app: App, task: Task, asked: Callable[..., Event], *, copies: bool) -> None:
    """Publish events until there are enough, and note each one once it is accepted.

    Or copies: every fifth event a second time, from a process of its own, before or after the other does.
    """
    chance = random.Random(f"{task.seed}:{task.role}:{task.first}")
    folder = Path(task.folder)
    accepted = os.open(folder / "accepted.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for start in range(task.first, task.last, task.unit):
        if (folder / "enough").exists():
            return
        numbers = [
            n for n in range(start, min(start + task.unit, task.last)) if not copies or n % TWICE_EVERY == 0
        ]
        unit = [
            (asked(number=n, who=f"c{drawn(n)[3] % 40}"), Options(event_id=event_id(task.seed, n)))
            for n in numbers
        ]
        while unit:
            try:
                await app.publish(unit)
                break
            except errors.JournalError as fault:
                _log.warning("not accepted: %s", fault)
                await asyncio.sleep(AGAIN_S)
        if not copies:
            os.write(accepted, "".join(f"{n}\n" for n in numbers).encode())
        await asyncio.sleep(chance.expovariate(1000 / task.pace_ms))


async def roll_back(app: App, task: Task) -> None:
    """Make the version of older weights the active one, as a person would."""
    digest = Model.onnx(task.weights, name=f"plus-{task.name}").load().digest
    await app.journal.activate(f"{task.name}.weigh", digest[:12])


async def perform(task: Task) -> None:
    """Open the journal and do what the task says."""
    if task.sabotage:
        SABOTAGES[task.sabotage]()
    app, asked = build(task)
    async with app:
        for topic in ("asked", "weighed", "filed"):
            await app.journal.topic(f"{task.name}-{topic}", task.partitions)
        match task.role:
            case "worker":
                await work(app)
            case "publisher" | "copier":
                await publish(app, task, asked, copies=task.role == "copier")
            case "operator":
                await roll_back(app, task)
            case other:
                raise ValueError(other)


def main(task: Task) -> None:
    """Run one process to its end; SIGUSR1 has it print its stacks."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(process)d %(message)s"
    )
    try:
        asyncio.run(perform(task))
    except errors.JournalError as fault:
        _log.error("the end: %s", fault)
        raise SystemExit(UNREACHABLE) from fault
    except errors.ModelError as fault:
        _log.error("the end: %s", fault)
        raise SystemExit(UNLOADABLE) from fault
