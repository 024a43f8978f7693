"""Stored events handled to the end, claim to commit, against raw inserts into one SQLite table.

Raw: apsw, `executemany` of 300-byte rows, 100 rows a transaction, WAL.  Ours: one worker, a handler that
returns one event, everything that guarantees exactly once included; what is stored and what is emitted are
about 300 bytes too.  Measured at synchronous=FULL (`ratio`, and `ratio_def` for a plain `def` handler) and at
NORMAL (`ratio_normal`).  The peers DBOS and LangGraph take their turns in the same rounds, on the same disk,
flushed at every commit.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from contextlib import AsyncExitStack
from pathlib import Path

import apsw
from _measure import Side, calm_collector, in_turns, median, options, ratio, report, scratch
from _peers import PEERS, peers

from headrace import App, Event
from headrace.settings import Settings

TARGETS = {
    "ratio": ">= 0.16",
    "ratio_normal": ">= 0.13",
    "vs_dbos": ">= 50",
    "vs_langgraph": ">= 50",
}
ROW_BYTES = 300
ROWS_A_TRANSACTION = 100
#: Raw rows are written this much faster than events are handled: slices of about the same length.
RAW_MORE = 4
PUBLISH_MAX = 5_000
TEXT = "how would you say fly in italian, please tell me as soon as you can " * 2
LOOK_S = 0.002


class Ticket(Event, topic="tickets", key="customer"):
    """What is stored."""

    customer: str
    text: str


class Routed(Event, topic="routed", key="customer"):
    """What follows from it."""

    customer: str
    intent: str
    text: str


async def route(ticket: Ticket) -> Routed:
    """Return one event."""
    return Routed(customer=ticket.customer, intent="translate", text=ticket.text[:110])


def route_plainly(ticket: Ticket) -> Routed:
    """Return one event, from a thread."""
    return Routed(customer=ticket.customer, intent="translate", text=ticket.text[:110])


def raw(path: Path, sync: str, rows: int) -> Side:
    """Return a side that tells the rows a second of one slice."""
    db = apsw.Connection(str(path))
    for pragma in ("journal_mode=WAL", f"synchronous={sync}", "cache_size=-65536", "wal_autocheckpoint=1500"):
        db.execute(f"PRAGMA {pragma}").fetchall()
    db.execute("CREATE TABLE row(id INTEGER PRIMARY KEY, data BLOB NOT NULL)")
    group = [(bytes(ROW_BYTES),)] * ROWS_A_TRANSACTION

    async def side() -> float:
        begin = time.perf_counter()
        for _ in range(rows // ROWS_A_TRANSACTION):
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO row(data) VALUES (?)", group)
            db.execute("COMMIT")
        return rows / (time.perf_counter() - begin)

    return side


class Ours:
    """An app with one handler on a journal of its own."""

    def __init__(self, path: Path, durability: str, handler, events: int) -> None:
        self.app = App("support", settings=Settings(journal=str(path), durability=durability))
        self.app.handler(name="route")(handler)
        self._path, self._events = path, events
        self._customers = itertools.cycle(f"customer-{number}" for number in range(997))

    async def publish(self) -> None:
        """Store the events of one slice; what that leaves to a checkpoint is not charged to the handling."""
        for begin in range(0, self._events, PUBLISH_MAX):
            count = min(PUBLISH_MAX, self._events - begin)
            await self.app.publish([Ticket(customer=next(self._customers), text=TEXT) for _ in range(count)])
        db = apsw.Connection(str(self._path))
        db.execute("PRAGMA wal_checkpoint").fetchall()
        db.close()

    async def side(self) -> float:
        """Return the events a second of one slice: from the start of the worker's loop to the last commit."""
        await self.publish()
        worker = self.app.worker()
        await worker.start()
        (server,) = worker.servers
        stop = asyncio.Event()
        begin = time.perf_counter()
        running = asyncio.create_task(worker.run(stop))
        # (An observer would tell, but be charged to the handling.)
        while server.finished < self._events and not running.done():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
        took_s = time.perf_counter() - begin
        stop.set()
        assert await running == 0
        assert server.finished == self._events
        return self._events / took_s

    def row_bytes(self) -> float:
        """Return the mean size of a stored event, without its indexes."""
        db = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        sql = "SELECT avg(length(eid) + length(head) + length(body)) FROM event"
        ((found,),) = db.execute(sql).fetchall()
        db.close()
        return found


async def measure(folder: Path, rounds: int, events: int, steps: int) -> dict[str, object]:
    """Return the result."""
    ours = {
        "headrace": Ours(folder / "full.db", "full", route, events),
        "headrace_def": Ours(folder / "def.db", "full", route_plainly, events),
        "headrace_normal": Ours(folder / "normal.db", "normal", route, events),
    }
    async with AsyncExitStack() as stack:
        for one in ours.values():
            await stack.enter_async_context(one.app)
        others = stack.enter_context(peers(folder, steps))
        sides: dict[str, Side] = {
            "raw": raw(folder / "raw-full.db", "FULL", events * RAW_MORE),
            "raw_normal": raw(folder / "raw-normal.db", "NORMAL", events * RAW_MORE),
        }
        sides |= {name: one.side for name, one in ours.items()} | others
        calm_collector()
        await in_turns(sides, 1)  # warm
        found = await in_turns(sides, rounds)
    result: dict[str, object] = {
        "raw_events_per_s": median(found["raw"]),
        "headrace_events_per_s": median(found["headrace"]),
        "ratio": ratio(found["headrace"], found["raw"]),
        "ratio_normal": ratio(found["headrace_normal"], found["raw_normal"]),
        "ratio_def": ratio(found["headrace_def"], found["raw"]),
    }
    for name in PEERS:
        result[f"vs_{name}"] = ratio(found["headrace"], found[name]) if name in found else None
    for name in found.keys() - {"raw", "headrace"}:
        result[f"{name}_per_s"] = median(found[name])
    return result | {
        "row_bytes": ours["headrace"].row_bytes(),
        "events": events,
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    given = options(__doc__, rounds=9, events=20_000, steps=60)
    with scratch(given.folder) as folder:
        result = asyncio.run(measure(folder, given.rounds, given.events, given.steps))
    report(result, TARGETS, as_json=given.json)


if __name__ == "__main__":
    main()
