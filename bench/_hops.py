"""The two hops of `latency.py` by hand, and what both of its sides do."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from _measure import ROOT, calm_collector

from headrace import App, Model
from headrace.cli.run import quicken
from headrace.demo.messages import COUNT_MAX, messages

MODEL = ROOT / "src" / "headrace" / "demo" / "intent.onnx"
BATCH_MAX = 64
POLL_S = 0.001
#: From the beginning of a window to its first event.
START_S = 0.1

now_ns = time.monotonic_ns

# --- what both sides do -------------------------------------------------------------------------


class Window(NamedTuple):
    """Events that are published without a pause."""

    events: int
    rate: int


def texts(count: int) -> list[tuple[str, str]]:
    """Return (customer, text) of each event."""
    told = list(messages(min(count, COUNT_MAX)))
    return [told[number % len(told)] for number in range(count)]


def schedule(window: Window) -> Iterator[int]:
    """Yield at the time at which each event is due how late it is (ns)."""
    begin = now_ns() + int(START_S * 1e9)
    for number in range(window.events):
        due = begin + number * 1_000_000_000 // window.rate
        if (wait := due - now_ns()) > 0:
            time.sleep(wait / 1e9)
        yield now_ns() - due


def ready(pipe: Connection) -> None:
    """Say that this process is ready."""
    calm_collector()
    pipe.send(None)


def turns(pipe: Connection) -> Iterator[None]:
    """Yield at the beginning of each window."""
    ready(pipe)
    while True:
        try:
            pipe.recv()
        except (EOFError, ConnectionResetError):  # the run is over
            return
        yield


def at_the_end(pipe: Connection, stop: Callable[[], None]) -> None:
    """Call ``stop`` when the run is over; whose turn it is does not matter to a process that serves."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        try:
            pipe.recv()
        except (EOFError, ConnectionResetError):
            loop.remove_reader(pipe.fileno())
            stop()

    loop.add_reader(pipe.fileno(), look)


async def serve(app: App, pipe: Connection) -> None:
    """Run a worker until the end."""
    stop = asyncio.Event()
    async with app:
        worker = app.worker()
        await worker.start()
        quicken()  # as `headrace run` does
        ready(pipe)
        at_the_end(pipe, stop.set)
        await worker.run(stop)


# --- the floor: two hops by hand ----------------------------------------------------------------


def open_by_hand(path: Path) -> sqlite3.Connection:
    """Return a connection with the settings of ours."""
    db = sqlite3.connect(path / "hand.db", isolation_level=None, timeout=5)
    for pragma in ("journal_mode=WAL", "synchronous=FULL"):
        db.execute(f"PRAGMA {pragma}")
    return db


def prepare_by_hand(path: Path) -> None:
    """Create the tables."""
    db = open_by_hand(path)
    db.executescript(
        "CREATE TABLE ticket(id INTEGER PRIMARY KEY, data TEXT);"
        "CREATE TABLE routed(id INTEGER PRIMARY KEY, data TEXT);"
        "CREATE TABLE done(id INTEGER);"
        "INSERT INTO done VALUES (0)"
    )
    db.close()


def publish_by_hand(path: Path, window: Window, pipe: Connection) -> None:
    """First process."""
    db, told = open_by_hand(path), texts(window.events)
    for _ in turns(pipe):
        late = []
        for (customer, text), late_ns in zip(told, schedule(window), strict=True):
            late.append(late_ns)
            data = json.dumps({"customer": customer, "text": text, "sent_ns": now_ns()})
            db.execute("INSERT INTO ticket(data) VALUES (?)", (data,))
        pipe.send(late)


def handle_by_hand(path: Path, window: Window, pipe: Connection) -> None:
    """Second process."""
    model, db, last = Model.onnx(MODEL).load(), open_by_hand(path), 0
    for turn, _ in enumerate(turns(pipe), start=1):
        while last < turn * window.events:
            rows = db.execute(
                "SELECT id, data FROM ticket WHERE id > ? ORDER BY id LIMIT ?", (last, BATCH_MAX)
            ).fetchall()
            if not rows:
                time.sleep(POLL_S)
                continue
            tickets = [json.loads(data) for _, data in rows]
            labels = model.infer([ticket["text"] for ticket in tickets])
            results = [
                (json.dumps({"customer": one["customer"], "intent": label.name, "sent_ns": one["sent_ns"]}),)
                for one, label in zip(tickets, labels, strict=True)
            ]
            last = rows[-1][0]
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO routed(data) VALUES (?)", results)
            db.execute("UPDATE done SET id = ?", (last,))
            db.execute("COMMIT")
        pipe.send(None)


def read_by_hand(path: Path, window: Window, pipe: Connection) -> None:
    """Third process."""
    db, last = open_by_hand(path), 0
    for turn, _ in enumerate(turns(pipe), start=1):
        took: list[int] = []
        while last < turn * window.events:
            rows = db.execute("SELECT id, data FROM routed WHERE id > ? ORDER BY id", (last,)).fetchall()
            if not rows:
                time.sleep(POLL_S)
                continue
            sent = [json.loads(data)["sent_ns"] for _, data in rows]
            now = now_ns()
            took += [now - one for one in sent]
            last = rows[-1][0]
        pipe.send(took)
