"""Replays on a real Kafka that follow live work, in several processes, and beside what changes under them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from msgspec import structs
from tests.services.desks import Bench, serving, until
from tests.services.replaying import NEW, lived, order, ran, replayed, side, told, worker

from headrace import errors
from headrace.app import World
from headrace.journal.index.sqlite_view import SqliteView
from headrace.journal.kafka import letters
from headrace.journal.kafka.allotter import Allotments
from headrace.journal.kafka.draft import Draft, Drafts
from headrace.ports import VersionInfo, VersionOffer
from headrace.ports.replay import Replay
from headrace.runtime.replay import ReplayWorker
from headrace.world import SystemChance


class Longest(SystemChance):
    """Every wait is as long as it can be."""

    def unit(self) -> float:
        """Return what is drawn."""
        return 1.0


@asynccontextmanager
async def following(bench: Bench) -> AsyncGenerator[ReplayWorker]:
    """Have a worker follow what is handled live, until the end of the block."""
    stop = asyncio.Event()
    async with bench.app(version=NEW) as app:
        one = worker(bench, app, follow=True)
        assert isinstance(await one.begin(), Replay)
        running = asyncio.create_task(one.until_done(stop, lambda _: None))
        try:
            yield one
        finally:
            stop.set()
            await running


async def caught_up(bench: Bench, numbers: set[int]) -> None:
    """Wait until the side has results of these events."""

    async def all_there() -> bool:
        return numbers <= {*await side(bench)}

    await until(all_there)


async def test_what_is_redriven_behind_it_is_left_to_a_later_order(broker: str, tmp_path: Path) -> None:
    """It goes on only: an event of before that it was allotted afterwards would never have its turn."""
    bench = Bench(broker, tmp_path)
    bench.broken |= {3}
    await lived(bench, range(10))
    patient = Bench(broker, tmp_path, name=bench.name, attempts_max=2, backoff_ms=10_000)
    patient.broken |= {3}
    live = patient.app()
    live.place_in(World(chance=Longest()))
    async with following(bench) as shadow:
        await caught_up(bench, {*range(10)} - {3})
        async with serving(live) as app, bench.log() as log:
            await letters.redrive(log, await bench.letters())

            async def open_again() -> bool:
                return bool((await bench.positions())["open"])

            await until(open_again)
            await bench.publish(app, range(10, 15))
            await caught_up(bench, {*range(10, 15)})
            assert await open_again(), "it was allotted more while the redriven event was open"
            patient.broken.clear()

            async def done() -> bool:
                return (await bench.positions())["done"] == 15

            await until(done)
            await bench.publish(app, range(15, 20))
            await caught_up(bench, {*range(15, 20)})
        state = await shadow.state()
        assert (state.allotted, state.done) == (19, 19)
    bench.broken.clear()
    assert (await ran(bench)).done == 1
    assert await side(bench) == list(range(20))


async def test_what_comes_is_counted_by_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every second anew: a pass over all ids there are would take longer than that one day."""
    await lived(bench, range(5))

    async def counts(*_: object) -> list[int]:
        raise AssertionError("it was not to be counted in the index")

    async with serving(bench.app()) as app, following(bench) as shadow:
        await caught_up(bench, {*range(5)})
        monkeypatch.setattr(SqliteView, "counts", counts)
        ids = [uuid4() for _ in range(5)]
        for number in (*range(5, 10), *range(5, 10)):
            await app.publish(bench.sent(who=f"c{number}", number=number), event_id=ids[number - 5])
        await caught_up(bench, {*range(10)})
        assert (await shadow.state()).allotted == 10


async def test_a_name_too_long_is_refused_before_it_is_allotted_anything(broker: str, tmp_path: Path) -> None:
    """What it was allotted nobody could handle: it would be lost for the version."""
    bench = Bench(broker, tmp_path, name="n" * 160)
    await lived(bench, range(1))
    with pytest.raises(errors.ReplayRefused, match="too long a name"):
        await replayed(bench)
    assert await told(bench, f"headrace.{bench.handler}.replays") == []


async def test_a_log_that_ends_before_what_was_allotted_is_told(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The brokers have lost records: waiting for them would say nothing, and never end."""
    await lived(bench, range(5))
    stop = asyncio.Event()
    async with bench.app(version=NEW) as app, bench.log() as log:
        one = worker(bench, app)
        assert isinstance(await one.begin(), Replay)
        allotments = Allotments(log, bench.handler)
        (known,) = await allotments.read()
        ended = structs.replace(known, parts={at: [(0, 1_000)] for at in range(16)})
        await (await allotments.writer()).write(ended)
        await one.finish()
        one = worker(bench, app)
        assert isinstance(await one.begin(), Replay)
        running = asyncio.create_task(one.until_done(stop, lambda _: None))

        async def said() -> bool:
            return any("999 was there before" in one.message for one in caplog.records)

        await until(said)
        stop.set()
        await running


async def test_replays_of_other_versions_do_not_hinder_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan stands while others are allotted what it does not ask for, as shadows are every second."""
    await lived(bench, range(6))
    plan, made = Drafts.draft, 0
    async with bench.app(version=NEW) as app, bench.app(version="3") as beside:
        one, other = worker(bench, app), worker(bench, beside)

        async def draft(drafts: Drafts, version: VersionInfo, *rest: Any) -> Draft:
            nonlocal made
            found = await plan(drafts, version, *rest)
            if version.name == NEW:
                made += 1
                wanted = order(bench, again=f"n{made}")
                begun = await other._journal.replays().begin(wanted, VersionOffer(bench.handler, "3"))
                assert isinstance(begun, Replay)
            return found

        monkeypatch.setattr(Drafts, "draft", draft)
        begun = await one.begin()
        assert isinstance(begun, Replay)
        assert (begun.plan.allotted, made) == (6, 1)
        for each in (one, other):
            await each.finish()


async def test_a_rebalance_disturbs_none_that_has_caught_up(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Partitions that were read to their end and given away are no longer read on by the one who had them."""
    await lived(bench, range(40))
    async with serving(bench.app()) as app, following(bench) as first:
        await caught_up(bench, {*range(40)})
        async with following(bench) as second:

            async def shared() -> bool:
                held = [one.servers[0].consumer.held() for one in (first, second)]
                return all(held) and sum(held) == 16

            await until(shared)
            await bench.publish(app, range(40, 80))
            await caught_up(bench, {*range(80)})
    assert await side(bench) == list(range(80))
    assert [one.message for one in caplog.records if "Trying again" in one.message] == []
