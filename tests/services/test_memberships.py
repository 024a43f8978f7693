"""A worker that leaves its group and joins it again: what it had in hand before is no longer its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.services.kafka import Broker

from headrace import App, Event
from headrace.ports import Batch, Consumer, Outcome, VersionInfo
from headrace.settings import Settings

PATIENCE_S = 60.0


class MemberAsked(Event, topic="asked", key="who"):
    """What is published."""

    who: str


async def taken(consumer: Consumer, version: VersionInfo) -> Batch:
    """Join, and take what there is."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            await consumer.balance()
            batch = await consumer.take(100, version)
            if batch is not None:
                return batch
            await asyncio.sleep(0.1)


def test_an_outcome_of_an_earlier_membership_is_stale(tmp_path: Path) -> None:
    """Numbers of assignments are counted on: an outcome from before is dropped, not taken for a new one."""

    async def main(settings: Settings) -> None:
        app = App("desk", settings=settings)

        @app.handler
        async def tell(asked: MemberAsked) -> None: ...

        async with app:
            await app.publish([MemberAsked(who=f"c{n}") for n in range(20)])
            worker = app.worker()
            await worker.start()
            (server,) = worker.servers
            serving, consumer = server.versions.serving, server.consumer
            assert serving is not None
            version = serving.plan.version
            before = await taken(consumer, version)
            await consumer.release()
            again = await taken(consumer, version)
            assert {row[0] for row in again.rows} <= {row[0] for row in before.rows}
            (stale,) = await consumer.settle([(before, Outcome(done=list(before.rows)))])
            assert stale.stale == {row[0] for row in before.rows}
            (fresh,) = await consumer.settle([(again, Outcome(done=list(again.rows)))])
            assert fresh.stale == frozenset()
            await worker.finish()

    with Broker() as node:
        index = str(tmp_path / "index.db")
        asyncio.run(main(Settings(journal=f"kafka://{node.bootstrap}", index=index, lease_ms=6_000)))
