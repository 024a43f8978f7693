"""Order of a key in the runtime: under batching, retries, slow handlers and workers that come and go."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from tests.journal.journals import SqliteFile
from tests.journal.lab import SeededChance

from headrace import App, Event, RetryPolicy
from headrace.app import World
from headrace.runtime.worker import Worker
from headrace.testing import ManualClock, drain


class Item(Event, topic="items", key="key"):
    """The n-th event of its key."""

    key: str
    n: int


class Shop:
    """Handlers in one or two workers, and a record of when each event began and ended."""

    def __init__(self, folder: Path, turns: dict[tuple[str, int], list[int]]) -> None:
        self.folder, self.clock = folder, ManualClock()
        #: By event: for each failing attempt, and then for the one that succeeds, how many turns it takes.
        self.turns = {event: list(left) for event, left in turns.items()}
        #: Events that wait until a test lets them go on.
        self.gates: dict[tuple[str, int], asyncio.Event] = {}
        self.running: list[tuple[str, int]] = []
        self.ended: list[tuple[str, int]] = []
        self.workers: list[Worker] = []
        self.apps: list[App] = []

    async def handle(self, item: Item) -> None:
        """Take some turns of the loop; fail as long as attempts that fail are left."""
        event = (item.key, item.n)
        assert item.key not in {key for key, _ in self.running}, "two events of one key at once"
        self.running.append(event)
        try:
            if event in self.gates:
                await self.gates[event].wait()
            left = self.turns[event]
            for _ in range(left.pop(0)):
                await asyncio.sleep(0)
            if left:
                raise ValueError("not yet")
            self.ended.append(event)
        finally:
            self.running.remove(event)

    async def hire(self) -> None:
        """Start a further worker, on a connection of its own."""
        app = App("shop")
        policy = RetryPolicy(backoff_first_ms=5, backoff_max_ms=5)

        @app.handler(retry=policy, concurrency=3)
        async def handle(item: Item) -> None:
            await self.handle(item)

        world = World(clock=self.clock, chance=SeededChance(len(self.apps)))
        world.journal = SqliteFile().make(self.folder, world)
        app.place_in(world)
        await app.open()
        worker = app.worker()
        await worker.start(keep=False)
        self.apps.append(app)
        self.workers.append(worker)

    async def work(self, steps: Sequence[tuple[int, int, float]]) -> None:
        """Step one worker or the other, with some turns of the loop and some time in between."""
        for who, turns, seconds in steps:
            for server in self.workers[who % len(self.workers)].servers:
                await server.step()
            for _ in range(turns):
                await asyncio.sleep(0)
            self.clock.advance(seconds)

    async def close(self) -> None:
        """Finish everything and close."""
        servers = [server for worker in self.workers for server in worker.servers]
        for _ in range(3):  # a partition may be free at the end: one gives it up, the other takes it
            await drain(servers, self.clock)
            self.clock.advance(BALANCE_S)
        for worker, app in zip(self.workers, self.apps, strict=True):
            await worker.finish()
            await app.close()


#: Longer than from one balance to the next, shorter than a lease.
BALANCE_S = 3.0
TURNS = st.lists(st.integers(0, 12), min_size=1, max_size=3)
Steps = Sequence[tuple[int, int, float]]
STEPS = st.lists(
    st.tuples(st.integers(0, 1), st.integers(0, 6), st.sampled_from([0.0, 0.002, 0.011])), max_size=25
)


def numbered(keys: Sequence[str]) -> list[Item]:
    """Return one event per key, numbered within the key."""
    return [Item(key=key, n=keys[:at].count(key)) for at, key in enumerate(keys)]


async def play(shop: Shop, items: list[Item], cut: int, first: Steps, then: Steps) -> None:
    """Publish in two parts; a second worker comes in between."""
    await shop.hire()
    await shop.apps[0].publish(items[:cut])
    await shop.work(first)
    await shop.apps[0].publish(items[cut:])
    await shop.hire()
    await shop.work(then)
    await shop.close()


@given(
    keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    turns=st.lists(TURNS, min_size=12, max_size=12),
    cut=st.integers(0, 12),
    first=STEPS,
    then=STEPS,
)
def test_a_key_is_handled_in_order(keys, turns, cut, first, then) -> None:
    """Whatever fails or moves: of a key one event runs at a time, and they end in order."""
    items = numbered(keys)
    with tempfile.TemporaryDirectory() as folder:
        shop = Shop(Path(folder), {(item.key, item.n): turns[at] for at, item in enumerate(items)})
        asyncio.run(play(shop, items, cut, first, then))

    for key in set(keys):
        assert [n for one, n in shop.ended if one == key] == list(range(keys.count(key)))


def test_a_later_event_waits_for_a_retry_that_is_not_committed_yet(tmp_path: Path) -> None:
    """An event that failed beside others still in hand holds its key up from that moment on."""
    shop = Shop(tmp_path, {("a", 0): [0, 0], ("b", 0): [0], ("c", 0): [0], ("a", 1): [0]})

    async def main() -> None:
        shop.gates = {("a", 0): asyncio.Event(), ("c", 0): asyncio.Event()}
        await shop.hire()
        await shop.apps[0].publish([Item(key=key, n=0) for key in "abc"])
        await shop.work([(0, 3, 0.0), (0, 3, 0.0), (0, 3, 0.02), (0, 3, 0.0), (0, 3, 0.0)])
        assert shop.ended == [("b", 0)]  # committed; a and c are in hand
        await shop.apps[0].publish(Item(key="a", n=1))
        shop.gates["a", 0].set()
        for _ in range(5):
            await asyncio.sleep(0)  # it fails, and nothing is committed meanwhile
        await shop.work([(0, 3, 0.0)] * 3)
        shop.gates["c", 0].set()
        await shop.close()

    asyncio.run(main())

    assert [event for event in shop.ended if event[0] == "a"] == [("a", 0), ("a", 1)]
