"""A journal on Kafka on which something has happened: for tests of those who look into it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from tests.services.desks import serving
from tests.unit.terminal import Ran, apart

from headrace import App, Event, RetryPolicy
from headrace.cli.access import reading
from headrace.settings import Settings

PATIENCE_S = 60.0
QUICK = RetryPolicy(attempts_max=2, backoff_first_ms=1, backoff_max_ms=5)
#: Of what was published once: handled, dead; published again; taken by other content; and not handled yet.
HANDLED, DEAD, COPIES, CONFLICTS, WAITING = 60, 3, 20, 2, 7


class Order(Event, topic="orders", key="who"):
    """What is published."""

    who: str
    number: int


class Parcel(Event, topic="parcels", key="who"):
    """What follows from it."""

    who: str
    number: int


@dataclass(frozen=True)
class Stage:
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
    async with asyncio.timeout(PATIENCE_S), reading(stage.journal, stage.index) as look:
        while True:
            found = [one for one in await look.progress() if one.handler == stage.handler]
            if found and (found[0].done, found[0].dead) == (done, dead):
                return
            await asyncio.sleep(0.2)
