"""A journal moves from SQLite to a real Kafka: killed on the way, judged by SQL and by a plain consumer."""

from __future__ import annotations

import asyncio
import hashlib
import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.services.kafka import Broker, Node
from tests.services.reading import Found, committed
from tests.unit.terminal import Ran, apart, command, environment

from headrace import App, Event, RetryPolicy
from headrace.cli.output import Exit
from headrace.codec.ledger import POSITION, Position, read_key, read_position
from headrace.event.lineage import text_of
from headrace.settings import Settings

PATIENCE_S = 90.0
FIRST, SECOND, REST = 3_000, 1_500, 1_500
ALL = FIRST + SECOND + REST
DEAD, STUCK, LATE = 7, 13, 21
#: How many of the attempts are the source's does not matter: what counts is their sum.
TRIES = 6
SLOW = RetryPolicy(attempts_max=TRIES, backoff_first_ms=4_000, backoff_max_ms=4_000)


class CopyAsked(Event, topic="asked", key="who"):
    """What is published."""

    who: str
    number: int


class CopyTold(Event, topic="told", key="who"):
    """What follows from it, and from which version."""

    who: str
    number: int
    by: int


class Refused(ValueError):
    """Never tried again."""


def app_of(settings: Settings, version: int, calls: list[int]) -> App:
    """Return the app in a version; it notes what it is called with."""
    app = App("desk", settings=settings, events=[CopyAsked, CopyTold])

    @app.handler(version=version, retry=SLOW)
    async def tell(asked: CopyAsked) -> CopyTold:
        calls.append(asked.number)
        if asked.number == DEAD:
            raise ValueError("dead")
        if asked.number == STUCK or (asked.number == LATE and version == 1):
            raise ValueError("not yet")
        return CopyTold(who=asked.who, number=asked.number, by=version)

    return app


def asked(number: int) -> CopyAsked:
    """Return an event; those that fail have keys of their own."""
    return CopyAsked(
        who=f"only {number}" if number in (DEAD, STUCK, LATE) else f"c{number % 40}", number=number
    )


def sql(path: Path, query: str) -> list[Any]:
    """Ask the source, read-only."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as db:
        return db.execute(query).fetchall()


async def served(app: App, numbers: range, done: Callable[[], bool]) -> None:
    """Publish, and serve until it is done."""
    stop = asyncio.Event()
    async with app:
        serving = asyncio.create_task(app.run(stop))
        for start in range(numbers.start, numbers.stop, 500):
            await app.publish([asked(n) for n in range(start, min(start + 500, numbers.stop))])
        async with asyncio.timeout(PATIENCE_S):
            while True:
                if done():
                    break
                await asyncio.sleep(0.05)
        stop.set()
        await serving


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal that two versions have worked on: half of the events, a dead letter, a retry that waits."""
    path = tmp_path_factory.mktemp("source") / "headrace.db"
    settings = Settings(journal=str(path), lease_ms=1_000)
    closed, finished = "SELECT sum(done) + sum(dead) FROM position", "SELECT sum(done) FROM position"
    dead = RetryPolicy(attempts_max=1)

    async def whole() -> None:
        first = app_of(settings, 1, [])
        handler = first.handlers["desk.tell"]
        object.__setattr__(handler, "retry", dead)  # the first one dies at once, the others wait
        await served(first, range(DEAD, DEAD + 1), lambda: sql(path, closed) == [(1,)])
        numbers = range(DEAD + 1, FIRST)
        want = FIRST - DEAD - 3
        await served(app_of(settings, 1, []), numbers, lambda: sql(path, finished)[0][0] >= want)
        want = FIRST + SECOND - DEAD - 2  # all but the dead one and the one that is stuck
        second = range(FIRST, FIRST + SECOND)
        await served(app_of(settings, 2, []), second, lambda: sql(path, finished)[0][0] >= want)
        async with (last := app_of(settings, 2, [])):
            for start in range(FIRST + SECOND, ALL, 500):
                await last.publish([asked(n) for n in range(start, start + 500)])

    asyncio.run(whole())
    assert sql(path, "SELECT count(*) FROM open WHERE state = 'retry'") == [(1,)]
    assert sql(path, "SELECT count(*) FROM dead") == [(1,)]
    assert sql(path, "SELECT count(*) FROM exception") == [(1,)]
    return path


@pytest.fixture
def broker() -> Iterator[Node]:
    """A broker of its own for each test."""
    with Broker() as node:
        yield node


def words(source: Path, broker: Node, folder: Path, *more: str) -> list[str]:
    """Return the command line that copies."""
    to = f"kafka://{broker.bootstrap}"
    return ["copy", "--from", str(source), "--to", to, "--index", str(folder / "index.db"), *more]


def copied(source: Path, broker: Node, folder: Path, *more: str) -> Ran:
    """Copy."""
    return apart(*words(source, broker, folder, "--yes", *more), cwd=folder)


def ends(broker: Node, topic: str, partitions: int) -> int:
    """Return how many offsets of a topic are taken."""
    reader = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "look"})
    try:
        where = [TopicPartition(topic, partition) for partition in range(partitions)]
        return sum(reader.get_watermark_offsets(one, timeout=10)[1] for one in where)
    finally:
        reader.close()


def kill_at(source: Path, broker: Node, folder: Path, reached: Callable[[], bool]) -> bool:
    """Begin to copy, and kill it once something is reached; returns whether it was still at it."""
    process = Popen(
        command(*words(source, broker, folder, "--yes")),
        cwd=folder, env=environment(), stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    while process.poll() is None and not reached():
        pass
    alive = process.poll() is None
    process.kill()
    process.communicate()
    return alive


def names(found: list[Found]) -> list[str]:
    """Return the ids of records."""
    return [one.headers["ce_id"].decode() for one in found]


def positions(broker: Node, topic: str) -> dict[int, Position]:
    """Return the last position of each partition, as anybody can read it."""
    reader = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "look", "enable.partition.eof": True}
    )
    found: dict[int, Position] = {}
    try:
        count = len(reader.list_topics(topic, timeout=10).topics[topic].partitions)
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
        ended = 0
        while ended < count:
            message = reader.poll(10)
            assert message is not None
            if message.error():
                ended += 1
            elif (key := read_key(message.key())) and key.kind == POSITION:
                found[key.partition] = read_position(message.value() or b"")
        return found
    finally:
        reader.close()


def test_a_killed_copy_goes_on_and_the_app_goes_on_there(source: Path, broker: Node, tmp_path: Path) -> None:
    """Killed on the way and run again: all is there once, and work goes on where it was."""
    before = hashlib.sha256(source.read_bytes()).digest()
    killed = 0
    for least in (1, 2_000, 5_000):
        killed += kill_at(source, broker, tmp_path, lambda least=least: _reached(broker, least))
    assert killed >= 2, "it was killed on the way"
    ran = copied(source, broker, tmp_path, "--json")
    assert ran.code == Exit.DONE, ran.err
    assert hashlib.sha256(source.read_bytes()).digest() == before

    for topic in ("asked", "told"):
        found = committed(broker.bootstrap, topic)
        stored = sql(source, f"SELECT tp & 1023, eid, body FROM event JOIN topic ON topic.id = tp >> 10"
                             f" WHERE name = '{topic}' ORDER BY seq")  # fmt: skip
        here: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
        there: dict[int, list[tuple[str, bytes]]] = defaultdict(list)
        for partition, event_id, body in stored:
            here[partition].append((text_of(event_id), body))
        for one, name in zip(found, names(found), strict=True):
            there[one.partition].append((name, one.value))
        assert there == here, "ids, payloads and order"
    _judge_report(ran.document)
    again = copied(source, broker, tmp_path)
    assert (again.code, "was copied before" in again.err) == (Exit.DONE, True)
    _go_on(source, broker, tmp_path)


def _reached(broker: Node, least: int) -> bool:
    try:
        return ends(broker, "asked", 16) + ends(broker, "told", 16) >= least
    except Exception:  # the topics are not there yet
        return False


def _judge_report(report: dict[str, Any]) -> None:
    asked, told = report["topics"]
    assert (asked["name"], asked["events"], told["name"]) == ("asked", ALL - DEAD, "told")
    (handler,) = report["handlers"]
    taken = FIRST + SECOND - DEAD
    assert (handler["taken"], handler["done"], handler["dead"], handler["open"]) == (taken, taken - 2, 1, 1)
    assert (handler["active"], report["dead_letters"]) == ("2", 1)


def _go_on(source: Path, broker: Node, folder: Path) -> None:
    """The app on the target handles what is left, and nothing else; the open retry goes on counting."""
    calls: list[int] = []
    settings = Settings(journal=f"kafka://{broker.bootstrap}", index=str(folder / "index.db"), lease_ms=6_000)
    ((tried,),) = sql(source, "SELECT attempts FROM open WHERE state = 'retry'")
    left = list(range(FIRST + SECOND, ALL))

    def done() -> bool:
        return len(calls) >= len(left) + TRIES - tried and len(committed(broker.bootstrap, "asked.dlq")) >= 2

    asyncio.run(served(app_of(settings, 2, calls), range(0), done))
    assert Counter(calls) == Counter(left) + Counter({STUCK: TRIES - tried})

    told = committed(broker.bootstrap, "told")
    assert Counter(one.body()["number"] for one in told) == Counter(
        n for n in range(DEAD, ALL) if n not in (DEAD, STUCK)
    )
    assert len(set(names(told))) == len(told)
    letters = {one.body()["number"]: one.headers for one in committed(broker.bootstrap, "asked.dlq")}
    assert {n: headers["dead_reason"] for n, headers in letters.items()} == {
        DEAD: b"failed",
        STUCK: b"failed",
    }
    assert (letters[DEAD]["dead_attempts"], letters[STUCK]["dead_attempts"]) == (b"1", str(TRIES).encode())
    _judge_versions(broker, {one.body()["number"]: one.body()["by"] for one in told})


def _judge_versions(broker: Node, by: dict[int, int]) -> None:
    """The ranges of the ledger say of every event which version has handled it, but for the exception."""
    ledger = positions(broker, "headrace.desk.tell.ledger")
    assert sum(one.taken for one in ledger.values()) == ALL - DEAD
    assert sum(one.dead for one in ledger.values()) == 2
    differs: list[int] = []
    for one in _with_offsets(broker, "asked"):
        number, partition, offset = one
        position = ledger[partition]
        version = next(r.version for r in reversed(position.ranges) if r.after < offset)
        if number in by and str(by[number]) != version:
            differs.append(number)
    assert differs == [LATE]


def _with_offsets(broker: Node, topic: str) -> list[tuple[int, int, int]]:
    """Return number, partition and offset of each record."""
    reader = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": "look", "enable.partition.eof": True}
    )
    try:
        reader.assign([TopicPartition(topic, partition, 0) for partition in range(16)])
        found, ended = list[tuple[int, int, int]](), 0
        while ended < 16:
            message = reader.poll(10)
            assert message is not None
            if message.error():
                ended += 1
            else:
                number = json.loads(message.value() or b"")["number"]
                found.append((number, message.partition() or 0, message.offset() or 0))
        return found
    finally:
        reader.close()


def test_what_is_not_fit_is_refused(source: Path, broker: Node, tmp_path: Path) -> None:
    """Retention that would delete history, another partition count: told before anything is done."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})

    def made(partitions: int, **config: str) -> None:
        for one in admin.create_topics([NewTopic("asked", partitions, 1, config=config)]).values():
            one.result(10)

    def gone() -> None:
        for one in admin.delete_topics(["asked"]).values():
            one.result(10)

    dry = copied(source, broker, tmp_path, "--dry-run")
    assert (dry.code, "would copy" in dry.err) == (Exit.DONE, True)
    assert not {"asked", "told"} & set(admin.list_topics(timeout=10).topics)

    made(16, **{"retention.ms": "3600000"})
    ran = copied(source, broker, tmp_path)
    assert (ran.code, "retention.ms" in ran.err, "HR-E228" in ran.err) == (Exit.NO, True, True)
    gone()
    made(4)
    ran = copied(source, broker, tmp_path)
    assert (ran.code, "has 4 partitions" in ran.err) == (Exit.NO, True)
    assert not {"told", "headrace.copies"} & set(admin.list_topics(timeout=10).topics)


def test_a_live_worker_is_not_copied(broker: Node, tmp_path: Path) -> None:
    """While a lease runs the copy is refused: what the worker does meanwhile would be lost."""
    path = tmp_path / "headrace.db"
    settings = Settings(journal=str(path), lease_ms=60_000)
    found: list[Ran] = []

    async def whole() -> None:
        app, stop = app_of(settings, 1, []), asyncio.Event()
        async with app:
            await app.publish(asked(100))
            serving = asyncio.create_task(app.run(stop))
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    if sql(path, "SELECT sum(done) FROM position") == [(1,)]:
                        break
                    await asyncio.sleep(0.05)
            found.append(await asyncio.to_thread(copied, path, broker, tmp_path))
            stop.set()
            await serving

    asyncio.run(whole())
    assert (found[0].code, "is alive" in found[0].err) == (Exit.NO, True)
    assert copied(path, broker, tmp_path).code == Exit.DONE
