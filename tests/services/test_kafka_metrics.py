"""What a worker on a real Kafka knows of its lag and of partitions without an owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from tests.services.kafka import Broker

from headrace import App, Event
from headrace.lens.counts import Counts
from headrace.lens.health import Health
from headrace.ports import Survey
from headrace.settings import Settings
from headrace.world import SystemClock

PATIENCE_S = 60.0


class LagAsked(Event, topic="asked", key="who"):
    """What is published."""

    who: str


def app_of(settings: Settings, gate: asyncio.Event) -> App:
    """Return an app whose handler waits at a gate."""
    app = App("desk", settings=settings)

    @app.handler(concurrency=1)
    async def tell(asked: LagAsked) -> None:
        await gate.wait()

    return app


async def until(health: Health, fits: Callable[[Survey], bool]) -> None:
    """Wait until a look at the one handler fits."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            if health.looks and fits(health.looks[0].survey):
                return
            await asyncio.sleep(0.1)


def test_lag_and_owners_on_kafka(tmp_path: Path) -> None:
    """Partitions without a member of the group have no owner; with one the lag falls to what is not taken."""

    async def main(settings: Settings) -> None:
        gate, stop, clock = asyncio.Event(), asyncio.Event(), SystemClock()
        app, health, counts = app_of(settings, gate), Health(clock, 60_000), Counts(clock)
        async with app:
            for n in range(100):
                await app.publish([LagAsked(who=f"c{(n * 20 + m) % 40}") for m in range(20)])
            worker = app.worker(observer=counts)
            await worker.start()
            watching = asyncio.create_task(health.watch(worker.servers))
            await until(health, lambda one: one == Survey({}, 16))
            assert "16 partitions have no owner" in health.ready().reasons[0]
            running = asyncio.create_task(worker.run(stop))
            await until(health, lambda one: sum(one.lag.values()) > 500 and one.unowned == 0)
            assert health.ready().good
            gate.set()
            # Behind the last event of a unit stands the marker of its transaction.
            await until(health, lambda one: len(one.lag) == 16 and sum(one.lag.values()) <= 16)
            stop.set()
            await running
            watching.cancel()
            assert sum(counts.counted().handled.values()) == 2_000
            assert worker.servers[0].consumer.rebalances >= 1

    with Broker() as node:
        index = str(tmp_path / "index.db")
        asyncio.run(main(Settings(journal=f"kafka://{node.bootstrap}", index=index, lease_ms=6_000)))
