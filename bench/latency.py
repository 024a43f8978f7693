"""How long an event is on its way: published in one process, classified in a second, seen in a third.

Floor: the same two hops by hand, with sqlite3 tables polled every millisecond and the same model called on up
to 64 rows at a time; in WAL, flushed at every commit, as ours.  Ours: `App.publish` one by one, a worker with
the model, and a third process that sees the result.  500 events a second; the time is taken when the
publisher sends, and how late it was against its schedule is reported beside it.

With ``--journal kafka`` both sides work on one real broker: the floor is a transactional loop on the bare
client, ours is exactly once with the index in PostgreSQL, and both are seen by the same committed reader.
A third side is the floor that notes each event in PostgreSQL before it handles it, as exactly once needs it.

The two sides take turns every few seconds and a round adds up their windows, so that a disk or a neighbour
that is slow for a while is so for both.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import statistics
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path

from _hops import (
    BATCH_MAX,
    MODEL,
    Window,
    at_the_end,
    handle_by_hand,
    now_ns,
    prepare_by_hand,
    publish_by_hand,
    read_by_hand,
    ready,
    schedule,
    serve,
    texts,
    turns,
)
from _measure import ROOT, median, options, ratio, report, say, scratch

from headrace import App, Event, Model
from headrace.journal.reader import PAGE_ROWS_MAX, Reader
from headrace.settings import Settings

TARGETS = {"sqlite": {"ratio": "<= 0.7"}, "kafka": {"ratio": "<= 1.3"}}
WINDOW_S = 2.0
#: Events of a window that do not count: caches fill, idle processes wake up.
WARM_S = 0.4
PATIENCE_S = 60.0


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


def handle_ours(path: Path, window: Window, pipe: Connection) -> None:
    """Second process."""
    del window
    app = app_of("support", path)

    @app.handler(model=Model.onnx(MODEL, batch_max=BATCH_MAX))
    async def route(ticket: Ticket, model) -> Routed:
        label = await model(ticket.text)
        return Routed(customer=ticket.customer, intent=label.name, sent_ns=ticket.sent_ns)

    asyncio.run(serve(app, pipe))


class Seen:
    """Collects what a window took, and tells it when the last event was seen."""

    def __init__(self, window: Window, pipe: Connection) -> None:
        self._window, self._pipe = window, pipe
        self._took: list[int] = []

    def __call__(self, routed: Routed) -> None:
        """Note one result; what was published before the windows has no time."""
        if not routed.sent_ns:
            return
        self._took.append(now_ns() - routed.sent_ns)
        if len(self._took) == self._window.events:
            self._pipe.send(self._took)
            self._took = []


def read_ours(path: Path, window: Window, pipe: Connection) -> None:
    """Third process: it follows the journal as ``headrace tail --follow`` does, and writes nothing either."""

    async def follow() -> None:
        reader, seen, after = Reader(str(path / "headrace.db")), Seen(window, pipe), 0
        over, woken = asyncio.Event(), asyncio.Event()
        watch = reader.watch(woken.set, topic="routed")
        ready(pipe)
        at_the_end(pipe, lambda: (over.set(), woken.set()))
        while not over.is_set():
            page = reader.events(after=after, topic="routed")
            for event in page:
                seen(Routed.model_validate_json(event.payload))
            after = page[-1].envelope.offset if page else after
            if len(page) == PAGE_ROWS_MAX:
                continue
            await woken.wait()
            woken.clear()
        watch.close()
        reader.close()

    asyncio.run(follow())


def handle_results(path: Path, window: Window, pipe: Connection) -> None:
    """Third process, where a handler sees the result: it commits, so this is more than the floor does."""
    app, seen = app_of("desk", path), Seen(window, pipe)

    @app.handler
    async def see(routed: Routed) -> None:
        seen(routed)

    asyncio.run(serve(app, pipe))


# --- both, in turns -----------------------------------------------------------------------------

Part = Callable[[Path, Window, Connection], None]
#: publisher, handler, reader
Sides = dict[str, tuple[Callable[[Path], None], tuple[Part, Part, Part]]]
SIDES: Sides = {
    "floor": (prepare_by_hand, (publish_by_hand, handle_by_hand, read_by_hand)),
    "ours": (prepare_ours, (publish_ours, handle_ours, read_ours)),
    "ours_handled": (prepare_ours, (publish_ours, handle_ours, handle_results)),
}


@contextmanager
def on_kafka(folder: Path) -> Iterator[Sides]:
    """Start a broker and a PostgreSQL; yields the sides that work on them."""
    import _kafka_hops as hops

    sys.path.insert(0, str(ROOT))
    from tests.services.kafka import Broker
    from tests.services.postgres import Postgres
    from tests.services.server_properties import LONG_RUNNING

    by_hand = (hops.publish_by_hand, hops.handle_by_hand, hops.read)
    indexed = (hops.publish_by_hand, hops.handle_by_hand_with_index, hops.read)
    ours = (hops.publish_ours, hops.handle_ours, hops.read)
    with Broker(LONG_RUNNING) as broker, Postgres() as postgres:
        sides = {"floor": by_hand, "indexed": indexed, "ours": ours}
        for side in sides:
            hops.tell(folder, side, broker.bootstrap, postgres.url)
        yield {side: (hops.prepare, parts) for side, parts in sides.items()}


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
def chain(sides: Sides, name: str, folder: Path, window: Window, warm: int) -> Iterator[Chain]:
    """Start the processes of a side; they end with the block."""
    prepare, parts = sides[name]
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


def measure(folder: Path, given: Namespace, known: Sides, sides: dict[str, str]) -> dict[str, object]:
    """Return the result; ``sides`` are the names of the sides, and what their figures begin with."""
    rounds, seconds, rate = given.rounds, given.seconds, given.rate
    windows = max(1, round(seconds / WINDOW_S))
    length_s = seconds / windows
    window, warm = Window(int((WARM_S + length_s) * rate), rate), int(WARM_S * rate)
    took: dict[str, list[dict[int, float]]] = {name: [] for name in sides}
    late: dict[str, list[float]] = {name: [] for name in sides}
    say(f"{rounds} rounds of {windows} windows of {length_s:g} s for each side")
    with ExitStack() as stack:
        chains = {name: stack.enter_context(chain(known, name, folder, window, warm)) for name in sides}
        for turn in range(rounds):
            for number in range(windows):
                for name in list(chains) if number % 2 == 0 else reversed(chains):
                    chains[name].run(window)
            for name, one in chains.items():
                latencies, lateness = one.take()
                took[name].append(quantiles(latencies))
                late[name].append(quantiles(lateness)[95])
            told = ", ".join(
                f"{name} {took[name][-1][50]:.2f} / {took[name][-1][95]:.2f} ms" for name in took
            )
            say(f"round {turn + 1} of {rounds}: p50 / p95 {told}")
    result: dict[str, object] = {}
    for name, prefix in sides.items():
        for part in (50, 95, 99):
            result[f"{prefix}p{part}_ms"] = median([one[part] for one in took[name]])
        for part, key in ((95, f"{prefix}ratio"), (50, f"{prefix}ratio_p50")):
            if name != "floor":
                result[key] = ratio([one[part] for one in took[name]], [one[part] for one in took["floor"]])
    return result | {
        "publisher_late_p95_ms": median(late["ours"]),
        "floor_publisher_late_p95_ms": median(late["floor"]),
        "rate_per_s": rate,
        "seconds": seconds,
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    given = options(__doc__, rounds=5, seconds=20.0, rate=500, handled=0, journal="sqlite")
    sides = {"floor": "floor_", "ours": ""} | ({"ours_handled": "handled_"} if given.handled else {})
    if given.journal == "kafka":
        sides["indexed"] = "indexed_"
    with ExitStack() as stack:
        folder = stack.enter_context(scratch(given.folder))
        known = stack.enter_context(on_kafka(folder)) if given.journal == "kafka" else SIDES
        result = measure(folder, given, known, sides)
    report(result, TARGETS[given.journal], as_json=given.json)


if __name__ == "__main__":
    main()
