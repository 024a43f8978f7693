"""Replays move with their journal from SQLite to a real Kafka: a version has an event once, there too."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

from tests.services.reading import committed
from tests.unit.terminal import apart

from headrace import App, Event, RetryPolicy
from headrace.ports.replay import Order, ReplayPlan, ReplayState
from headrace.runtime.replay import ReplayWorker
from headrace.settings import Settings

ALL, DEAD, SOME = 60, 7, 20
FINISHED, BEGUN, AGAIN = "whole", "begun", "again"


class MovedAsked(Event, topic="moved.asked", key="who"):
    """What is published."""

    who: str
    number: int


class MovedTold(Event, topic="moved.told", key="who"):
    """What follows from it."""

    who: str
    number: int


class Desk:
    """An app in a version, on either journal; it can be told to stop a replay on the way."""

    def __init__(self, settings: Settings, version: int) -> None:
        self.app = App("moved", settings=settings, events=[MovedAsked, MovedTold])
        self.stop, self.calls, self.calls_max = asyncio.Event(), 0, ALL * 2

        @self.app.handler(version=version, retry=RetryPolicy(attempts_max=1))
        async def tell(asked: MovedAsked) -> MovedTold:
            self.calls += 1
            if self.calls >= self.calls_max:
                self.stop.set()
            if asked.number == DEAD and version > 1:
                raise ValueError("dead")
            return MovedTold(who=asked.who, number=asked.number)

    async def replay(
        self, side: str, *, rate: float | None = None, **wanted: Any
    ) -> ReplayState | ReplayPlan:
        """Replay history, to its end or to where it is stopped."""
        async with self.app as app:
            order = Order(handler="moved.tell", topic="moved.asked", side=side, **wanted)
            one = ReplayWorker(app.worker(only=["moved.tell"]), order, rate=rate)
            begun = await one.begin()
            if isinstance(begun, ReplayPlan):
                await one.finish()
                return begun
            await one.until_done(self.stop, lambda _: None)
            return await one.state()


async def lived(path: Path) -> None:
    """Make a journal with a finished replay, a dead letter in it, one again, and one that was stopped."""
    settings = Settings(journal=str(path), lease_ms=1_000)
    first = Desk(settings, 1)
    async with first.app as app:
        await app.publish([MovedAsked(who=f"c{n % 9}", number=n) for n in range(ALL)])
        first.calls_max = ALL
        await asyncio.wait_for(app.run(first.stop), 60)
    whole = await Desk(settings, 2).replay(FINISHED)
    assert isinstance(whole, ReplayState)
    assert (whole.done, whole.dead, whole.complete) == (ALL - 1, 1, True)
    again = await Desk(settings, 2).replay(AGAIN, again="more", to_offset=SOME)
    assert (again.allotted, isinstance(again, ReplayState)) == (SOME, True)
    halfway = Desk(settings, 3)
    halfway.calls_max = SOME
    begun = await halfway.replay(BEGUN, rate=50)
    assert isinstance(begun, ReplayState)
    assert (begun.complete, SOME <= begun.done + begun.dead < ALL) == (False, True)


def told(broker: str, side: str) -> Counter[int]:
    """Return how many results of a side there are for each event."""
    return Counter(one.body()["number"] for one in committed(broker, f"moved.told.side.{side}"))


def test_replays_come_along(broker: str, tmp_path: Path) -> None:
    """Their counts and dead letters are the same; what is finished has nothing to do, the rest goes on."""
    path, url, index = tmp_path / "headrace.db", f"kafka://{broker}", tmp_path / "index.db"
    asyncio.run(lived(path))
    names = (
        "handler",
        "side",
        "again",
        "version",
        "allotted",
        "waiting",
        "done",
        "dead",
        "emitted",
        "complete",
    )

    def status(*where: str) -> list[Any]:
        ran = apart("status", "--verify", "--json", *where, cwd=tmp_path)
        assert ran.document["violations"] == [], ran.out
        return [[one[name] for name in names] for one in ran.document["replays"]]

    before = status("--journal", str(path))
    ran = apart("copy", "--from", path, "--to", url, "--index", index, "--yes", "--json", cwd=tmp_path)
    assert ran.code == 0, ran.err
    assert (ran.document["replays"], ran.document["dead_letters"]) == (3, 3)
    target = ("--journal", url, "--index", str(index))
    assert status(*target) == before
    letters = apart("dlq", "ls", "--jsonl", *target, cwd=tmp_path).lines
    assert sorted(one["replay"] for one in letters) == [f"side {AGAIN}", f"side {BEGUN}", f"side {FINISHED}"]

    settings = Settings(journal=url, index=str(index), lease_ms=6_000)
    nothing = asyncio.run(Desk(settings, 2).replay(FINISHED))
    assert isinstance(nothing, ReplayPlan)
    assert (nothing.allotted, nothing.skipped) == (0, {"replayed": ALL})
    rest = Desk(settings, 3)
    state = asyncio.run(rest.replay(BEGUN))
    assert isinstance(state, ReplayState)
    assert (state.allotted, state.done, state.dead, state.complete) == (ALL, ALL - 1, 1, True)
    assert rest.calls <= ALL - SOME
    every = Counter(n for n in range(ALL) if n != DEAD)
    assert (told(broker, FINISHED), told(broker, BEGUN)) == (every, every)
    status(*target)
    asyncio.run(_rolled_out(Desk(settings, 2)))
    (live,) = apart("status", "--json", *target, cwd=tmp_path).document["subscriptions"]
    assert (live["active_version"], live["done"]) == ("2", ALL)


async def _rolled_out(desk: Desk) -> None:
    """Start a worker of a version that was only tried so far, until it has its partitions."""
    async with desk.app as app:
        asyncio.get_running_loop().call_later(5, desk.stop.set)
        await app.run(desk.stop)
