"""Transactions that the brokers end, and clocks that differ: every result is there once all the same."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from tests.services.desks import Bench, serving
from tests.services.kafka import Broker, Node

from headrace.app import World
from headrace.journal.kafka import produce
from headrace.world import SystemClock

TIMED_OUT_MS = 2_000
EVENTS = 4_000
HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Node]:
    """One broker; each test has topics of its own."""
    with Broker() as node:
        yield node


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the ids of the transactional producers, as they are made."""
    found = list[str]()

    def noted(config: dict[str, Any]) -> Producer:
        if "transactional.id" in config:
            found.append(config["transactional.id"])
        return Producer(config)

    monkeypatch.setattr(produce, "Producer", noted)
    return found


def fence(broker: Node, names: list[str]) -> None:
    """Do what a second producer of the same names does: the first is refused from then on."""
    for name in names:
        Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": name}).init_transactions(30)


async def test_a_producer_that_is_fenced_is_replaced(broker: Node, tmp_path: Path, made: list[str]) -> None:
    """Its worker goes on with a new one; what it had in hand is neither lost nor done twice."""
    bench = Bench(broker.bootstrap, tmp_path)
    async with serving(bench.app()) as app:
        await bench.publish(app, range(20))
        await bench.handled(20)
        before = list(made)
        load = asyncio.create_task(bench.publish(app, range(20, 120)))
        await asyncio.to_thread(fence, broker, before)
        await load
        await bench.publish(app, range(120, 140))  # should it have handled all the others before
        await bench.handled(140)
    assert len(made) > len(before) > 0
    assert await bench.violations() == []


class SleepOnce:
    """Keeps the thread that commits from going on, once, between two steps of a transaction."""

    def __init__(self, point: str, seconds: float) -> None:
        self._point, self._seconds = point, seconds
        self.armed = False

    def at(self, point: str) -> None:
        """Sleep here, or pass."""
        if self.armed and point == self._point:
            self.armed = False
            time.sleep(self._seconds)


@pytest.mark.parametrize("point", ["settle.records", "settle.offsets"])
async def test_a_transaction_that_times_out_is_done_again(
    broker: Node, tmp_path: Path, made: list[str], monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """The brokers abort it; its results are produced once more, by a new producer."""
    monkeypatch.setattr(produce, "TRANSACTION_MS_MAX", TIMED_OUT_MS)
    bench, faults = Bench(broker.bootstrap, tmp_path), SleepOnce(point, 3 * TIMED_OUT_MS / 1_000)
    async with serving(bench.app(faults)) as app:
        await bench.publish(app, range(20))
        await bench.handled(20)
        before = list(made)
        faults.armed = True
        await bench.publish(app, range(20, 60))
        await bench.handled(60)
        assert not faults.armed
    assert len(made) > len(before)
    assert await bench.violations() == []


class Slow:
    """Makes each transaction take a while, as those of many records do."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def at(self, point: str) -> None:
        """Sleep in the thread that commits."""
        if point == "settle.records":
            time.sleep(self._seconds)


async def test_what_is_claimed_while_an_outcome_is_written_leaves_its_partitions_alone(
    broker: Node, tmp_path: Path
) -> None:
    """New events of others are claimed; what is to be tried again of these waits, else it is done twice."""
    bench = Bench(broker.bootstrap, tmp_path, attempts_max=200, backoff_ms=20)
    bench.broken |= set(range(0, EVENTS, 5))
    async with serving(bench.app(Slow(0.1))) as app:
        for start in range(0, EVENTS, 500):
            numbers = range(start, start + 500)
            await app.publish([bench.sent(who=f"c{number}", number=number) for number in numbers])
        for still in (10, 50, 1):
            await asyncio.sleep(2.0)
            bench.broken -= set(range(0, EVENTS, still))
        await bench.handled(EVENTS)
    assert await bench.violations() == []


class Skewed(SystemClock):
    """A clock that is wrong."""

    def __init__(self, by_us: int) -> None:
        self._by_us = by_us

    def wall_us(self) -> int:
        """Return microseconds since 1970, give or take an hour."""
        return super().wall_us() + self._by_us

    def wall_ns(self) -> int:  # type: ignore[override]
        """Return nanoseconds since 1970, give or take an hour."""
        return time.time_ns() + self._by_us * 1_000


async def test_hosts_whose_clocks_differ_share_the_work(broker: Node, tmp_path: Path) -> None:
    """An hour before and behind: leases, retries and claims go by time spans, not by the time of day."""
    bench = Bench(broker.bootstrap, tmp_path, attempts_max=50, backoff_ms=50)
    bench.broken |= {5, 15, 25}
    async with AsyncExitStack() as stack:
        apps = list[Any]()
        for by_us in (HOUR_US, -HOUR_US):
            app = bench.app()
            app.place_in(World(clock=Skewed(by_us)))
            apps.append(await stack.enter_async_context(serving(app)))
        for number in range(60):
            await bench.publish(apps[number % 2], range(number, number + 1), who=f"c{number % 7}")
        await asyncio.sleep(1)
        bench.broken.clear()
        await bench.handled(60)
    assert await bench.violations() == []
