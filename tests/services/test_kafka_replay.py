"""Replays on a real Kafka: history goes through a version once, live and replayed together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.desks import Bench, serving, until
from tests.services.kafka import Broker
from tests.services.replaying import NEW, planned, replayed, side, told, versions

from headrace.ports.replay import ReplayPlan, ReplayState


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """One broker for all, by its address."""
    with Broker() as node:
        yield node.bootstrap


@pytest.fixture
def bench(broker: str, tmp_path: Path) -> Bench:
    """An app that tries once."""
    return Bench(broker, tmp_path)


async def lived(bench: Bench, count: int, dead: int = 0) -> None:
    """Publish events and have the first version handle them."""
    async with serving(bench.app()) as app:
        await bench.publish(app, range(count))

        async def closed() -> bool:
            found = await bench.positions()
            return found["done"] + found["dead"] == count

        await until(closed)
        assert (await bench.positions())["dead"] == dead


async def test_history_goes_through_a_version_once(bench: Bench) -> None:
    """Every event that live has handled, once, beside the live results; a second order adds nothing."""
    await lived(bench, 40)

    assert (await planned(bench)).allotted == 40
    assert await side(bench) == []
    state = await replayed(bench)
    assert isinstance(state, ReplayState)
    assert (state.allotted, state.done, state.emitted, state.dead, state.complete) == (40, 40, 40, 0, True)
    assert versions(await told(bench)) == Counter({(number, NEW): 1 for number in range(40)})
    assert {one.headers["ce_side"] for one in await told(bench)} == {b"trial"}
    assert await bench.results() == list(range(40))
    for wanted in ({}, {"side": "other"}, {"side": None}):
        found = await replayed(bench, **wanted)
        assert isinstance(found, ReplayPlan)
        assert (found.allotted, found.skipped) == (0, {"replayed": 40})
    assert len(await side(bench)) == 40
    assert await bench.violations() == []
