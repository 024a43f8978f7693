"""``delivery="at_least_once"`` on a real Kafka: nothing is lost; what is there twice is handled once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.services.kafka import Broker
from tests.services.reading import committed

from headrace import App, Event, RetryPolicy
from headrace.errors import JournalUnavailable
from headrace.journal.kafka import consumer
from headrace.journal.kafka.deliver import Deliveries
from headrace.journal.kafka.produce import Out, Transactions
from headrace.settings import Settings

PATIENCE_S = 60.0
COUNT = 300


class LeastAsked(Event, topic="asked", key="who"):
    """What is published."""

    who: str
    number: int


class LeastTold(Event, topic="told", key="who"):
    """What follows from it."""

    who: str
    number: int


def app_of(settings: Settings, calls: list[int], delivered: list[int]) -> App:
    """Return an app of two steps; the first is content with at least once."""
    app = App("desk", settings=settings)

    @app.handler(delivery="at_least_once", retry=RetryPolicy(attempts_max=1))
    async def tell(asked: LeastAsked) -> LeastTold:
        calls.append(asked.number)
        if asked.number == 5:
            raise ValueError("not this one")
        return LeastTold(who=asked.who, number=asked.number)

    @app.handler
    async def hear(told: LeastTold) -> None:
        delivered.append(told.number)

    return app


async def served(app: App, numbers: range, done: Callable[[], bool]) -> None:
    """Publish, and serve until it is done."""
    stop = asyncio.Event()
    async with app:
        serving = asyncio.create_task(app.run(stop))
        await app.publish([LeastAsked(who=f"c{n % 30}", number=n) for n in numbers])
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if done():
                    break
                await asyncio.sleep(0.05)
        stop.set()
        await serving


def test_a_lost_answer_repeats_what_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs are there, the worker does not know: they come again under their ids, and are handled once."""
    whole, torn = Deliveries._deliver, list[int]()

    def deliver(self: Deliveries, records: Sequence[Out]) -> None:
        whole(self, records)
        if len(torn) < 2:
            torn.append(len(records))
            raise JournalUnavailable("the answer was lost", path="kafka")

    monkeypatch.setattr(Deliveries, "_deliver", deliver)
    calls, delivered = list[int](), list[int]()
    with Broker() as broker:
        settings = Settings(
            journal=f"kafka://{broker.bootstrap}", index=str(tmp_path / "i.db"), lease_ms=6_000
        )
        wanted = Counter(n for n in range(COUNT) if n != 5)
        asyncio.run(
            served(app_of(settings, calls, delivered), range(COUNT), lambda: len(delivered) >= COUNT - 1)
        )
        found = committed(broker.bootstrap, "told")
        (letter, *_) = committed(broker.bootstrap, "asked.dlq")
        # Another worker goes on behind the ledger: nothing is handled again.
        before = calls.copy()
        more = range(COUNT, COUNT + 50)
        asyncio.run(served(app_of(settings, calls, delivered), more, lambda: len(delivered) >= COUNT + 49))
    assert len(torn) == 2
    assert Counter(before) == Counter(range(COUNT)), "what is written again is not made again"
    ids = Counter(one.headers["ce_id"] for one in found)
    assert len(ids) == COUNT - 1
    assert max(ids.values()) > 1, "some are there twice"
    assert letter.body()["number"] == 5
    assert Counter(delivered) == wanted + Counter(more)
    assert Counter(calls[len(before) :]) == Counter(more)


def test_a_worker_that_stops_pays_in_spite_of_a_bad_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions that were not committed before are at the end, at the third try: nothing is handled again."""
    commit, refused = Transactions.commit, list[str]()

    async def unpaid(self: Transactions, *args: Any) -> None:
        if self._name.endswith("tell") and len(refused) < 2:
            refused.append(self._name)
            raise JournalUnavailable("not now", path="kafka")
        await commit(self, *args)

    monkeypatch.setattr(Transactions, "commit", unpaid)
    monkeypatch.setattr(consumer, "PAY_MS", 3_600_000.0)  # only at the end
    calls, delivered = list[int](), list[int]()
    with Broker() as broker:
        settings = Settings(journal=f"kafka://{broker.bootstrap}", index=str(tmp_path / "i.db"))
        for numbers in (range(20), range(20, 30)):
            after = numbers.stop - 1  # number 5 has no result
            asyncio.run(
                served(app_of(settings, calls, delivered), numbers, lambda: len(delivered) >= after)  # noqa: B023 - it is run at once
            )
    assert len(refused) == 2
    assert Counter(calls) == Counter(range(30))
