"""What a long history costs: the same work on a small and on a large journal.

Two journals are built beforehand, by publishing.  Then a worker on each takes turns: a slice of events is
published and handled on one, then on the other.  `drop` is how much slower the large one is, as the median
over the rounds.  Each journal has a process of its own, so that its memory shows.  Flushing is left out
(``durability="normal"``): it costs the same on both and would hide what grows.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from _measure import Side, calm_collector, in_turns, median, options, ratio, report, say, scratch

from headrace import App, Event
from headrace.ports import BatchReport
from headrace.settings import Settings

TARGETS = {"drop": "< 0.15"}
SMALL = 10_000
PUBLISH_MAX = 10_000
PATIENCE_S = 600.0
TEXT = "how would you say fly in italian"


class Ticket(Event, topic="tickets", key="customer"):
    """What is published."""

    customer: str
    text: str


class Routed(Event, topic="routed", key="customer"):
    """What follows from it."""

    customer: str
    intent: str


class Slice(NamedTuple):
    """What one slice took."""

    publish_s: float
    handle_s: float
    rss_mib: float


class Progress:
    """Counts committed events, and tells when enough are."""

    def __init__(self) -> None:
        self._left = 0
        self.reached = asyncio.Event()

    def expect(self, events: int) -> None:
        """Begin to count."""
        self._left = events
        self.reached.clear()

    def committed(self, report: BatchReport) -> None:
        """Look at one committed outcome."""
        self._left -= len(report.latencies_us)
        if self._left <= 0:
            self.reached.set()


# --- the process of one journal -----------------------------------------------------------------


def app_on(path: Path) -> App:
    """Return the app; its handler begins after the events that are there."""
    app = App("support", settings=Settings(journal=str(path), durability="normal"))

    @app.handler(start="latest")
    async def route(ticket: Ticket) -> Routed:
        return Routed(customer=ticket.customer, intent="translate")

    return app


CUSTOMERS = [f"customer-{number}" for number in range(997)]


def tickets(count: int, first: int = 0) -> list[Event]:
    """Return events of many customers."""
    named = itertools.islice(itertools.cycle(CUSTOMERS), first % len(CUSTOMERS), None)
    return [Ticket(customer=customer, text=TEXT) for customer in itertools.islice(named, count)]


def build(path: Path, size: int) -> None:
    """Publish the history, much at a time."""

    async def fill() -> None:
        async with app_on(path) as app:
            for begin in range(0, size, PUBLISH_MAX):
                await app.publish(tickets(min(PUBLISH_MAX, size - begin), begin))

    asyncio.run(fill())


def work(path: Path, events: int, pipe: Connection) -> None:
    """Publish and handle a slice whenever it is asked for."""

    async def slices() -> None:
        loop, asked, progress = asyncio.get_running_loop(), asyncio.Event(), Progress()
        stop = asyncio.Event()
        async with app_on(path) as app:
            running = asyncio.create_task(app.run(stop, observer=progress))
            calm_collector()
            loop.add_reader(pipe.fileno(), asked.set)
            pipe.send(None)
            while True:
                await asked.wait()
                try:
                    pipe.recv()
                except EOFError:
                    break
                asked.clear()
                pipe.send(await one_slice(app, progress, events))
            loop.remove_reader(pipe.fileno())
            stop.set()
            await running

    asyncio.run(slices())


async def one_slice(app: App, progress: Progress, events: int) -> Slice:
    """Publish, and wait until all that was published is handled and committed."""
    made = tickets(events)
    progress.expect(events)
    begin = time.perf_counter()
    await app.publish(made)
    published = time.perf_counter()
    await progress.reached.wait()
    return Slice(published - begin, time.perf_counter() - published, rss_mib())


def rss_mib() -> float:
    """Return the memory of this process that is in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096 / 2**20


# --- the two of them, in turns ------------------------------------------------------------------


class Journal:
    """A journal and the process that works on it."""

    def __init__(self, pipe: Connection, events: int) -> None:
        self._pipe, self._events = pipe, events
        self.slices: list[Slice] = []

    async def side(self) -> float:
        """Return the events a second of one slice."""
        self._pipe.send(None)
        if not self._pipe.poll(PATIENCE_S):
            raise TimeoutError("a journal does not answer")
        self.slices.append(self._pipe.recv())
        return self._events / sum(self.slices[-1][:2])


@contextmanager
def journal(path: Path, size: int, events: int) -> Iterator[Journal]:
    """Build a journal and start its worker; both end with the block."""
    context = multiprocessing.get_context("spawn")
    begin = time.perf_counter()
    builder = context.Process(target=build, args=(path, size))
    builder.start()
    builder.join()
    if builder.exitcode:
        raise RuntimeError("the journal could not be built")
    took_s = time.perf_counter() - begin
    say(f"{size:,} events published in {took_s:.1f} s, {path.stat().st_size / 2**20:,.0f} MiB")
    mine, theirs = context.Pipe()
    worker = context.Process(target=work, args=(path, events, theirs), daemon=True)
    worker.start()
    theirs.close()
    try:
        mine.recv()
        yield Journal(mine, events)
    finally:
        mine.close()
        worker.join(20)
        worker.kill()


def measure(folder: Path, rounds: int, sizes: tuple[int, int], events: int) -> dict[str, object]:
    """Return the result."""
    with ExitStack() as stack:
        both = {
            str(size): stack.enter_context(journal(folder / f"{size}.db", size, events)) for size in sizes
        }
        sides: dict[str, Side] = {name: one.side for name, one in both.items()}
        asyncio.run(in_turns(sides, 2))  # warm
        warm = {name: one.slices[-1] for name, one in both.items()}
        for one in both.values():
            one.slices.clear()
        asyncio.run(in_turns(sides, rounds))
    small, large = (one.slices for one in both.values())
    return {
        "sizes": list(sizes),
        "handled_per_s": {name: rate(one.slices, events) for name, one in both.items()},
        "drop": 1 - ratio([sum(one[:2]) for one in small], [sum(one[:2]) for one in large]),
        "rss_mib": {
            # SQLite's page cache (64 MiB) fills in the beginning: growth would show from the middle on.
            name: {
                "start": warm[name].rss_mib,
                "middle": one.slices[len(one.slices) // 2].rss_mib,
                "end": one.slices[-1].rss_mib,
            }
            for name, one in both.items()
        },
        "drop_publishing": 1 - ratio([one.publish_s for one in small], [one.publish_s for one in large]),
        "drop_handling": 1 - ratio([one.handle_s for one in small], [one.handle_s for one in large]),
        "slice_events": events,
        "sizes_at_end": [size + 2 * events * (rounds + 2) for size in sizes],
        "rounds": rounds,
    }


def rate(slices: list[Slice], events: int) -> float:
    """Return the events published and handled in a second."""
    return median([events / (one.publish_s + one.handle_s) for one in slices])


def main() -> None:
    """Measure and print."""
    given = options(__doc__, rounds=21, events=2_000_000, slice=2_000)
    sizes = (min(SMALL, given.events // 2), given.events)
    with scratch(given.folder) as folder:
        result = measure(folder, given.rounds, sizes, given.slice)
    report(result, TARGETS, as_json=given.json)


if __name__ == "__main__":
    main()
