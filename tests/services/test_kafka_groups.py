"""Workers that come and go on a real Kafka: nothing is lost, doubled or out of the order of its key."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.services.desks import Bench, serving, until
from tests.services.kafka import Broker
from tests.services.reading import Found, committed

from headrace import App, Event, errors
from headrace.settings import Settings

EVENTS = 900


class Called(Event, topic="called", key="who"):
    """What is published."""

    who: str
    number: int


class Answered(Event, topic="answered", key="who"):
    """What follows from it."""

    who: str
    number: int


@pytest.fixture
def broker() -> Iterator[str]:
    """A broker for each test: topics have fixed names."""
    with Broker() as node:
        yield node.bootstrap


def app_of(url: str, index: Path) -> App:
    """Return one worker's app."""
    settings = Settings(journal=url, index=str(index), lease_ms=6_000)
    app = App("calls", settings=settings, events=[Called, Answered])

    @app.handler
    async def answer(called: Called) -> Answered:
        await asyncio.sleep(0.001)
        return Answered(who=called.who, number=called.number)

    return app


async def test_an_index_that_goes_while_retries_are_taken_holds_up_none(broker: str, tmp_path: Path) -> None:
    """Retries of several partitions are due, the index fails between them: all of them run in the end."""
    bench = Bench(broker, tmp_path, attempts_max=9, backoff_ms=300)
    bench.broken |= set(range(40))
    async with serving(bench.app()) as app:
        index: Any = app.journal.log.index  # type: ignore[attr-defined]
        note, calls, all_due = index.try_again, count(), asyncio.Event()

        async def every_second(*told: Any) -> None:
            if not all_due.is_set() or next(calls) % 2:
                raise errors.JournalUnavailable(path="index")
            await note(*told)

        index.try_again = every_second
        await bench.publish(app, range(40))

        async def failed() -> bool:
            return await bench.positions() == {"taken": 40, "open": 40}

        await until(failed)
        bench.broken.clear()
        all_due.set()

        async def complete() -> bool:
            return await bench.results() == list(range(40))

        await until(complete)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_workers_come_and_go_under_load(protocol: str, broker: str, tmp_path: Path) -> None:
    """A second and a third join while events are handled, the first leaves, the last takes all."""
    url, index = f"kafka://{broker}?group.protocol={protocol}", tmp_path / "index.db"

    async def publish(app: App) -> None:
        for number in range(EVENTS):
            await app.publish(Called(who=f"c{number % 30}", number=number))
            await asyncio.sleep(0.005)

    async def answers() -> list[Found]:
        return await asyncio.to_thread(committed, broker, "answered")

    async with AsyncExitStack() as last:
        async with AsyncExitStack() as others:
            first = await others.enter_async_context(serving(app_of(url, index)))
            publishing = asyncio.create_task(publish(first))
            for count, stack in ((150, others), (300, last)):

                async def reached(count: int = count) -> bool:
                    return len(await answers()) >= count

                await until(reached)
                await stack.enter_async_context(serving(app_of(url, index)))
            await publishing

        async def complete() -> bool:
            return len(await answers()) >= EVENTS

        await until(complete)
    found = await answers()
    assert Counter(one.body()["number"] for one in found) == Counter(range(EVENTS))
    lines: dict[str, list[int]] = defaultdict(list)
    for one in found:
        lines[one.body()["who"]].append(one.body()["number"])
    assert all(line == sorted(line) for line in lines.values())
