"""The processes of `replay_kill.py`: a handler with a model, live and in a replay, a publisher, an operator.

The judge knows what must come of an event by these rules, which it has written out for itself: ``kill.route``
makes one Routed of every Ticket; but when ``n`` is 1 modulo 13 the old weights fail for good, and when ``n``
is 3 modulo 29 all weights do.  One attempt of eight fails and is tried again.
"""

from __future__ import annotations

import asyncio
import faulthandler
import hashlib
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

from _spawner import UNLOADABLE
from _worker import PATIENT, Flaky, Routed, Ticket, Weights, fails, pause_s, publish

from headrace import App, Context
from headrace.app import World
from headrace.errors import EmitRefused, ModelError
from headrace.journal import redrive
from headrace.ports import NoFaults
from headrace.ports.replay import Order, ReplayPlan
from headrace.runtime.replay import ReplayWorker
from headrace.settings import Settings
from headrace.testing import CrashAt

HANDLER, SIDE = "kill.route", "trial"
#: Events a second of a replay: it is to last long enough for something to befall it.
RATE = 150.0
OLD, NEW = b"weights:old", b"weights:new"


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
    unit: int = 4
    pace_ms: float = 10.0
    #: The file that holds the weights.
    weights: str = "live.bin"
    #: Results go into the live topics.
    live: bool = False
    #: A rule of Headrace to switch off, to see that the judge notices.
    sabotage: str = ""


#: Rules that a run can do without, each by a query of the journal that does something else.
SABOTAGES = {
    # What the version has finished live, or another replay was allotted, is allotted all the same.
    "no_ledger": (
        "replay.sql",
        {"ranges": "SELECT 1, 1, 1 WHERE ? < 0", "taken": "SELECT ?, ?, ?, ? WHERE 0"},
    ),
    # After a crash everything between two positions runs again, whether it was allotted or not.
    "no_allotment": ("replay.sql", {"claim_rows": "", "claim_rows_behind": ""}),
    # What a dead owner had in hand is forgotten instead of being run again.
    "no_suspects": (
        "queries.sql",
        {"open_recover_range": "SELECT ?, ?, ?, ?", "open_recover_running": "SELECT ?, ?"},
    ),
}


def sabotage(name: str) -> None:
    """Switch a rule off."""
    from headrace.journal.queries import load

    file, changes = SABOTAGES[name]
    queries = load(file)
    for query, instead in changes.items():
        text = instead
        if not text:  # the same, less what it says of allotted intervals
            text = getattr(queries, query).partition(" AND seq <= ( SELECT upto")[0]
            tail = getattr(queries, query).rpartition("ORDER BY seq")[2]
            text = f"{text} AND ?4 = ?4 ORDER BY seq{tail}"
        setattr(queries, query, text)


def build(task: Task) -> App:
    """Return the app of a process."""
    folder = Path(task.folder)
    settings = Settings(
        journal=str(folder / "journal.db"), durability=task.durability, lease_ms=task.lease_ms,
        stop_grace_ms=300,
    )  # fmt: skip
    app = App("kill", settings=settings, events=(Ticket, Routed))
    calls = os.open(folder / "calls.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @app.handler(model=Weights(folder / task.weights), retry=PATIENT)
    async def route(ticket: Ticket, model: Any, ctx: Context) -> Routed:
        label = await model(ticket.n)
        # One write that appends: whole also when the process dies right after.
        os.write(calls, f"{task.role} {ticket.n} {label.name} {ctx.attempt} {os.getpid()}\n".encode())
        await asyncio.sleep(pause_s(ticket.n) / 4)
        if ticket.n % 29 == 3 or (ticket.n % 13 == 1 and label.name == digest_of(OLD)):
            raise EmitRefused(handler=HANDLER, emitted="nothing", allowed="Routed")
        if fails(task.role, ticket.n, ctx.attempt):
            raise Flaky
        return Routed(n=ticket.n, customer=ticket.customer, weights=label.name)

    app.place_in(World(faults=CrashAt(task.failpoint, task.hit) if task.failpoint else NoFaults()))
    return app


def digest_of(weights: bytes) -> str:
    """Return the digest of weights."""
    return hashlib.sha256(weights).hexdigest()


def stopped() -> asyncio.Event:
    """Return an event that SIGTERM sets."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    return stop


async def replay(app: App, task: Task) -> None:
    """Run history through the new weights, as `headrace replay` does; exit code 5 when nothing was left."""
    stop = stopped()
    order = Order(handler=HANDLER, topic="tickets", side=None if task.live else SIDE)
    worker = ReplayWorker(app.worker(), order, rate=RATE)
    try:
        if isinstance(await worker.begin(), ReplayPlan):
            raise SystemExit(5)
        await worker.until_done(stop, lambda _: None)
    finally:
        await worker.finish()


async def redrive_all(app: App) -> None:
    """Make every dead event waiting again, as a person would: what is refused is refused."""
    connection: Any = vars(app.journal)["_connection"]
    letters = connection.rows("SELECT id FROM dead WHERE fate IS NULL ORDER BY id")
    await redrive.redrive(connection, [number for (number,) in letters])


async def perform(task: Task) -> None:
    """Open the journal and do what the task says."""
    if task.sabotage:
        sabotage(task.sabotage)
    app = build(task)
    async with app:
        for topic in ("tickets", "routed"):
            await app.journal.topic(topic, task.partitions)
        match task.role:
            case "worker":
                await app.run(stopped())
            case "publisher":
                await publish(app, task)  # type: ignore[arg-type]  # it has what `publish` asks for
            case "replay":
                await replay(app, task)
            case "operator":
                await redrive_all(app)
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
