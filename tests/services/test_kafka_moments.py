"""A journal on Kafka that is looked at while it is worked on: every look is one moment, and adds up."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from tests.services.desks import serving, until
from tests.services.kafka import Broker
from tests.services.postgres import Postgres
from tests.services.stage import Stage, event_id
from tests.unit.terminal import Running

from headrace import App, Event, RetryPolicy
from headrace.cli.access import deciding, reading
from headrace.cli.output import Exit
from headrace.ports.look import Filter, Look, Progress, State

QUICK = RetryPolicy(attempts_max=3, backoff_first_ms=1, backoff_max_ms=20)
SLOW = RetryPolicy(attempts_max=2, backoff_first_ms=600_000, backoff_max_ms=600_000)
EVENTS = 1_200


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    """One broker for all; each test has topics and a handler of its own."""
    with Broker() as node:
        yield node.bootstrap


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One server for all; each test has a schema of its own."""
    with Postgres() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def stage(request: pytest.FixtureRequest, bootstrap: str, postgres: Postgres, tmp_path: Path) -> Stage:
    """A journal with either kind of index."""
    name = f"t{uuid4().hex[:8]}"
    if request.param == "sqlite":
        return Stage(f"kafka://{bootstrap}", str(tmp_path / "index.db"), f"{name}.tell")
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}".encode())
    return Stage(f"kafka://{bootstrap}", f"{postgres.url}?options=-csearch_path%3D{name}", f"{name}.tell")


class Shop:
    """Events of one test, and apps that handle them in one way or another."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.name = stage, stage.handler.partition(".")[0]

        class Asked(Event, topic=f"{self.name}.asked", key="who"):
            who: str
            number: int

        self.asked = Asked

    def app(self, retry: RetryPolicy = QUICK, version: int = 1, fails: int = 50) -> App:
        """Return an app whose handler fails for every so many events."""
        app = App(self.name, settings=self.stage.settings(), events=[self.asked])
        kind = self.asked

        async def tell(asked) -> None:
            await asyncio.sleep(0.001)
            if asked.number % fails == 1:
                raise ValueError(f"not {asked.number}")

        tell.__annotations__["asked"] = kind
        app.handler(retry=retry, version=version)(tell)
        return app

    def event(self, number: int, other: int = 0) -> Event:
        """Return an event; another content has another number."""
        return self.asked(who=f"c{number % 11}", number=number + other)

    @asynccontextmanager
    async def look(self) -> AsyncGenerator[Look]:
        """Look at the journal."""
        async with reading(self.stage.journal, self.stage.index) as look:
            yield look

    async def progress(self, look: Look) -> Progress | None:
        """Return how far the handler is, once it is known."""
        return next((one for one in await look.progress() if one.handler == self.stage.handler), None)


async def test_every_look_adds_up(stage: Stage) -> None:
    """While events come, some twice and some under a taken id, fail and are retried, by two workers."""
    shop = Shop(stage)
    apps = [shop.app(), shop.app()]

    async def publish() -> None:
        for number in range(EVENTS):
            await apps[0].publish(shop.event(number), event_id=event_id(number))
            if number % 5 == 0:
                await apps[0].publish(shop.event(number), event_id=event_id(number))
            if number % 100 == 7:
                await apps[0].publish(shop.event(number, 10_000_000), event_id=event_id(number))

    seen: list[Progress] = []
    async with serving(apps[0]), serving(apps[1]), shop.look() as look:
        publishing = asyncio.create_task(publish())
        total = EVENTS + len(range(7, EVENTS, 100))

        async def whole() -> bool:
            found = await shop.progress(look)
            if found is not None:
                assert found.sound, found
                seen.append(found)
            return found is not None and found.done + found.dead == total

        await until(whole)
        await publishing
        assert [one for one in await look.violations() if one.where.startswith(stage.handler)] == []
        (history,) = await look.histories(stage.handler)
        assert (history.neither, history.both, history.taken) == (0, 0, total)
    assert [one.published for one in seen] == sorted(one.published for one in seen)
    assert [one.done for one in seen] == sorted(one.done for one in seen)
    last = seen[-1]
    assert (last.published, last.waiting, last.running) == (total, 0, 0)
    assert last.dead == len(range(1, EVENTS, 50)) + len(range(7, EVENTS, 100))
    assert {owner.pid for owner in last.owners} == {os.getpid()}
    assert sum(owner.partitions for owner in last.owners) == 16
    assert (last.trouble, last.serving) == ("", 2)
    assert (last.events_per_s or 0) > 0


async def test_what_waits_says_what_for(stage: Stage) -> None:
    """A failed event waits for its retry, the next of its key for it; a third is not taken yet."""
    shop = Shop(stage)
    async with serving(shop.app(SLOW, fails=10)) as app, shop.look() as look:
        for number in (1, 12, 0, 3):  # 1 fails, 12 has the same key, 0 and 3 are done
            await app.publish(shop.event(number), event_id=event_id(number))

        async def opened() -> bool:
            found = await shop.progress(look)
            return found is not None and found.done == 2 and sum(found.open.values()) == 2

        await until(opened)
        states = {}
        for number in (1, 12, 0):
            event = await look.find(str(event_id(number)), topic=f"{shop.name}.asked")
            (states[number],) = await look.standings(event)
        assert [states[number].state for number in (1, 12, 0)] == [State.RETRY, State.BLOCKED, State.DONE]
        assert states[1].attempts == 1
        assert states[1].due is not None
        assert "not 1" in states[1].errors[0]
        assert states[12].blocked_by == event_id(1)
        assert states[0].version is not None
        assert states[0].owner is not None
        assert states[0].owner.pid == os.getpid()
    async with shop.look() as look, shop.app() as app:
        await app.publish(shop.event(22), event_id=event_id(22))
        event = await look.find(str(event_id(22)), topic=f"{shop.name}.asked")
        (standing,) = await look.standings(event)
        assert (standing.state, standing.owner, standing.workers) == (State.WAITING, None, 0)
        found = await shop.progress(look)
        assert found is not None
        assert (found.trouble, found.waiting, found.sound) == ("no live worker", 3, True)


async def test_two_versions_share_the_events(stage: Stage) -> None:
    """Each event is in the results of one version; the count of each is what it took."""
    shop = Shop(stage)
    for version in (1, 2):
        async with serving(shop.app(version=version)) as app, shop.look() as look:
            for number in range(version * 100):
                await app.publish(shop.event(number + version * 1_000))
            total = 100 if version == 1 else 300

            async def whole(total: int = total) -> bool:
                found = await shop.progress(look)
                return found is not None and found.done + found.dead == total

            await until(whole)
    async with shop.look() as look, deciding(stage.journal, stage.index) as desk:
        (history,) = await look.histories(stage.handler)
        assert [history.handled[one.id] for one in history.versions] == [100, 200]
        found = await shop.progress(look)
        assert found is not None
        assert (found.rebalances or 0) >= 1, "the second worker got what the first had"
        assert (history.neither, history.both, history.unfinished) == (0, 0, 0)
        assert history.active is not None
        assert history.active.name == "2"
        assert (await desk.activate(stage.handler, "1")).name == "1"
        (history,) = await look.histories(stage.handler)
        assert history.active is not None
        assert history.active.name == "1"


async def test_what_is_redriven_and_dropped_adds_up(stage: Stage) -> None:
    """A redriven event is handled after all, a dropped one stays dead; each look on the way is sound."""
    shop = Shop(stage)
    async with serving(shop.app(fails=10)) as app, shop.look() as look:
        await app.publish([shop.event(number) for number in range(40)])

        async def counted(done: int, dead: int) -> bool:
            found = await shop.progress(look)
            assert found is None or found.sound, found
            return found is not None and (found.done, found.dead) == (done, dead)

        await until(lambda: counted(36, 4))
    async with serving(shop.app(fails=1_000)), shop.look() as look:
        letters = await look.letters(Filter(handler=stage.handler))
        async with deciding(stage.journal, stage.index) as desk:
            kept = [one for one in letters if one.event.envelope.key == "c1"]
            others = [one for one in letters if one not in kept]
            assert [one.problem for one in await desk.redrive(others)] == [""] * len(others)
            assert [one.problem for one in await desk.drop(kept)] == [""] * len(kept)
        await until(lambda: counted(36 + len(others), len(kept)))
        assert await look.letters(Filter(handler=stage.handler)) == []
        decided = await look.letters(Filter(handler=stage.handler, decided=True))
        assert Counter(one.fate for one in decided) == {"redriven": len(others), "dropped": len(kept)}
        assert [one for one in await look.violations() if one.where.startswith(stage.handler)] == []
        (history,) = await look.histories(stage.handler)
        assert (history.neither, history.both, history.taken) == (0, 0, 40)


async def test_a_topic_that_was_deleted_is_told(stage: Stage) -> None:
    """Its handler is left with a ledger of nothing: `status --verify` names it."""
    shop = Shop(stage)
    async with serving(shop.app(fails=10)) as app, shop.look() as look:
        await app.publish(shop.event(0))

        async def done() -> bool:
            found = await shop.progress(look)
            return found is not None and found.done == 1

        await until(done)
    bootstrap = stage.journal.removeprefix("kafka://")
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([f"{shop.name}.asked"])[f"{shop.name}.asked"].result(10)
    async with shop.look() as look:

        async def gone() -> bool:
            return f"{shop.name}.asked" not in [one.name for one in await look.topics()]

        await until(gone)
        assert await shop.progress(look) is None
        told = [one for one in await look.violations() if one.where.startswith(stage.handler)]
        assert [one.rule for one in told] == ["topic"]


async def test_tail_follows(stage: Stage, tmp_path: Path) -> None:
    """What comes while it looks is shown as it comes, also of a topic that is new."""
    shop, enough = Shop(stage), 6
    async with shop.app():
        pass  # makes the index, and no topic
    where = ("--journal", stage.journal, "--index", stage.index, "--topic", f"{shop.name}.asked")
    with Running("tail", "-f", "--jsonl", "--limit", enough, *where, cwd=tmp_path) as tail:
        await asyncio.to_thread(tail.until, "has no topic")
        async with shop.app() as app:
            for number in range(enough):
                await app.publish(shop.event(number))
                await asyncio.sleep(0.2)
        ran = await asyncio.to_thread(tail.ended)
    assert ran.code == Exit.DONE
    assert sorted(one["payload"]["number"] for one in ran.lines) == list(range(enough))
