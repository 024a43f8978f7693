"""Bad days of brokers and of the index under load: coded errors, nothing lost, nothing doubled."""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.services.desks import Bench, serving
from tests.services.kafka import Broker, Cluster, Node
from tests.services.ports import LOOPBACK, free_ports
from tests.services.postgres import Postgres

from headrace import App, errors

PATIENCE_S = 60.0
#: Longer than a publisher waits for the brokers.
REFUSED_S_MAX = 90.0


@pytest.fixture(scope="module")
def broker() -> Iterator[Node]:
    """One broker; each test has topics of its own."""
    with Broker() as node:
        yield node


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One server, that is killed and set back."""
    with Postgres() as found:
        yield found


def desk(node: Node, postgres: Postgres, folder: Path) -> Bench:
    """Return an app whose index lies in a schema of its own."""
    bench = Bench(node.bootstrap, folder, attempts_max=50, backoff_ms=5)
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {bench.name}".encode())
    bench.index = f"{postgres.url}?options=-csearch_path%3D{bench.name}"
    return bench


async def publish(bench: Bench, app: App, numbers: range) -> None:
    """Publish each number under an id of its own until it is accepted."""
    for number in numbers:
        event, event_id = bench.sent(who=f"c{number % 7}", number=number), uuid4()
        while not await accepted(app, event, event_id):  # noqa: ASYNC110 - the world has no event
            await asyncio.sleep(0.2)


async def accepted(app: App, event: object, event_id: UUID, **options: Any) -> bool:
    """Publish once; tell whether it was accepted."""
    with suppress(errors.JournalUnavailable):
        await app.publish(event, event_id=event_id, **options)  # type: ignore[call-overload]
        return True
    return False


async def test_without_a_broker_nothing_starts(tmp_path: Path) -> None:
    """Within the time for a request, with a code, and it may be tried again."""
    (port,) = free_ports(1)
    bench = Bench(f"{LOOPBACK}:{port}", tmp_path)
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(errors.JournalUnavailable) as caught:
            await bench.app().open()
    assert caught.value.retryable


async def test_an_index_that_is_killed_under_load_is_waited_for(
    broker: Node, postgres: Postgres, tmp_path: Path
) -> None:
    """Workers keep what they hold and go on when it is back."""
    bench = desk(broker, postgres, tmp_path)
    async with serving(bench.app()) as app:
        await publish(bench, app, range(20))
        await bench.handled(20)
        load = asyncio.create_task(publish(bench, app, range(20, 300)))
        await asyncio.to_thread(postgres.kill)
        await asyncio.sleep(1)  # it is down, and what comes meanwhile is met by that
        await asyncio.to_thread(postgres.restart)
        await load
        await bench.handled(300)


async def test_an_index_that_is_set_back_catches_up(broker: Node, postgres: Postgres, tmp_path: Path) -> None:
    """Restored from an older backup under load: it is filled again, and the ledger has the rest."""
    bench = desk(broker, postgres, tmp_path)
    async with serving(bench.app()) as app:
        await publish(bench, app, range(50))
        await bench.handled(50)
        await asyncio.to_thread(postgres.backup, tmp_path / "backup")
        await publish(bench, app, range(50, 150))
        await bench.handled(150)
        load = asyncio.create_task(publish(bench, app, range(150, 300)))
        await asyncio.to_thread(postgres.restore, tmp_path / "backup")
        await load
        await bench.handled(300)


async def test_an_index_that_is_dropped_under_load_is_made_anew(
    broker: Node, postgres: Postgres, tmp_path: Path
) -> None:
    """Its tables come back by themselves, filled from the log."""
    bench = desk(broker, postgres, tmp_path)
    async with serving(bench.app()) as app:
        await publish(bench, app, range(100))
        load = asyncio.create_task(publish(bench, app, range(100, 200)))
        with psycopg.connect(postgres.url, autocommit=True) as db:
            db.execute(f"DROP SCHEMA {bench.name} CASCADE".encode())
            db.execute(f"CREATE SCHEMA {bench.name}".encode())
        await load
        await bench.handled(200)


@pytest.mark.timeout(300)  # a publisher waits half a minute for the brokers, and they for each other
async def test_two_of_three_brokers_gone_refuse_in_time(tmp_path: Path) -> None:
    """What cannot be kept twice is not accepted; when they are back everything is handled once."""
    with Cluster(3) as cluster:
        bench = Bench(cluster.bootstrap, tmp_path, attempts_max=50)
        async with serving(bench.app()) as app:
            await publish(bench, app, range(20))
            await bench.handled(20)
            event, event_id = bench.sent(who="c", number=20), uuid4()
            for node in cluster.nodes[1:]:
                await asyncio.to_thread(node.kill)
            async with asyncio.timeout(REFUSED_S_MAX):
                assert not await accepted(app, event, event_id)
            for node in cluster.nodes[1:]:
                node.begin()
            while not await accepted(app, event, event_id):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.2)
            await publish(bench, app, range(21, 40))
            await bench.handled(40)


#: More than the largest file that a broker makes ahead of its need (an index of 10 MiB).
FILE_BYTES_MAX = 11 << 20
#: What fills a disk: it cannot be compressed.
FILLING = {"headers": {"filling": os.urandom(50_000)}}


@pytest.mark.timeout(300)  # a publisher waits half a minute for a broker that does not write
async def test_a_broker_whose_disk_is_full_is_told_and_waited_for(tmp_path: Path) -> None:
    """What it cannot write is refused with a code; when there is room again everything is handled once."""
    with Broker() as node:
        bench = Bench(node.bootstrap, tmp_path, attempts_max=50)
        async with serving(bench.app()) as app:
            await publish(bench, app, range(20))
            await bench.handled(20)
        # Nobody works meanwhile: a lone broker that dies within a transaction may drop its end (ADR 12).
        async with bench.app() as app:
            resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, FILE_BYTES_MAX))
            number, last = 20, uuid4()
            async with asyncio.timeout(REFUSED_S_MAX):
                while await accepted(app, bench.sent(who="c", number=number), last, **FILLING):
                    number, last = number + 1, uuid4()
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(node.restart)
            while not await accepted(app, bench.sent(who="c", number=number), last):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.2)
        async with serving(bench.app()):
            await bench.handled(number + 1)


async def remake(bootstrap: str, topic: str) -> None:
    """Delete a topic and make it again."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(PATIENCE_S)
    while not await asyncio.to_thread(made, admin, topic):  # noqa: ASYNC110 - as above
        await asyncio.sleep(0.2)


async def test_a_topic_that_is_made_again_is_another(broker: Node, tmp_path: Path) -> None:
    """Positions of the old one say nothing of it: after a new start its events are handled from the first."""
    bench = Bench(broker.bootstrap, tmp_path)
    async with serving(bench.app()) as app:
        await publish(bench, app, range(30))
        await bench.handled(30)
    await remake(broker.bootstrap, f"sent-{bench.name}")
    async with serving(bench.app()) as app:
        await publish(bench, app, range(30, 60))
        await bench.handled(60)


async def test_a_topic_that_is_made_again_under_a_worker_is_another(broker: Node, tmp_path: Path) -> None:
    """A worker that runs notices it: no offset counts as passed because it was in the old one.

    What it handled before it noticed comes twice.
    """
    bench = Bench(broker.bootstrap, tmp_path)
    async with serving(bench.app()) as app:
        await publish(bench, app, range(30))
        await bench.handled(30)
        await remake(broker.bootstrap, f"sent-{bench.name}")
        await publish(bench, app, range(30, 90))
        async with asyncio.timeout(PATIENCE_S):
            while set(await bench.results()) != set(range(90)):  # noqa: ASYNC110 - the world has no event
                await asyncio.sleep(0.2)


def made(admin: AdminClient, topic: str) -> bool:
    """Make a topic; tell whether the old one was gone already."""
    from confluent_kafka import KafkaException

    with suppress(KafkaException):
        admin.create_topics([NewTopic(topic, 16)])[topic].result(PATIENCE_S)
        return True
    return False
