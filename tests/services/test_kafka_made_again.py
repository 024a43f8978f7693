"""A topic that is deleted and made again on a real Kafka: what was said of the old is none of the new."""

from __future__ import annotations

import asyncio

from confluent_kafka.admin import AdminClient
from tests.services.desks import Bench
from tests.services.replaying import NEW, lived, planned, redriven


async def deleted(bench: Bench) -> None:
    """Delete the topic; the next app makes it again."""
    admin = AdminClient({"bootstrap.servers": bench.broker})
    for answer in admin.delete_topics([f"sent-{bench.name}"]).values():
        await asyncio.to_thread(answer.result, 10)
    await asyncio.sleep(1)


async def test_redrives_of_the_old_are_none_of_the_new(bench: Bench) -> None:
    """A letter at the same place can be redriven; which version has had an event there is told anew."""
    bench.broken |= {1, 2}
    await lived(bench, range(4))
    bench.broken.clear()
    await redriven(bench, 2, "1")
    await deleted(bench)

    bench.broken |= {1}
    await lived(bench, range(4), NEW)
    bench.broken.clear()
    await redriven(bench, 1, NEW)
    assert [one.fate for one in await bench.letters()] == ["redriven"] * 3
    plan = await planned(bench)
    assert (plan.allotted, plan.skipped) == (0, {"handled": 4})
    assert await bench.violations() == []


async def test_letters_of_the_old_can_be_put_away(bench: Bench) -> None:
    """They can be redriven no more, and do not stand in the way of what is at their place now."""
    bench.broken |= {1, 2}
    await lived(bench, range(4))
    await deleted(bench)
    await lived(bench, range(4))

    found = await bench.letters()
    assert sorted(str(one.event.envelope.key) for one in found) == ["c1", "c1", "c2", "c2"]
    await bench.put_away()
    assert await bench.violations() == []
