"""Parents that are published apart on a real Kafka: no handler sees an event before they are there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from uuid import uuid4

from tests.services.desks import Bench, serving, until
from tests.services.reading import committed


async def test_a_parent_in_any_topic_is_found(broker: str, tmp_path: Path) -> None:
    """Also in one that nobody handles, and of which the index knew nothing until somebody asked."""
    bench = Bench(broker, tmp_path)
    async with serving(bench.app()) as app:
        parent = await app.publish(bench.read(who="x", number=100))
        child = await app.publish(bench.sent(who="a", number=1), parents=[parent.event_id])
        await app.publish(bench.sent(who="b", number=2), parents=[child.event_id])
        await app.publish(bench.sent(who="a", number=3))

        async def handled() -> bool:
            return await bench.results() == [1, 2, 3, 100]

        await until(handled)
        assert await bench.letters() == []
        told = {one.body()["number"]: one.headers for one in committed(broker, f"read-{bench.name}")}
        chain = str(parent.event_id).encode()
        assert told[1]["ce_causalityid"] == chain
        assert [int(told[n]["ce_depth"]) for n in (100, 1)] == [0, 2]
    assert await bench.positions() == Counter(taken=3, done=3)


async def test_an_event_whose_parent_is_nowhere_is_an_orphan(broker: str, tmp_path: Path) -> None:
    """It is a dead letter that names the parent; others go on meanwhile, and the next of its key after it."""
    bench = Bench(broker, tmp_path)
    async with serving(bench.app()) as app:
        missing = uuid4()
        for number in range(3):
            await app.publish(bench.sent(who="a", number=number), parents=[missing])
            await app.publish(bench.sent(who="a", number=10 + number))

        async def handled() -> bool:
            return await bench.results() == [10, 11, 12] and len(await bench.letters()) == 3

        await until(handled)
        found = await bench.letters()
        assert {(one.reason, one.code) for one in found} == {("orphan", "HR-E111")}
        assert all(str(missing) in one.error for one in found)
    assert await bench.positions() == Counter(taken=6, done=3, dead=3)
