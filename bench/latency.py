"""How long an event is on its way: published in one process, classified in a second, seen in a third.

Floor: the same two hops by hand, with sqlite3 tables polled every millisecond and the same model called on up
to 64 rows at a time; in WAL, flushed at every commit, as ours.  Ours: `App.publish` one by one, a worker with
the model, and a third process that sees the result.  500 events a second; the time is taken when the
publisher sends, and how late it was against its schedule is reported beside it.

The two sides take turns every few seconds and a round adds up their windows, so that a disk or a neighbour
that is slow for a while is so for both.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import sqlite3
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from _measure import ROOT, calm_collector, median, options, ratio, report, say, scratch

from headrace import App, Event, Model
from headrace.demo.messages import COUNT_MAX, messages
from headrace.settings import Settings

TARGETS = {"ratio": "<= 0.7"}
MODEL = ROOT / "src" / "headrace" / "demo" / "intent.onnx"
BATCH_MAX = 64
POLL_S = 0.001
WINDOW_S = 2.0
#: Events of a window that do not count: caches fill, idle processes wake up.
WARM_S = 0.4
START_S = 0.1
PATIENCE_S = 60.0

now_ns = time.monotonic_ns


class Ticket(Event, topic="tickets", key="customer"):
    """What is published."""

    customer: str
    text: str
    sent_ns: int


class Routed(Event, topic="routed", key="customer"):
    """What follows from it."""

    customer: str
    intent: str
    sent_ns: int


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


# --- ours ---------------------------------------------------------------------------------------


def app_of(name: str, path: Path) -> App:
    """Return an app on the journal of this run."""
    return App(name, settings=Settings(journal=str(path / "headrace.db")), events=[Ticket, Routed])


def prepare_ours(path: Path) -> None:
    """Create the journal."""

    async def create() -> None:
        async with app_of("web", path):
            pass

    asyncio.run(create())


def publish_ours(path: Path, window: Window, pipe: Connection) -> None:
    """First process."""
    told = texts(window.events)

    async def main() -> None:
        async with app_of("web", path) as app:
            for _ in turns(pipe):
                late = []
                for (customer, text), late_ns in zip(told, schedule(window), strict=True):
                    late.append(late_ns)
                    await app.publish(Ticket(customer=customer, text=text, sent_ns=now_ns()))
                pipe.send(late)

    asyncio.run(main())


async def serve(app: App, pipe: Connection) -> None:
    """Run an app until the pipe is closed; it does not care whose turn it is."""
    stop = asyncio.Event()

    def look() -> None:
        try:
            pipe.recv()
        except (EOFError, ConnectionResetError):  # the run is over
            asyncio.get_running_loop().remove_reader(pipe.fileno())
            stop.set()

    async with app:
        worker = app.worker()
        await worker.start()
        ready(pipe)
        asyncio.get_running_loop().add_reader(pipe.fileno(), look)
        await worker.run(stop)


def handle_ours(path: Path, window: Window, pipe: Connection) -> None:
    """Second process."""
    del window
    app = app_of("support", path)

    @app.handler(model=Model.onnx(MODEL, batch_max=BATCH_MAX))
    async def route(ticket: Ticket, model) -> Routed:
        label = await model(ticket.text)
        return Routed(customer=ticket.customer, intent=label.name, sent_ns=ticket.sent_ns)

    asyncio.run(serve(app, pipe))


def read_ours(path: Path, window: Window, pipe: Connection) -> None:
    """Third process: a handler that sees the result."""
    app, took = app_of("desk", path), list[int]()

    @app.handler
    async def see(routed: Routed) -> None:
        took.append(now_ns() - routed.sent_ns)
        if len(took) == window.events:
            pipe.send(took)
            took.clear()

    asyncio.run(serve(app, pipe))


# --- both, in turns -----------------------------------------------------------------------------

Part = Callable[[Path, Window, Connection], None]
#: publisher, handler, reader
SIDES: dict[str, tuple[Callable[[Path], None], tuple[Part, Part, Part]]] = {
    "floor": (prepare_by_hand, (publish_by_hand, handle_by_hand, read_by_hand)),
    "ours": (prepare_ours, (publish_ours, handle_ours, read_ours)),
}


class Chain:
    """The three processes of a side."""

    def __init__(self, pipes: list[Connection], warm: int) -> None:
        self._pipes, self._warm = pipes, warm
        #: Latencies and lateness of the publisher in ms, of the windows since the last `take`.
        self.took: list[float] = []
        self.late: list[float] = []

    def run(self, window: Window) -> None:
        """Run one window, and wait until its last result was seen."""
        for pipe in reversed(self._pipes):
            pipe.send(None)
        publisher, _, reader = self._pipes
        late, took = answer(publisher, window), answer(reader, window)
        assert len(late) == len(took) == window.events
        self.late += [one / 1e6 for one in late[self._warm :]]
        self.took += [one / 1e6 for one in took[self._warm :]]

    def take(self) -> tuple[list[float], list[float]]:
        """Return what was measured since the last time."""
        found = self.took, self.late
        self.took, self.late = [], []
        return found


def answer(pipe: Connection, window: Window):
    """Return what a process has to say."""
    if not pipe.poll(PATIENCE_S + 10 * window.events / window.rate):
        raise TimeoutError("a process does not answer")
    return pipe.recv()


@contextmanager
def chain(name: str, folder: Path, window: Window, warm: int) -> Iterator[Chain]:
    """Start the processes of a side; they end with the block."""
    prepare, parts = SIDES[name]
    place = folder / name
    place.mkdir()
    prepare(place)
    context = multiprocessing.get_context("spawn")
    pipes, processes = list[Connection](), []
    try:
        for part in parts:
            mine, theirs = context.Pipe()
            process = context.Process(target=part, args=(place, window, theirs), daemon=True)
            process.start()
            theirs.close()
            pipes.append(mine)
            processes.append(process)
            answer(mine, window)
        yield Chain(pipes, warm)
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:
            process.join(20)
            process.kill()


def quantiles(figures: list[float]) -> dict[int, float]:
    """Return p50, p95 and p99."""
    found = statistics.quantiles(figures, n=100, method="inclusive")
    return {part: found[part - 1] for part in (50, 95, 99)}


def measure(folder: Path, rounds: int, seconds: float, rate: int) -> dict[str, object]:
    """Return the result."""
    windows = max(1, round(seconds / WINDOW_S))
    length_s = seconds / windows
    window, warm = Window(int((WARM_S + length_s) * rate), rate), int(WARM_S * rate)
    took: dict[str, list[dict[int, float]]] = {name: [] for name in SIDES}
    late: dict[str, list[float]] = {name: [] for name in SIDES}
    say(f"{rounds} rounds of {windows} windows of {length_s:g} s for each side")
    with ExitStack() as stack:
        chains = {name: stack.enter_context(chain(name, folder, window, warm)) for name in SIDES}
        for turn in range(rounds):
            for number in range(windows):
                for name in list(chains) if number % 2 == 0 else reversed(chains):
                    chains[name].run(window)
            for name, one in chains.items():
                latencies, lateness = one.take()
                took[name].append(quantiles(latencies))
                late[name].append(quantiles(lateness)[95])
            told = ", ".join(
                f"{name} {took[name][-1][50]:.2f} / {took[name][-1][95]:.2f} ms" for name in SIDES
            )
            say(f"round {turn + 1} of {rounds}: p50 / p95 {told}")
    result: dict[str, object] = {}
    for name, prefix in (("floor", "floor_"), ("ours", "")):
        for part in (50, 95, 99):
            result[f"{prefix}p{part}_ms"] = median([one[part] for one in took[name]])
    for part, key in ((95, "ratio"), (50, "ratio_p50")):
        result[key] = ratio([one[part] for one in took["ours"]], [one[part] for one in took["floor"]])
    return result | {
        "publisher_late_p95_ms": median(late["ours"]),
        "floor_publisher_late_p95_ms": median(late["floor"]),
        "rate_per_s": rate,
        "seconds": seconds,
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    given = options(__doc__, rounds=5, seconds=20.0, rate=500)
    with scratch(given.folder) as folder:
        result = measure(folder, given.rounds, given.seconds, given.rate)
    report(result, TARGETS, as_json=given.json)


if __name__ == "__main__":
    main()
