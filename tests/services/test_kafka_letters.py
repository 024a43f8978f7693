"""Dead letters and lost events on a real Kafka: decided by persons, carried out once, counted."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from tests.services.desks import Bench, serving, until
from tests.services.reading import committed

from headrace.codec.commands import Decide, write_command
from headrace.event.lineage import partition_of_key
from headrace.journal.kafka import letters
from headrace.journal.kafka.log import own_topics
from headrace.journal.kafka.poll import Poller
from headrace.ports.look import Filter

#: More than a worker keeps of what it cannot handle yet.
BEHIND = 8_000


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
async def test_a_redriven_event_is_handled_once_more(bench: Bench, protocol: str) -> None:
    """What follows from it is there, its letter says so, and no count is wrong; twice is refused."""
    bench.url += f"?group.protocol={protocol}"
    bench.broken |= {3, 5, 7}
    async with serving(bench.app()) as app:
        await bench.publish(app, range(10))

        async def dead(count: int = 3) -> bool:
            return len(await bench.letters()) == count

        await until(dead)
        found = await bench.letters()
        assert [(one.reason, one.attempts, one.generation, one.fate) for one in found] == [
            ("failed", 1, 0, None)
        ] * 3
        assert all("not " in one.error and one.handler == bench.handler for one in found)
        by_number = {one.event.envelope.key: one for one in found}
        bench.broken -= {3, 5}
        async with bench.log() as log:
            three, five, seven = (by_number[f"c{n}"] for n in (3, 5, 7))
            assert [one.problem for one in await letters.redrive(log, [three, five, seven])] == ["", "", ""]

            async def redriven() -> bool:
                return len(await bench.results()) == 9 and len(await bench.letters()) == 4

            await until(redriven)
            again = await letters.refusals(log, [three, seven])
            assert [one.problem for one in again] == ["it was redriven before"] * 2
        assert await bench.results() == [0, 1, 2, 3, 4, 5, 6, 8, 9]
        fates = [
            (one.event.envelope.key, one.generation, one.fate, one.again) for one in await bench.letters()
        ]
        assert sorted(fates) == [
            ("c3", 0, "redriven", False),
            ("c5", 0, "redriven", False),
            ("c7", 0, "redriven", False),
            ("c7", 1, None, True),
        ]
    counted = await bench.positions()
    assert counted == Counter(taken=10, done=9, dead=1)
    assert await bench.violations() == []


async def test_a_dropped_letter_stays_counted(bench: Bench) -> None:
    """It leaves the list and cannot be redriven any more; a decision made while nobody works waits."""
    bench.broken |= {1}
    async with serving(bench.app()) as app:
        await bench.publish(app, range(3))

        async def dead() -> bool:
            return len(await bench.letters()) == 1

        await until(dead)
    async with bench.log() as log:
        (letter,) = await bench.letters()
        assert [one.problem for one in await letters.drop(log, [letter])] == [""]
        assert [one.fate for one in await bench.letters()] == ["dropped"], "as good as done"
        assert await bench.letters(Filter()) == []
        assert [one.problem for one in await letters.redrive(log, [letter])] == ["it was dropped before"]
    async with serving(bench.app()) as app:
        await bench.publish(app, range(3, 5))

        async def handled() -> bool:
            return len(await bench.results()) == 4

        await until(handled)
    assert [one.fate for one in await bench.letters()] == ["dropped"]
    assert await bench.positions() == Counter(taken=5, done=4, dead=1)
    assert await bench.violations() == []


async def test_a_command_that_cannot_be_followed_says_why(bench: Bench) -> None:
    """Two decide at once, or somebody writes nonsense: one decision stands, the other has its reason."""
    bench.broken |= {1}
    async with serving(bench.app()) as app:
        await bench.publish(app, range(2))

        async def dead() -> bool:
            return len(await bench.letters()) == 1

        await until(dead)
        (letter,) = await bench.letters()
        place = letter.event.envelope
        producer, topic = Producer({"bootstrap.servers": bench.broker}), own_topics(bench.handler)[1]
        at = letter.id >> 20
        for fate, shift, offset in (
            ("dropped", 0, at),
            ("redriven", 0, at),
            ("dropped", 0, at + 9),
            ("eaten", 1, at),
        ):
            command = Decide(fate, place.offset + shift, 0, offset, 1)
            producer.produce(topic, write_command(command), partition=place.partition)
        producer.produce(topic, b"nonsense", partition=place.partition)
        producer.flush(10)

        async def told() -> bool:
            return (await bench.letters())[0].refused != ""

        await until(told)
        (letter,) = await bench.letters()
        assert letter.fate == "dropped"
        assert letter.refused in ("it was dropped before", "there is no such dead letter")
        await bench.publish(app, range(2, 4))

        async def handled() -> bool:
            return await bench.results() == [0, 2, 3]

        await until(handled)


async def test_an_event_that_its_topic_has_lost_is_redriven_from_its_letter(bench: Bench) -> None:
    """Key, headers and payload are those of the event; so are its id and what follows from it."""
    bench.broken |= set(range(4))
    async with serving(bench.app()) as app:
        await bench.publish(app, range(4))

        async def dead() -> bool:
            return len(await bench.letters()) == 4

        await until(dead)
        found = await bench.letters()
        bench.eat(f"sent-{bench.name}")
        bench.broken.clear()
        async with bench.log() as log:
            await letters.redrive(log, found)

        async def handled() -> bool:
            return await bench.results() == [0, 1, 2, 3]

        await until(handled)
        told = await asyncio.to_thread(committed, bench.broker, f"read-{bench.name}")
        parents = {one.headers["ce_parentids"].decode() for one in told}
        assert parents == {str(one.event.envelope.event_id) for one in found}
    assert await bench.positions() == Counter(taken=4, done=4)
    assert await bench.violations() == []


async def test_an_open_event_that_retention_has_eaten_is_expired(broker: str, tmp_path: Path) -> None:
    """It waits for a retry while workers are down, and is gone when they come back: a letter says so."""
    bench = Bench(broker, tmp_path, attempts_max=9, backoff_ms=600_000)
    bench.broken |= {0, 1}
    async with serving(bench.app()) as app:
        await bench.publish(app, range(5))

        async def waiting() -> bool:
            return (await bench.positions())["open"] == 2

        await until(waiting)
    bench.eat(f"sent-{bench.name}")
    for count in (1, 2):
        async with serving(bench.app()) as app:
            await bench.publish(app, range(4 + count, 5 + count))

            async def handled(count: int = count) -> bool:
                return len(await bench.results()) == 3 + count

            await until(handled)
        found = await bench.letters()
        assert [(one.reason, one.code, one.event.payload) for one in found] == [
            ("expired", "HR-E117", b"")
        ] * 2
    assert await bench.positions() == Counter(taken=7, done=5, expired=2)
    assert await bench.violations() == []
    async with bench.log() as log:
        answers = await letters.redrive(log, found)
    assert {one.problem for one in answers} == {"nobody has its event any more"}
    await bench.put_away()
    assert await bench.positions() == Counter(taken=7, done=5, expired=2)
    assert await bench.violations() == []


async def test_events_deleted_before_they_were_taken_do_not_stop_a_worker(bench: Bench) -> None:
    """Retention was quicker, while nobody worked: the position goes on behind the gap."""
    async with serving(bench.app()) as app:
        await bench.publish(app, range(3), who="one")

        async def first() -> bool:
            return await bench.results() == [0, 1, 2]

        await until(first)
    async with bench.app() as app:
        await bench.publish(app, range(3, 8), who="one")
    bench.eat(f"sent-{bench.name}")
    async with serving(bench.app()) as app:
        await bench.publish(app, range(8, 10), who="one")

        async def rest() -> bool:
            return await bench.results() == [0, 1, 2, 8, 9]

        await until(rest)


async def test_retention_that_overtakes_a_worker_does_not_stop_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is behind by more than it keeps, and what it would read next is gone: it goes on with the rest."""
    pollers: list[Poller] = []
    start_of = Poller.start

    def start(self: Poller, *, latest: bool) -> None:
        pollers.append(self)
        start_of(self, latest=latest)

    monkeypatch.setattr(Poller, "start", start)
    bench.url += "?queued.min.messages=100&fetch.message.max.bytes=8192"  # fetches little ahead
    bench.gate.clear()
    async with serving(bench.app()) as app:
        for first in range(0, BEHIND, 500):
            await app.publish([bench.sent(who="one", number=n) for n in range(first, first + 500)])

        async def paused() -> bool:
            return any(one._paused for one in pollers)

        await until(paused)
        bench.eat(f"sent-{bench.name}", partition_of_key("one", 16), BEHIND)
        bench.gate.set()

        async def handled() -> bool:
            return BEHIND - 1 in await bench.results()

        await until(handled)
        found = Counter(await bench.results())
    assert "retention has eaten" in caplog.text
    assert max(found.values()) == 1
    assert set(found) >= set(range(BEHIND - 10, BEHIND)), (
        "transactions leave marks: so much is left in any case"
    )


async def test_a_group_that_the_brokers_forgot_goes_on_from_its_ledger(bench: Bench) -> None:
    """Idle for a week, its offsets are deleted: nothing is handled again, nothing is left out."""
    async with serving(bench.app()) as app:
        await bench.publish(app, range(10))

        async def first() -> bool:
            return len(await bench.results()) == 10

        await until(first)
    admin = AdminClient({"bootstrap.servers": bench.broker})
    for answer in admin.delete_consumer_groups([f"headrace.{bench.handler}"]).values():
        answer.result(10)
    async with serving(bench.app()) as app:
        await bench.publish(app, range(10, 15))

        async def rest() -> bool:
            return len(await bench.results()) >= 15

        await until(rest)
    assert await bench.results() == list(range(15))
    assert await bench.violations() == []
