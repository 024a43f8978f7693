"""Commands that look into a journal on Kafka: the documents of SQLite, and what only a cluster has."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import UUID, uuid4

import pytest
from tests.services.desks import serving
from tests.services.kafka import Broker
from tests.services.postgres import Postgres
from tests.unit.terminal import Ran, apart

from headrace import App, Event, RetryPolicy
from headrace.cli.output import Exit
from headrace.settings import Settings

PATIENCE_S = 60.0
QUICK = RetryPolicy(attempts_max=2, backoff_first_ms=1, backoff_max_ms=5)
#: Of what was published once: handled, dead; published again; taken by other content; and not handled yet.
HANDLED, DEAD, COPIES, CONFLICTS, WAITING = 60, 3, 20, 2, 7
TERMS = ("waiting", "running", "parked", "done", "dead", "expired")


class Order(Event, topic="orders", key="who"):
    """What is published."""

    who: str
    number: int


class Parcel(Event, topic="parcels", key="who"):
    """What follows from it."""

    who: str
    number: int


class Stage(NamedTuple):
    """A journal on which something has happened."""

    journal: str
    index: str
    handler: str

    def run(self, *arguments: object, cwd: Path) -> Ran:
        """Run a command on it."""
        return apart(*arguments, "--journal", self.journal, "--index", self.index, cwd=cwd)

    def settings(self) -> Settings:
        """Return the settings of its apps."""
        return Settings(journal=self.journal, index=self.index, lease_ms=6_000)

    def app(self) -> App:
        """Return the app; some of its events cannot be handled."""
        app = App(self.handler.partition(".")[0], settings=self.settings(), events=[Order, Parcel])

        @app.handler(retry=QUICK)
        async def pack(order: Order) -> Parcel:
            if order.number < DEAD:
                raise ValueError(f"no box for {order.number}")
            return Parcel(who=order.who, number=order.number)

        return app


def order(number: int) -> Order:
    """Return one of the events."""
    return Order(who=f"c{number % 7}", number=number)


def event_id(number: int) -> UUID:
    """Return its id."""
    return UUID(int=number + 1 << 80 | 7 << 76 | 1 << 63)


async def play(stage: Stage) -> None:
    """Publish, some twice, some under a taken id; have it handled; publish more with the worker gone."""
    async with serving(stage.app()) as app:
        for number in range(HANDLED + DEAD):
            await app.publish(order(number), event_id=event_id(number))
        for number in range(COPIES):
            await app.publish(order(number + DEAD), event_id=event_id(number + DEAD))
        for number in range(CONFLICTS):
            await app.publish(
                Order(who=order(number + 5).who, number=-1 - number), event_id=event_id(number + 5)
            )
        await app.publish(order(1_000), event_id="mail-4711")
        await settled(stage, HANDLED + 1, DEAD + CONFLICTS)
    async with stage.app() as app:
        for number in range(WAITING):
            await app.publish(order(2_000 + number))


async def settled(stage: Stage, done: int, dead: int) -> None:
    """Wait until so many are closed, as the index and the ledger say."""
    from headrace.cli.access import reading

    async with asyncio.timeout(PATIENCE_S), reading(stage.journal, stage.index) as look:
        while True:
            found = [one for one in await look.progress() if one.handler == stage.handler]
            if found and (found[0].done, found[0].dead) == (done, dead):
                return
            await asyncio.sleep(0.2)


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def stage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A journal of either kind of index, once for all tests that only look."""
    name = f"shop{uuid4().hex[:8]}.pack"
    with Broker() as node:
        journal = f"kafka://{node.bootstrap}"
        if request.param == "sqlite":
            found = Stage(journal, str(tmp_path_factory.mktemp("index") / "index.db"), name)
            asyncio.run(play(found))
            yield found
            return
        with Postgres() as postgres:
            found = Stage(journal, postgres.url, name)
            asyncio.run(play(found))
            yield found


# --- status -----------------------------------------------------------------------------------


def test_status_adds_up(stage: Stage, tmp_path: Path) -> None:
    """Published is counted once whatever was published twice; each term is what was done to it."""
    ran = stage.run("status", "--json", cwd=tmp_path)

    assert (ran.code, ran.err) == (Exit.DONE, "")
    (one,) = ran.document["subscriptions"]
    assert ran.document["sound"] is True
    assert one["published"] == HANDLED + DEAD + CONFLICTS + 1 + WAITING == sum(one[term] for term in TERMS)
    assert [one[term] for term in TERMS] == [WAITING, 0, 0, HANDLED + 1, DEAD + CONFLICTS, 0]
    assert (one["handler"], one["topic"], one["lag"]) == (stage.handler, "orders", WAITING)
    assert (one["active_version"], one["trouble"], one["owners"]) == ("1", "no live worker", [])
    assert one["oldest_waiting_s"] > 0
    assert one["rebalances"] >= 1
    assert ran.document["topics"] == [
        {"name": "orders", "partitions": 16, "events": one["published"]},
        {"name": "parcels", "partitions": 16, "events": HANDLED + 1},
    ]


def test_status_as_text_says_so(stage: Stage, tmp_path: Path) -> None:
    """The equation, what is in the way, and what nobody handles."""
    ran = stage.run("status", "--verify", cwd=tmp_path)

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert "published = waiting + running + parked + done + dead + expired: holds" in ran.out
    assert "no live worker (1)" in ran.out
    assert f"topic parcels: {HANDLED + 1} events, and no handler" in ran.out
    assert "verify: clean" in ran.out
