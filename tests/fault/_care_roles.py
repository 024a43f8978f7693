"""The processes of the campaign of care: workers, a publisher, a reader, and whoever looks after the file.

Run as a file with one argument, a `Role` as JSON.  Every event belongs to a person, and its payload, and
every error that a handler raises over it, holds that person's token: what must not be found once the person
is erased.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import signal
import sys
import uuid
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

from headrace import App, Context, Event, Options, Retention, RetryPolicy
from headrace.app import World
from headrace.errors import HeadraceError
from headrace.journal import retention
from headrace.journal.care import SqliteCare
from headrace.ports import NoFaults
from headrace.settings import Settings
from headrace.testing import CrashAt
from headrace.world import SystemChance, SystemClock

#: Events of one person: they come one after the other, and then no more.
PERSON_EVENTS = 40
#: Each topic keeps so much, and nothing longer than this.
TOPIC_BYTES_MAX, AGE_S_MAX = 1 << 20, 4
SWEEP_EVERY_US = 200_000
LEASE_MS = 700
#: The publisher waits while more is unfinished: what may not be removed is then as much on a slow machine as
#: on a quick one.  It looks so often, and gives up after so many looks in a row.
UNFINISHED_MAX, LOOK_EVERY_S, LOOKS_MAX = 150, 0.01, 6_000
#: Events that some handler has not taken, or has in hand.
UNFINISHED = (
    "SELECT (SELECT count(*) FROM open) + (SELECT coalesce(sum(running), 0) FROM position)"
    " + (SELECT count(*) FROM event JOIN position AS at ON at.tp = event.tp WHERE event.seq > at.high)"
)


class Role(NamedTuple):
    """What one process is to do."""

    name: str
    folder: str
    seed: int
    journal: str = "journal.db"
    first: int = 0
    last: int = 0
    #: Die at this failpoint, the ``hit``-th time.
    failpoint: str = ""
    hit: int = 1
    #: What is erased, or where the backup goes.
    key: str = ""
    target: str = ""
    hold_s: float = 0.0
    #: A rule of Headrace to switch off, to see that the judge notices.
    sabotage: str = ""


class Ticket(Event, topic="tickets", key="person", type="care.ticket"):
    """Published."""

    n: int
    person: str
    text: str


class Routed(Event, topic="routed", key="person", type="care.routed"):
    """Follows under the same key."""

    n: int
    person: str
    text: str


class Scored(Event, topic="scored", type="care.scored"):
    """Follows without a key, and quotes the person all the same."""

    n: int
    text: str


def person_of(n: int) -> str:
    """Return the key of the n-th event."""
    return f"person-{n // PERSON_EVENTS}"


def token_of(seed: int, person: str) -> str:
    """Return what stands in everything that is about a person."""
    return f"token-{seed}-{person}-end"


def event_id(seed: int, n: int) -> uuid.UUID:
    """Return the id of the n-th event."""
    return uuid.UUID(int=random.Random(f"{seed}:{n}").getrandbits(128), version=4)


def ticket(seed: int, n: int) -> Ticket:
    """Return the n-th event: most are small, some take pages of their own."""
    padding = "x" * random.Random(f"{seed}:{n}:size").choice((200, 1_000, 2_000, 9_000))
    return Ticket(n=n, person=person_of(n), text=f"{token_of(seed, person_of(n))} {padding}")


def build(role: Role) -> App:
    """Return the app of a process."""
    settings = Settings(journal=str(Path(role.folder, role.journal)), lease_ms=LEASE_MS, stop_grace_ms=300)
    kept = Retention(age=timedelta(seconds=AGE_S_MAX), bytes_max=TOPIC_BYTES_MAX)
    app = App("care", settings=settings, retention=dict.fromkeys((Ticket, Routed, Scored), kept))
    patient = RetryPolicy(attempts_max=1_000, backoff_first_ms=5, backoff_max_ms=50, crash_attempts_max=1_000)

    def fails(n: int, ctx: Context) -> bool:
        return random.Random(f"{n}:{ctx.attempt}:{os.getpid()}").random() < 0.1

    @app.handler(retry=patient)
    async def route(ticket: Ticket, ctx: Context) -> Routed:
        await asyncio.sleep(random.random() / 100)
        if fails(ticket.n, ctx):
            raise ValueError(f"cannot read {ticket.text}")
        return Routed(n=ticket.n, person=ticket.person, text=ticket.text)

    @app.handler(retry=RetryPolicy(attempts_max=2, backoff_first_ms=5, crash_attempts_max=1_000))
    async def score(routed: Routed, ctx: Context) -> Scored:
        await asyncio.sleep(random.random() / 100)
        if routed.n % 9 == 0 or fails(routed.n, ctx):
            raise ValueError(f"cannot score {routed.text}")
        return Scored(n=routed.n, text=routed.text)

    return app


async def work(role: Role) -> None:
    """Handle events until SIGTERM."""
    app, stop = build(role), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    app.place_in(World(faults=faults(role)))
    async with app:
        await app.run(stop)


async def publish(role: Role) -> None:
    """Publish events, some of them again a little later; note what was accepted."""
    import apsw

    app, chance = build(role), random.Random(role.seed)
    accepted = os.open(Path(role.folder, "accepted.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    async with app:
        db = apsw.Connection(str(Path(role.folder, role.journal)), flags=apsw.SQLITE_OPEN_READONLY)
        for start in range(role.first, role.last, 5):
            for _ in range(LOOKS_MAX):
                if next(db.execute(UNFINISHED))[0] <= UNFINISHED_MAX:
                    break
                await asyncio.sleep(LOOK_EVERY_S)
            else:
                raise TimeoutError("the workers do not keep up")
            numbers = range(start, min(start + 5, role.last))
            await app.publish(
                [(ticket(role.seed, n), Options(event_id=event_id(role.seed, n))) for n in numbers]
            )
            os.write(accepted, "".join(f"{n}\n" for n in numbers).encode())
            again = chance.randrange(role.first, start + 5)
            told = await app.publish(ticket(role.seed, again), event_id=event_id(role.seed, again))
            if not told.duplicate:
                os.write(accepted, f"{again} twice\n".encode())
            await asyncio.sleep(chance.random() / 12)
        db.close()


async def read(role: Role) -> None:
    """Hold a snapshot of the journal for a while, as a report that takes long does."""
    import apsw

    db = apsw.Connection(str(Path(role.folder, role.journal)), flags=apsw.SQLITE_OPEN_READONLY)
    db.execute("BEGIN").fetchall()
    db.execute("SELECT count(*) FROM event").fetchall()
    print("reading", flush=True)
    await asyncio.sleep(role.hold_s)
    db.close()


async def care(role: Role) -> None:
    """Look after the journal; what came of it is one line on stdout."""
    path = str(Path(role.folder, role.journal))
    one = SqliteCare(path, clock=SystemClock(), chance=SystemChance(), faults=faults(role))
    await one.open()
    try:
        found: Any
        if role.name == "backup":
            found = await one.backup(str(Path(role.folder, role.target)))
        elif role.name == "erase":
            found = await one.erase([role.key], None, effects=True, dry_run=False)
        else:
            found = await one.compact(lambda _done, _total: None, whole=role.name == "rewrite")
    finally:
        await one.close()
    print(json.dumps({"holder": getattr(found, "holder", ""), "told": str(found)}), flush=True)


def faults(role: Role) -> Any:
    """Return the failpoints of a process."""
    return CrashAt(role.failpoint, role.hit) if role.failpoint else NoFaults()


def sabotage(name: str) -> None:
    """Switch a rule of Headrace off."""
    from headrace.journal.queries import load

    removal: Any = load("removal.sql")
    if name == "removes_unfinished":
        removal.held = "SELECT ?1, ?2 WHERE 0"
    elif name == "keeps_all":
        removal.held = "SELECT value FROM json_each(?2) WHERE ?1"
    elif name == "no_rewrite":

        async def nothing(_: object) -> None:
            pass

        SqliteCare._rewrite = nothing  # type: ignore[method-assign]
    else:
        raise ValueError(name)


ROLES = {"worker": work, "publisher": publish, "reader": read}


def main(argument: str) -> int:
    """Perform one role."""
    role = Role(**json.loads(argument))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(process)d %(message)s")
    retention.SWEEP_EVERY_US = SWEEP_EVERY_US
    if role.sabotage:
        sabotage(role.sabotage)
    try:
        asyncio.run(ROLES.get(role.name, care)(role))
    except HeadraceError as fault:
        print(json.dumps({"error": fault.code, "told": str(fault)}), flush=True)
        return 3
    return 0


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        sys.exit(main(sys.argv[1]))
