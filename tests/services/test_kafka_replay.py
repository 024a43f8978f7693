"""Replays on a real Kafka: history goes through a version once, live and replayed together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from confluent_kafka.admin import AdminClient
from tests.services.desks import Bench, serving, until
from tests.services.postgres import Postgres
from tests.services.replaying import (
    NEW,
    SIDE,
    by_version,
    closed,
    lived,
    planned,
    ran,
    redriven,
    replayed,
    side,
    told,
)
from tests.unit.terminal import Ran, apart

from headrace import errors
from headrace.cli.output import Exit
from headrace.event.lineage import partition_of_key
from headrace.journal.kafka import letters
from headrace.journal.kafka.topics import split_name
from headrace.ports.look import us_of
from headrace.ports.replay import ReplayPlan

#: The app of the bench, as a file that commands can import.
APP = """
from headrace import App, Event

class Sent(Event, topic="sent-NAME", key="who"):
    who: str
    number: int

class Read(Event, topic="read-NAME", key="who"):
    who: str
    number: int

app = App("NAME", events=[Sent, Read])

@app.handler(version="2")
async def handle(event: Sent) -> Read:
    return Read(who=event.who, number=event.number)
"""


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """One database for all, by its address."""
    with Postgres() as found:
        yield found.url


@pytest.fixture(params=["sqlite", "postgresql"])
def either(request: pytest.FixtureRequest, bench: Bench) -> Bench:
    """An app with its index in a file, or in a schema of its own."""
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres")
        with psycopg.connect(url, autocommit=True) as db:
            db.execute(f"CREATE SCHEMA {bench.name}".encode())
        bench.index = f"{url}?options=-csearch_path%3D{bench.name}"
    return bench


async def nothing(bench: Bench, reasons: dict[str, int], **wanted: object) -> None:
    """See that an order has nothing to do, and says why."""
    found = await replayed(bench, wanted)
    assert isinstance(found, ReplayPlan)
    assert (found.allotted, found.skipped) == (0, reasons)


async def test_history_goes_through_a_version_once(either: Bench) -> None:
    """Every event that live has handled, once, beside the live results; a second order adds nothing."""
    bench = either
    await lived(bench, range(40))

    assert (await planned(bench)).allotted == 40
    state = await ran(bench)
    assert (state.allotted, state.done, state.emitted, state.dead) == (40, 40, 40, 0)
    assert await by_version(bench) == Counter({(n, by): 1 for n in range(40) for by in ("1", NEW)})
    assert {one.headers["ce_side"] for one in await told(bench)} == {b"trial"}
    for wanted in ({}, {"side": "other"}, {"side": None}):
        await nothing(bench, {"replayed": 40}, **wanted)
    assert await side(bench) == list(range(40))
    assert await bench.violations() == []


async def test_what_the_version_has_handled_live_is_passed_over(either: Bench) -> None:
    """Once it is active it goes on where it is, and takes nothing of what it was replayed before."""
    bench = either
    await lived(bench, range(20))
    await ran(bench)
    await lived(bench, range(20, 30), NEW)

    await nothing(bench, {"handled": 10, "replayed": 20})
    await lived(bench, range(30, 40), "3")
    assert (await planned(bench)).skipped == {"handled": 10, "replayed": 20}
    assert (await ran(bench)).allotted == 10
    counted = await by_version(bench)
    assert max(counted.values()) == 1
    assert sum(by == NEW for _, by in counted) == 40
    assert await bench.violations() == []


async def test_a_version_that_was_only_tried_is_not_active(bench: Bench) -> None:
    """It is known after a replay; live goes on under the old one until a worker brings the new one."""
    await lived(bench, range(5))
    await ran(bench)
    await lived(bench, range(5, 10))
    assert (await by_version(bench))[9, "1"] == 1
    await lived(bench, range(10, 12), NEW)
    assert (await by_version(bench))[11, NEW] == 1


async def test_a_plan_writes_nothing(bench: Bench) -> None:
    """No topic is made, and none that is there gets a record."""
    await lived(bench, range(5))
    admin = AdminClient({"bootstrap.servers": bench.broker})

    def all_there() -> set[str]:
        return {name for name in admin.list_topics(timeout=10).topics if bench.name in name}

    before, known = all_there(), len(await told(bench, "headrace.versions"))
    assert (await planned(bench)).allotted == 5
    assert all_there() == before
    assert len(await told(bench, "headrace.versions")) == known


async def test_commands_tell_replays_from_live_work(either: Bench, tmp_path: Path) -> None:
    """``replay`` itself; ``status``, ``model history``, ``why``, ``show``, ``tail`` and ``dlq`` beside it."""
    bench = either
    bench.broken |= {1}
    await lived(bench, range(12))
    await asyncio.to_thread((tmp_path / "app.py").write_text, APP.replace("NAME", bench.name))

    async def run(*words: object) -> Ran:
        where = ("--journal", bench.url, "--index", str(bench.index))
        return await asyncio.to_thread(lambda: apart(*words, *where, cwd=tmp_path))

    planned = await run("replay", "app:app", "handle", "--side", SIDE, "--dry-run", "--json")
    assert (planned.code, planned.err) == (Exit.DONE, "")
    assert (planned.document["allotted"], planned.document["skipped"]) == (11, {"dead": 1})
    done = (await run("replay", "app:app", "handle", "--side", SIDE, "--json", "--rate", "500/s")).document
    told_of = [
        done[name] for name in ("allotted", "handled", "emitted", "dead", "expired", "left", "complete")
    ]
    assert told_of == [11, 11, 11, 0, 0, 0, True]
    status = (await run("status", "--json", "--verify")).document
    (one,) = [one for one in status["replays"] if one["handler"] == bench.handler]
    assert (one["side"], one["done"], one["waiting"], one["complete"]) == (SIDE, 11, 0, True)
    assert [one for one in status["violations"] if bench.name in one["where"]] == []
    (history,) = (await run("model", "history", bench.handler, "--json")).document
    assert {one["version"]: (one["handled"], one["replayed"]) for one in history["versions"]} == {
        "1": (12, 0), NEW: (0, 11),
    }  # fmt: skip
    result = next(one for one in await told(bench) if one.body()["number"] == 7)
    found = (await run("show", result.headers["ce_id"].decode(), "--json")).document
    assert found["side"] == SIDE
    why = (await run("why", result.headers["ce_parentids"].decode(), "--json")).document["handlers"]
    assert [(one["replay"], one["state"], one["version"]) for one in why] == [
        (None, "done", "1"), (f"side {SIDE}", "done", NEW),
    ]  # fmt: skip
    tail = await run("tail", "--side", SIDE, "--jsonl", "--limit", 50)
    assert len([one for one in tail.lines if one["topic"] == f"read-{bench.name}.side.{SIDE}"]) == 11
    (letter,) = (await run("dlq", "ls", "--handler", bench.handler, "--jsonl")).lines
    assert not letter["replay"]


async def test_a_topic_that_was_made_again_has_another_history(bench: Bench) -> None:
    """A replay of the old one ends with an error; nothing of the new one is taken for what was allotted."""
    await lived(bench, range(10))
    bench.gate.clear()
    running = asyncio.create_task(replayed(bench))

    async def at_work() -> bool:
        async with bench.log() as log:
            return any(split_name(one.subscription)[1] for one in await log.index.view.claims())

    await until(at_work)
    admin = AdminClient({"bootstrap.servers": bench.broker})
    for answer in admin.delete_topics([f"sent-{bench.name}"]).values():
        await asyncio.to_thread(answer.result, 10)
    await asyncio.sleep(1)
    async with bench.app() as app:
        await bench.publish(app, range(20, 25))
    with pytest.raises(errors.ReplayRefused, match="deleted and made again"):
        await running
    bench.gate.set()
    assert not {*await side(bench)} & {*range(20, 25)}


async def test_without_history_it_is_refused(bench: Bench) -> None:
    """A handler that was never live has none; nothing is made."""
    with pytest.raises(errors.ReplayRefused, match="no live subscription"):
        await planned(bench)
    assert await told(bench, f"sent-{bench.name}") == []


async def test_offsets_bound_it(bench: Bench) -> None:
    """Both are included, in each partition; a later order gets the rest."""
    async with serving(bench.app()) as app:
        await bench.publish(app, range(9), who="one")
        await closed(bench, 9)
    places = await _places(bench)
    assert (await ran(bench, {"from_offset": places[2], "to_offset": places[5]})).done == 4
    assert await side(bench) == [2, 3, 4, 5]
    assert (await ran(bench)).done == 5
    assert await side(bench) == list(range(9))


async def _places(bench: Bench) -> list[int]:
    """Return the offsets of the events of one key, which have markers between them."""
    async with bench.log() as log:
        found = await log.read_on(f"sent-{bench.name}", partition_of_key("one", 16), 0)
        return [message.offset() or 0 for message in found]


async def test_times_bound_it(bench: Bench) -> None:
    """By the time that stands in the envelope: from the first on, before the second."""
    await lived(bench, range(6))
    published = await told(bench, f"sent-{bench.name}")
    times = {
        one.body()["number"]: us_of(datetime.fromisoformat(one.headers["ce_time"].decode()))
        for one in published
    }
    assert (await planned(bench, from_us=times[2], to_us=times[5])).allotted == 3
    assert (await ran(bench, {"from_us": times[2], "to_us": times[5]})).done == 3
    assert await side(bench) == [2, 3, 4]
    assert (await ran(bench, {"from_us": times[1]})).done == 2
    assert await side(bench) == [1, 2, 3, 4, 5]


async def test_a_chain_bounds_it(bench: Bench) -> None:
    """The events of the topic that belong to the chain of one of them."""
    first, second = uuid4(), uuid4()
    async with serving(bench.app()) as app:
        await bench.publish(app, range(5))
        await app.publish(bench.sent(who="a", number=5), event_id=first)
        await app.publish(bench.sent(who="b", number=6), event_id=second, parents=[first])
        await closed(bench, 7)
    assert (await ran(bench, {"chain": second.bytes})).done == 2
    assert await side(bench) == [5, 6]


async def test_copies_and_conflicts_are_no_history(either: Bench) -> None:
    """What was published twice is replayed once; what has a taken id is a dead letter."""
    bench, ids = either, [uuid4() for _ in range(20)]
    async with serving(bench.app()) as app:
        for number in [*range(20), *range(10)]:
            await app.publish(bench.sent(who=f"c{number % 3}", number=number), event_id=ids[number])
        await app.publish(bench.sent(who="c0", number=99), event_id=ids[0])
        await closed(bench, 21)
    plan = await planned(bench)
    assert (plan.allotted, plan.skipped) == (20, {"dead": 1})
    assert (await ran(bench)).done == 20
    assert await side(bench) == list(range(20))
    assert await bench.violations() == []


async def test_dead_letters_of_live_are_redriven_and_not_replayed(bench: Bench) -> None:
    """Under whatever version; once a redriven one is done it is history as any other."""
    bench.broken |= {3, 5}
    await lived(bench, range(10))
    bench.broken.clear()
    assert (await planned(bench)).skipped == {"dead": 2}
    state = await ran(bench)
    assert state.done == 8
    await redriven(bench, 2, "1")
    assert await bench.results() == list(range(10))
    assert (await ran(bench)).done == 2
    assert await side(bench) == list(range(10))
    assert max((await by_version(bench)).values()) == 1
    assert await bench.violations() == []


async def test_its_own_dead_letters_come_back_to_the_same_order(bench: Bench) -> None:
    """They are told apart from those of live; redriven, the same command handles them, once."""
    await lived(bench, range(10))
    bench.broken |= {2, 4}
    state = await ran(bench)
    assert (state.done, state.dead) == (8, 2)
    bench.broken.clear()
    found = await bench.letters()
    assert {one.replay for one in found} == {"side trial"}
    await nothing(bench, {"replayed": 10})
    async with bench.log() as log:
        assert [one.problem for one in await letters.redrive(log, found)] == ["", ""]
        again = await letters.redrive(log, found)
        assert {one.problem for one in again} == {"it was redriven before"}
    state = await ran(bench)
    assert (state.done, state.dead) == (10, 0)
    assert await side(bench) == list(range(10))
    assert await bench.positions() == Counter(taken=10, done=10)
    assert await bench.violations() == []


async def test_again_has_a_ledger_of_its_own(bench: Bench) -> None:
    """What the version has had, live and replayed, once more under each name, and once only."""
    await lived(bench, range(8))
    await ran(bench)
    for name in ("one", "two"):
        assert (await ran(bench, {"side": "more", "again": name})).done == 8
        await nothing(bench, {"replayed": 8}, side="more", again=name)
    assert (await ran(bench, {"again": "one"}, version="1")).done == 8
    more = await side(bench, f"read-{bench.name}.side.more")
    assert more == sorted([*range(8)] * 2)
    assert len(await side(bench)) == 16


async def test_live_results_lie_among_the_live_ones(bench: Bench) -> None:
    """``--live``: into the live topics, under ids of the version's own."""
    await lived(bench, range(6))
    assert (await ran(bench, {"side": None})).emitted == 6
    assert await by_version(bench) == Counter({(n, by): 1 for n in range(6) for by in ("1", NEW)})
    ids = [one.headers["ce_id"] for one in await told(bench, f"read-{bench.name}")]
    assert len(set(ids)) == 12
    assert await told(bench) == []


async def test_what_retention_has_eaten_is_expired(bench: Bench) -> None:
    """Before it is allotted it is passed over; afterwards it counts, and the replay ends all the same."""
    await lived(bench, range(10))
    bench.eat(f"sent-{bench.name}")
    await nothing(bench, {"expired": 10})
    await lived(bench, range(10, 30))
    plan = await planned(bench)
    assert (plan.allotted, plan.skipped) == (20, {"expired": 10})

    bench.gate.clear()
    running = asyncio.create_task(ran(bench, {"from_offset": 0}))

    async def begun() -> bool:
        return bool(await told(bench, f"headrace.{bench.handler}.replays"))

    await until(begun)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    bench.gate.set()
    bench.eat(f"sent-{bench.name}")
    state = await ran(bench, {"from_offset": 0})
    assert state.done + state.expired + state.dead == 20
    assert state.expired + state.dead >= 1
    found = await side(bench)
    assert len(found) == len(set(found)) == state.done
