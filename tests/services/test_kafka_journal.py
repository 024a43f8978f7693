"""An app on a real Kafka, its index in a SQLite file or a real PostgreSQL: judged by a plain consumer."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from tests.journal.index.shelf import in_schema_of_its_own
from tests.services import desks
from tests.services.kafka import Broker, Node
from tests.services.postgres import Postgres
from tests.services.reading import Found, committed

from headrace import App, Event, RetryPolicy, errors
from headrace.event.lineage import partition_of_key
from headrace.journal.kafka.client import Admin, cluster_of
from headrace.journal.kafka.fetch import Fetcher
from headrace.journal.kafka.spans import Spans
from headrace.settings import Settings
from headrace.world import SystemClock

PATIENCE_S = 60.0
PARTITIONS = 16
QUICK = RetryPolicy(attempts_max=3, backoff_first_ms=1, backoff_max_ms=5)


class Asked(Event, topic="asked", key="who"):
    """What is published."""

    who: str
    number: int


class Told(Event, topic="told", key="who"):
    """What follows from it."""

    who: str
    number: int


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One database for all."""
    with Postgres() as found:
        yield found


@pytest.fixture
def broker() -> Iterator[Node]:
    """A broker of its own for each test: topics have fixed names."""
    with Broker() as node:
        yield node


@pytest.fixture(params=["sqlite", "postgresql"])
def settings(request: pytest.FixtureRequest, broker: Node, postgres: Postgres, tmp_path: Path) -> Settings:
    """Where the journal is, with either kind of index."""
    # A schema for each: an index belongs to one cluster.
    in_database = request.param == "postgresql"
    index = in_schema_of_its_own(postgres.url).where if in_database else str(tmp_path / "index.db")
    return Settings(journal=f"kafka://{broker.bootstrap}", index=index, lease_ms=6_000)


def app_of(settings: Settings, fails: Callable[[int], bool] = lambda _: False) -> App:
    """Return an app of one step."""
    app = App(f"desk-{uuid4().hex[:8]}", settings=settings, events=[Asked, Told])

    @app.handler(retry=QUICK)
    async def tell(asked: Asked) -> Told:
        if fails(asked.number):
            raise ValueError(f"not {asked.number}")
        return Told(who=asked.who, number=asked.number)

    return app


async def until(bootstrap: str, topic: str, count: int) -> list[Found]:
    """Return the records of a topic once there are so many."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            with suppress(KeyError):
                found = await asyncio.to_thread(committed, bootstrap, topic)
                if len(found) >= count:
                    return found
            await asyncio.sleep(0.2)


def run(settings: Settings, main: Callable[[App], Any], **more: Any) -> None:
    """Run a test while a worker serves."""

    async def whole() -> None:
        app, stop = app_of(settings, **more), asyncio.Event()
        async with app:
            serving = asyncio.create_task(app.run(stop))
            try:
                await main(app)
            finally:
                stop.set()
                await serving

    asyncio.run(whole())


def test_each_event_is_handled_once_with_its_provenance(settings: Settings, broker: Node) -> None:
    """The same app as on SQLite; what it emits says where it comes from, to any reader of CloudEvents."""

    async def main(app: App) -> None:
        ids = [UUID(int=0x70008000000000000000 + n) for n in range(100)]
        for n, event_id in enumerate(ids):
            await app.publish(Asked(who=f"c{n % 7}", number=n), event_id=event_id)
        found = await until(broker.bootstrap, "told", 100)
        assert Counter(one.body()["number"] for one in found) == Counter(range(100))
        for one in found:
            body, headers = one.body(), one.headers
            assert one.partition == partition_of_key(body["who"], PARTITIONS)
            assert headers["ce_parentids"] == str(ids[body["number"]]).encode()
            assert headers["ce_causalityid"] == headers["ce_parentids"]
            assert headers["ce_depth"] == b"1"
            assert headers["ce_type"] == b"Told"
            assert headers["ce_handler"].startswith(b"desk-")

    run(settings, main)


def test_published_twice_is_handled_once(settings: Settings, broker: Node) -> None:
    """The same id with the same content counts once; with other content the later one is put aside."""

    async def main(app: App) -> None:
        one, other = uuid4(), uuid4()
        for _ in range(3):
            await app.publish(Asked(who="a", number=1), event_id=one)
        await app.publish(Asked(who="b", number=2), event_id=other)
        await app.publish(Asked(who="b", number=3), event_id=other)
        await app.publish(Asked(who="a", number=4))
        dead = await until(broker.bootstrap, "asked.dlq", 1)
        found = await until(broker.bootstrap, "told", 3)
        assert sorted(one.body()["number"] for one in found) == [1, 2, 4]
        assert [(one.body()["number"], one.headers["dead_reason"]) for one in dead] == [(3, b"conflict")]

    run(settings, main)


def test_what_cannot_be_handled_is_a_dead_letter_with_its_bytes(settings: Settings, broker: Node) -> None:
    """After its attempts an event goes to the topic of the dead letters; the others go on."""

    async def main(app: App) -> None:
        for n in range(20):
            await app.publish(Asked(who=f"c{n}", number=n))
        found = await until(broker.bootstrap, "told", 18)
        dead = await until(broker.bootstrap, "asked.dlq", 2)
        assert sorted(one.body()["number"] for one in found) == [n for n in range(20) if n not in (3, 5)]
        assert sorted(one.body()["number"] for one in dead) == [3, 5]
        for one in dead:
            assert (one.headers["dead_reason"], one.headers["dead_attempts"]) == (b"failed", b"3")
            assert b"not " in one.headers["dead_error"]

    run(settings, main, fails=lambda number: number in (3, 5))


def test_a_unit_is_published_whole(settings: Settings, broker: Node) -> None:
    """Several events are one transaction."""

    async def main(app: App) -> None:
        await app.publish([Asked(who=f"c{n}", number=n) for n in range(10)])
        assert len(await until(broker.bootstrap, "told", 10)) == 10

    run(settings, main)


def test_records_of_others_are_events(settings: Settings, broker: Node) -> None:
    """JSON without a header, JSON in the frame of a registry, and bytes that are nothing of the kind."""

    async def main(app: App) -> None:
        await app.publish(Asked(who="a", number=0))  # makes the topic
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        plain = json.dumps({"who": "b", "number": 1}).encode()
        producer.produce("asked", plain, b"b", headers=[("tenant", b"blue")])
        producer.produce("asked", b"\0\0\0\0\7" + json.dumps({"who": "c", "number": 2}).encode(), b"c")
        producer.produce("asked", b"\xff\xfe", b"d")
        producer.produce("asked", None, b"e")
        producer.flush(10)
        found = await until(broker.bootstrap, "told", 3)
        dead = await until(broker.bootstrap, "asked.dlq", 2)
        assert sorted(one.body()["number"] for one in found) == [0, 1, 2]
        (tenant,) = [one.headers["tenant"] for one in found if one.body()["number"] == 1]
        assert tenant == b"blue", "what its publisher said travels along"
        assert sorted(one.value for one in dead) == [b"", b"\xff\xfe"]

    run(settings, main)


def test_a_worker_goes_on_where_another_has_stopped(settings: Settings, broker: Node) -> None:
    """Positions lie in the ledger: nothing is handled again, nothing is left out."""
    name = f"desk-{uuid4().hex[:8]}"

    def app() -> App:
        found = App(name, settings=settings, events=[Asked, Told])

        @found.handler(retry=QUICK)
        async def tell(asked: Asked) -> Told:
            return Told(who=asked.who, number=asked.number)

        return found

    async def once(numbers: range) -> None:
        one, stop = app(), asyncio.Event()
        async with one:
            serving = asyncio.create_task(one.run(stop))
            for n in numbers:
                await one.publish(Asked(who=f"c{n % 5}", number=n))
            await until(broker.bootstrap, "told", numbers.stop)
            stop.set()
            await serving

    for start in (0, 50, 100):
        asyncio.run(once(range(start, start + 50)))
    numbers = Counter(one.body()["number"] for one in committed(broker.bootstrap, "told"))
    assert numbers == Counter(range(150))


def test_a_leader_that_was_elected_anew_is_asked(broker: Node) -> None:
    """After a restart of the broker the bounds of partitions are known again, not minutes later."""

    async def main() -> None:
        cluster, clock = cluster_of(f"kafka://{broker.bootstrap}"), SystemClock()
        await Admin(cluster, clock).make("asked", 2)
        fetcher, spans = Fetcher(cluster, "test", clock), Spans(cluster, "test", clock)

        async def known() -> bool:
            with suppress(errors.JournalUnavailable):
                assert await asyncio.to_thread(fetcher.bounds, "asked", 0) == (0, 0)
                assert (await spans.bounds([("asked", 1)]))["asked", 1] == (0, 0)
                return True
            return False

        await desks.until(known)
        await asyncio.to_thread(broker.kill)
        assert not await known()
        await asyncio.to_thread(broker.restart)
        await desks.until(known)
        await spans.close()
        fetcher.close()

    asyncio.run(main())


def test_a_partition_that_is_not_heard_of_yet_is_waited_for(broker: Node) -> None:
    """What a client has heard of a topic may be older than its partitions."""

    async def main() -> None:
        cluster, clock = cluster_of(f"kafka://{broker.bootstrap}"), SystemClock()
        await Admin(cluster, clock).make("widened", 1)
        fetcher, spans = Fetcher(cluster, "test", clock), Spans(cluster, "test", clock)
        await asyncio.to_thread(fetcher.bounds, "widened", 0)
        asked = asyncio.create_task(asyncio.to_thread(fetcher.bounds, "widened", 1))
        looked = asyncio.create_task(spans.bounds([("widened", 1)]))
        await asyncio.sleep(0.5)
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        await asyncio.to_thread(admin.create_partitions([NewPartitions("widened", 2)])["widened"].result, 10)
        assert await asked == (0, 0)
        assert (await looked)["widened", 1] == (0, 0)
        await spans.close()
        fetcher.close()

    asyncio.run(main())


def test_the_broker_goes_and_comes_back(settings: Settings, broker: Node) -> None:
    """A killed broker is waited for; what was accepted before is handled once after."""

    async def main(app: App) -> None:
        for n in range(30):
            await app.publish(Asked(who=f"c{n % 5}", number=n))
        await until(broker.bootstrap, "told", 30)
        await asyncio.to_thread(broker.kill)
        await asyncio.sleep(1)
        await asyncio.to_thread(broker.restart)
        for n in range(30, 60):
            await app.publish(Asked(who=f"c{n % 5}", number=n))
        found = await until(broker.bootstrap, "told", 60)
        assert Counter(one.body()["number"] for one in found) == Counter(range(60))

    run(settings, main)
