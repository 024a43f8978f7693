"""The processes that are killed: an app of three chained handlers, as a worker, a publisher, an operator.

The judge knows what they must come to by the rules below, which it has written out for itself:

* ``kill.route`` (async, with the model) makes one Routed of every Ticket;
* ``kill.score`` (plain ``def``) makes one Scored of every Routed, but nothing when 7 divides ``n``, and
  something it must not emit when ``n`` is 1 modulo 41: a dead letter;
* ``kill.file`` (async, with the model) makes one Filed of every Scored.

All three fail now and then and are tried again.
"""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import json
import logging
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from _spawner import UNLOADABLE

from headrace import App, Context, Event, Label, Options, RetryPolicy
from headrace.app import World
from headrace.errors import ModelCorrupt, ModelError, ModelMissing
from headrace.ports import LoadedModel, NoFaults
from headrace.settings import Settings
from headrace.testing import CrashAt

HANDLERS = ("kill.route", "kill.score", "kill.file")
TOPICS = ("tickets", "routed", "scored", "filed")
#: The beginning of weights that can be loaded.
MAGIC = b"weights:"
KEYS = 6
TWICE_EVERY = 5
#: Bounds that no run of the harness reaches: an innocent event that is hit again and again must not become
#: a dead letter, so that every missing child is a fault.
PATIENT = RetryPolicy(
    attempts_max=1_000_000, backoff_first_ms=5.0, backoff_max_ms=60.0, crash_attempts_max=1_000_000
)


class Ticket(Event, topic="tickets", key="customer"):
    """Published."""

    n: int
    customer: str


class Routed(Event, topic="routed", key="customer"):
    """Emitted by ``route``; says which weights it was made with."""

    n: int
    customer: str
    weights: str


class Scored(Event, topic="scored"):
    """Emitted by ``score``, without a key."""

    n: int


class Filed(Event, topic="filed"):
    """Emitted by ``file``: the end of the chain."""

    n: int
    weights: str


@dataclass
class Loaded:
    """Weights in memory: every answer names them."""

    name: str
    digest: str
    declared: str | None = None

    def infer(self, inputs: Sequence[object]) -> list[object]:
        """Answer each input with the digest."""
        return [Label(self.digest, 1.0) for _ in inputs]

    def close(self) -> None:
        """There is nothing to free."""


class Weights:
    """A model whose weights are the bytes of a file."""

    name, batch_max, batch_wait_ms = "weights", 32, 0.0

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self, like: LoadedModel | None = None) -> Loaded:
        """Read the file."""
        try:
            found = self._path.read_bytes()
        except FileNotFoundError:
            raise ModelMissing(path=self._path) from None
        if not found.startswith(MAGIC):
            raise ModelCorrupt(path=self._path)
        return Loaded(self.name, hashlib.sha256(found).hexdigest())

    def fingerprint(self) -> object:
        """Look at the file."""
        try:
            seen = self._path.stat()
        except FileNotFoundError:
            return None
        return seen.st_ino, seen.st_mtime_ns, seen.st_size


class Task(NamedTuple):
    """What one process is to do; travels as JSON."""

    role: str
    folder: str
    seed: int
    durability: str = "full"
    lease_ms: int = 600
    partitions: int = 4
    #: Die at this failpoint, the ``hit``-th time.
    failpoint: str | None = None
    hit: int = 1
    #: Events to publish: from, to, how many in one unit, and the mean wait between units.
    first: int = 0
    last: int = 0
    unit: int = 1
    pace_ms: float = 10.0
    #: Digest of the weights to go back to.
    digest: str = ""
    #: A rule of Headrace to switch off, to see that the judge notices.
    sabotage: str = ""
    #: ``file`` fails the first attempt of every event and waits up to this long.
    backoff_ms: float = 0.0


class Flaky(Exception):
    """What handlers fail with, now and then."""


def event_id(seed: int, n: int) -> UUID:
    """Return the id of the n-th event of a run: the same in every publisher."""
    drawn = hashlib.blake2b(f"{seed}:{n}".encode(), digest_size=16).digest()
    return UUID(
        bytes=drawn[:6] + bytes([drawn[6] & 0x0F | 0x70, drawn[7], drawn[8] & 0x3F | 0x80]) + drawn[9:]
    )


def ticket(n: int) -> Ticket:
    """Return the n-th event."""
    return Ticket(n=n, customer=f"c{n * n % KEYS}")


def pause_s(n: int) -> float:
    """Return how long an event keeps a handler busy: most a little, some long."""
    return 0.15 if n % 23 == 0 else (n * 37 % 16) / 1000


def fails(handler: str, n: int, attempt: int) -> bool:
    """Tell whether an attempt fails: one of eight does."""
    return hashlib.blake2b(f"{handler}:{n}:{attempt}".encode(), digest_size=1).digest()[0] < 32


#: Rules that a run can do without, each by a query of the journal that does something else.
SABOTAGES = {
    # What a dead owner had in hand is forgotten instead of being run again.
    "no_suspects": {"open_recover_range": "SELECT ?, ?, ?, ?", "open_recover_running": "SELECT ?, ?"},
    # Nothing tells that an event was finished by another version than its range's.
    "no_exceptions": {"exception_put": "SELECT ?, ?, ?, ?"},
    # Positions are committed before what goes with them.
    "outcome_in_parts": {},
}


def sabotage(name: str) -> None:
    """Switch a rule off."""
    from headrace.journal import settle
    from headrace.journal.queries import load

    for query, instead in SABOTAGES[name].items():
        setattr(load("queries.sql"), query, instead)
    if name == "outcome_in_parts":
        write_part = settle._write_part

        def in_parts(db: Any, *told: Any) -> None:
            db.ex("COMMIT")
            db.ex("BEGIN IMMEDIATE")
            write_part(db, *told)

        settle._write_part = in_parts


def build(task: Task) -> App:
    """Return the app of a process."""
    folder = Path(task.folder)
    settings = Settings(
        journal=str(folder / "journal.db"),
        durability=task.durability,
        lease_ms=task.lease_ms,
        stop_grace_ms=300,
    )
    app = App("kill", settings=settings, events=(Ticket, Filed))
    model = Weights(folder / "weights.bin")
    calls = os.open(folder / "calls.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    slow = RetryPolicy(
        attempts_max=5, backoff_first_ms=task.backoff_ms, backoff_max_ms=task.backoff_ms, crash_attempts_max=9
    )

    def called(handler: str, n: int, weights: str, ctx: Context) -> None:
        # One write that appends: whole also when the process dies right after.
        os.write(calls, f"{handler} {n} {weights} {ctx.attempt} {os.getpid()}\n".encode())

    @app.handler(model=model, retry=PATIENT)
    async def route(ticket: Ticket, model: Any, ctx: Context) -> Routed:
        label = await model(ticket.n)
        called("kill.route", ticket.n, label.name, ctx)
        await asyncio.sleep(pause_s(ticket.n))
        if fails("route", ticket.n, ctx.attempt):
            raise Flaky
        return Routed(n=ticket.n, customer=ticket.customer, weights=label.name)

    @app.handler(retry=PATIENT)
    def score(routed: Routed, ctx: Context) -> Scored | None:
        called("kill.score", routed.n, "-", ctx)
        time.sleep(pause_s(routed.n) / 2)
        if fails("score", routed.n, ctx.attempt):
            raise Flaky
        if routed.n % 7 == 0:
            return None
        if routed.n % 41 == 1:
            return ticket(routed.n)  # type: ignore[return-value]  # on purpose: refused, a dead letter
        return Scored(n=routed.n)

    @app.handler(model=model, retry=slow if task.backoff_ms else PATIENT)
    async def file(scored: Scored, model: Any, ctx: Context) -> Filed:
        label = await model(scored.n)
        called("kill.file", scored.n, label.name, ctx)
        await asyncio.sleep(pause_s(scored.n + 5))
        if fails("file", scored.n, ctx.attempt) or (task.backoff_ms and ctx.attempt == 1):
            raise Flaky
        return Filed(n=scored.n, weights=label.name)

    faults = CrashAt(task.failpoint, task.hit) if task.failpoint else NoFaults()
    app.place_in(World(faults=faults))
    return app


# --- what a process does ------------------------------------------------------------------------


async def work(app: App) -> None:
    """Handle events until SIGTERM."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await app.run(stop)


async def publish(app: App, task: Task) -> None:
    """Publish a range of events in units, and note each one once it is accepted."""
    chance = random.Random(f"{task.seed}:{task.first}")
    accepted = os.open(Path(task.folder, "accepted.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for start in range(task.first, task.last, task.unit):
        numbers = range(start, min(start + task.unit, task.last))
        unit = [(ticket(n), Options(event_id=event_id(task.seed, n))) for n in numbers]
        again = [
            app.publish(ticket(n), event_id=event_id(task.seed, n)) for n in numbers if n % TWICE_EVERY == 0
        ]
        originals = asyncio.ensure_future(app.publish(unit))
        copies = await asyncio.gather(*again)
        new = [one.event_id for one in (*await originals, *copies) if not one.duplicate]
        lines = [f"{n}\n" for n in numbers]
        lines += [f"twice {one}\n" for one in set(new) if new.count(one) > 1]
        os.write(accepted, "".join(lines).encode())
        await asyncio.sleep(chance.expovariate(1000 / task.pace_ms))


async def publish_copies(app: App, task: Task) -> None:
    """From a process of its own: publish every fifth event of the range, before or after the other does."""
    chance = random.Random(f"{task.seed}:copies")
    for n in range(task.first, task.last):
        if n % TWICE_EVERY == 0:
            await app.publish(ticket(n), event_id=event_id(task.seed, n))
        await asyncio.sleep(chance.expovariate(1000 * task.unit / task.pace_ms))


async def roll_back(app: App, task: Task) -> None:
    """Make an older version the active one, as a person would."""
    for handler in (HANDLERS[0], HANDLERS[2]):
        await app.journal.activate(handler, task.digest[:12])


async def perform(task: Task) -> None:
    """Open the journal and do what the task says."""
    if task.sabotage:
        sabotage(task.sabotage)
    app = build(task)
    async with app:
        for topic in TOPICS:
            await app.journal.topic(topic, task.partitions)
        match task.role:
            case "worker":
                await work(app)
            case "publisher":
                await publish(app, task)
            case "copier":
                await publish_copies(app, task)
            case "operator":
                await roll_back(app, task)
            case other:
                raise ValueError(other)


def main(task: Task) -> None:
    """Run one process to its end; SIGUSR1 has it print its stacks."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(process)d %(message)s")
    try:
        asyncio.run(perform(task))
    except ModelError as fault:
        print(f"{os.getpid()} the end: {fault}", file=sys.stderr)
        raise SystemExit(UNLOADABLE) from fault


if __name__ == "__main__":
    main(Task(**json.loads(sys.argv[1])))
