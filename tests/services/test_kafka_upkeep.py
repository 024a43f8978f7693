"""The index made again from the topics alone, and compared with them: at rest, and under a worker."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import apsw
import psycopg
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from tests.services.desks import serving, until
from tests.services.kafka import Broker
from tests.services.postgres import Postgres
from tests.services.reading import committed
from tests.services.stage import WAITING, Order, Stage, event_id, order, play, settled
from tests.unit.terminal import apart

from headrace import App
from headrace.cli.output import Exit


@pytest.fixture(scope="module")
def postgres() -> Iterator[Postgres]:
    """One server for all; each test has a schema of its own."""
    with Postgres() as found:
        yield found


@pytest.fixture(scope="module")
def brokers() -> Iterator[str]:
    """One broker for those tests that have topics of their own."""
    with Broker() as node:
        yield node.bootstrap


class Shelf:
    """An index, and what can be done to it behind everybody's back."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.sqlite = "://" not in where

    def change(self, statement: str) -> None:
        """Run a statement; tables have the names of SQLite's."""
        if self.sqlite:
            db = apsw.Connection(self.where)
            db.set_busy_timeout(10_000)
            db.execute(statement)
            db.close()
            return
        for name in ("first", "place", "conflict", "claim"):
            statement = statement.replace(f" {name} ", f" headrace_{name} ")
        with psycopg.connect(self.where, autocommit=True) as db:
            db.execute(statement.encode())


@pytest.fixture(params=["sqlite", "postgresql"])
def shelf(request: pytest.FixtureRequest, postgres: Postgres, tmp_path: Path) -> Shelf:
    """An index of either kind."""
    if request.param == "sqlite":
        return Shelf(str(tmp_path / "index.db"))
    name = f"test_{uuid4().hex[:8]}"
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}".encode())
    return Shelf(f"{postgres.url}?options=-csearch_path%3D{name}")


def staged(shelf: Shelf, bootstrap: str) -> Stage:
    """Return a stage on an index."""
    return Stage(f"kafka://{bootstrap}", shelf.where, f"shop{uuid4().hex[:8]}.pack")


@pytest.fixture
def stage(shelf: Shelf) -> Iterator[Stage]:
    """A journal on which something has happened, with a broker of its own."""
    with Broker() as node:
        found = staged(shelf, node.bootstrap)
        asyncio.run(play(found))
        yield found


def test_an_index_made_again_is_the_same(stage: Stage, shelf: Shelf, tmp_path: Path) -> None:
    """All that can be asked has the answers of before; and a comparison with the topics finds nothing."""
    looks = (("status", "--verify"), ("model", "history"), ("show", str(event_id(9))))

    def asked() -> list[object]:
        documents = [stage.run(*one, "--json", cwd=tmp_path).document for one in looks]
        documents[0]["subscriptions"][0].pop("oldest_waiting_s")
        documents[0]["subscriptions"][0].pop("events_per_s")
        return documents

    assert stage.run("index", "verify", cwd=tmp_path).code == Exit.DONE
    before = asked()
    ran = stage.run("index", "rebuild", "--json", cwd=tmp_path)
    assert ran.code == Exit.DONE
    assert ran.document["topics"] == ["orders", "parcels"]
    assert ran.document["events"] == sum(one["events"] for one in before[0]["topics"])  # type: ignore[index]
    assert asked() == before
    if shelf.sqlite:
        Path(shelf.where).unlink()
        ran = stage.run("index", "rebuild", "--topic", "parcels", cwd=tmp_path)
        assert (ran.code, ran.err) == (Exit.DONE, "")
        assert asked() == before
    assert stage.run("index", "rebuild", "--topic", "nothing", cwd=tmp_path).code == Exit.UNUSABLE


def test_what_is_wrong_with_an_index_is_found_and_mended(stage: Stage, shelf: Shelf, tmp_path: Path) -> None:
    """Rows that are missing, of nothing, or elsewhere; ends and claims beyond: each is named, exit 1."""
    faults = {
        "missing": "DELETE FROM first WHERE seq = 1",
        "content": "UPDATE first SET content = content + 1 WHERE seq = 0",
        "late": "UPDATE first SET seq = seq + 1 WHERE seq = 0",
        "beyond": "UPDATE place SET upto = upto + 1000",
        "conflicts": "DELETE FROM conflict WHERE seq >= 0",
    }

    def found(rule: str, statement: str) -> None:
        shelf.change(statement)
        ran = stage.run("index", "verify", "--json", cwd=tmp_path)
        assert ran.code == Exit.NO, rule
        assert rule in {one["rule"] for one in ran.document["violations"]}

    for rule, statement in faults.items():
        found(rule, statement)
    assert stage.run("index", "rebuild", cwd=tmp_path).code == Exit.DONE
    assert stage.run("index", "verify", cwd=tmp_path).code == Exit.DONE
    found("claim_beyond", "UPDATE claim SET upto = upto + 1000000, after = 0")


def test_ids_of_what_retention_has_eaten_stay(stage: Stage, tmp_path: Path) -> None:
    """No topic has them any more, so an index made again keeps them: a late copy is still a copy."""

    def status() -> dict[str, Any]:
        document = stage.run("status", "--json", cwd=tmp_path).document
        assert document["sound"] is True
        return dict(document["subscriptions"][0])

    before = status()
    admin = AdminClient({"bootstrap.servers": stage.journal.removeprefix("kafka://")})
    gone = admin.delete_records([TopicPartition("orders", partition, -1) for partition in range(16)])
    for answer in gone.values():
        answer.result(10)
    assert stage.run("index", "rebuild", cwd=tmp_path).code == Exit.DONE
    assert stage.run("index", "verify", cwd=tmp_path).code == Exit.DONE
    after = status()
    assert (after["published"], after["done"], after["waiting"]) == (
        before["published"],
        before["done"],
        WAITING,
    )

    async def again() -> None:
        async with serving(stage.app()) as app:
            await app.publish(order(20), event_id=event_id(20))
            await app.publish(order(3_000))
            await settled(stage, before["done"] + 1, before["dead"])

    asyncio.run(again())
    end = status()
    assert (end["done"], end["expired"], end["published"]) == (
        before["done"] + 1, WAITING, before["published"] + 1,
    )  # fmt: skip
    assert stage.run("status", "--verify", cwd=tmp_path).code == Exit.DONE


def test_an_index_is_made_again_under_a_worker(shelf: Shelf, brokers: str, tmp_path: Path) -> None:
    """While events come, some of them twice, and are handled: none is lost, none is handled twice."""
    name, count = f"t{uuid4().hex[:8]}", 1_500

    class Asked(Order, topic=f"{name}.asked", key="who"):
        """What is published."""

    class Told(Order, topic=f"{name}.told", key="who"):
        """What follows from it."""

    stage = staged(shelf, brokers)
    app = App(name, settings=stage.settings(), events=[Asked, Told])

    @app.handler
    async def tell(asked: Asked) -> Told:
        return Told(who=asked.who, number=asked.number)

    async def whole() -> None:
        async with serving(app):
            publishing = asyncio.create_task(publish())
            rebuilds = 0
            while not publishing.done() or rebuilds < 3:
                ran = await asyncio.to_thread(stage.run, "index", "rebuild", cwd=tmp_path)
                assert ran.code == Exit.DONE, ran.err
                rebuilds += 1
            await publishing
            await until(handled)

    async def handled() -> bool:
        return len(await asyncio.to_thread(committed, brokers, f"{name}.told")) >= count

    async def publish() -> None:
        for number in range(count):
            one = order(number)
            for _ in range(1 + (number % 5 == 0)):
                await app.publish(Asked(who=one.who, number=number), event_id=event_id(number))
            if number % 100 == 50:  # a copy of long ago
                old = order(number - 50)
                await app.publish(Asked(who=old.who, number=number - 50), event_id=event_id(number - 50))

    asyncio.run(whole())
    numbers = Counter(one.body()["number"] for one in committed(brokers, f"{name}.told"))
    assert numbers == Counter(range(count))
    assert stage.run("index", "verify", cwd=tmp_path).code == Exit.DONE
    (found,) = [
        one
        for one in stage.run("status", "--json", cwd=tmp_path).document["subscriptions"]
        if one["handler"] == f"{name}.tell"
    ]
    assert (found["published"], found["done"]) == (count, count)


def test_the_index_of_another_cluster_is_refused(stage: Stage, brokers: str, tmp_path: Path) -> None:
    """By looks, by workers and by a rebuild, with a code of its own; nothing is written."""
    where = ("--journal", f"kafka://{brokers}", "--index", stage.index)
    for text in ("status", "index rebuild", "index verify", "model activate a b"):
        ran = apart(*text.split(), *where, cwd=tmp_path)
        assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
        assert ran.err.startswith("error[HR-E227]: The index at")
    assert stage.run("index", "verify", cwd=tmp_path).code == Exit.DONE


def test_a_file_has_no_index(tmp_path: Path) -> None:
    """On SQLite the journal is its own index: exit 2, and what to do instead."""
    ran = apart("index", "rebuild", "--journal", "some.db", cwd=tmp_path)

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert "no index beside it" in ran.err
