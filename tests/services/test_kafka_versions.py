"""Versions on a real Kafka: a topic holds what was decided, every index shows the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest
from tests.services.desks import opened, serving, until, wipe
from tests.services.reading import committed

from headrace import App, Event, errors
from headrace.ports import VersionOffer
from headrace.settings import Settings


class Wanted(Event, topic="wanted", key="who"):
    """What is published."""

    who: str
    number: int


class Given(Event, topic="given", key="who"):
    """What follows from it."""

    who: str
    number: int


def offer(handler: str, digest: str, declared: str = "1") -> VersionOffer:
    """Return the offer of a version."""
    return VersionOffer(handler, declared, "m", digest)


async def test_every_index_gives_the_same_numbers(broker: str, tmp_path: Path) -> None:
    """One made anew, at once and after: numbers, names and the active version follow from the topic."""
    handler, url = f"h{uuid4().hex}", f"kafka://{broker}"
    async with opened(url, tmp_path / "a.db") as one, opened(url, tmp_path / "b.db") as two:
        made = await asyncio.gather(one.offer(offer(handler, "x")), two.offer(offer(handler, "x")))
        assert made[0].mine == made[1].mine
        both = [await one.offer(offer(handler, "y")), await two.offer(offer(handler, "y"))]
        assert both[0] == both[1]
    async with opened(url, tmp_path / "c.db") as three:
        again = await three.offer(offer(handler, "x"))
        assert (again.mine, again.active) == (made[0].mine, both[0].mine), "known, and not active"
        found = await three.log.index.active(handler)
        assert found.version == both[0].mine.id


async def test_going_back_is_a_decision(broker: str, tmp_path: Path) -> None:
    """A known version is activated by its name, for all; one that nobody offered is refused."""
    handler, url = f"h{uuid4().hex}", f"kafka://{broker}"
    async with opened(url, tmp_path / "a.db") as one, opened(url, tmp_path / "b.db") as two:
        old = (await one.offer(offer(handler, "x"))).mine
        await one.offer(offer(handler, "y"))
        assert await two.activate(handler, old.name) == old
        assert (await one.offer(offer(handler, "y"))).active == old
        for call, fault in (
            (one.activate(handler, "@9"), errors.VersionUnknown),
            (one.activate(handler + "x", "@1"), errors.HandlerUnknown),
        ):
            with pytest.raises(fault):
                await call


async def test_an_index_that_was_set_back_is_noticed_by_a_claim(broker: str, tmp_path: Path) -> None:
    """Emptied under workers, or older than the last decision: that is shown again before anything else."""
    handler, url = f"h{uuid4().hex}", f"kafka://{broker}"
    async with opened(url, tmp_path / "a.db") as journal:
        await journal.offer(offer(handler, "x"))
        earlier = (tmp_path / "a.db").with_suffix(".earlier")
        async with opened(url, earlier) as other:
            await other.log.versions.catch_up()
        new = (await journal.offer(offer(handler, "y"))).mine
        wipe(tmp_path / "a.db")
        assert await journal.log.active(handler) == new.id
    async with opened(url, earlier) as restored:
        assert (await restored.log.index.active(handler)).version != new.id
        await restored.offer(offer(handler, "y"))
        assert await restored.log.active(handler) == new.id


async def test_a_decision_whose_maker_died_is_shown_by_the_next(broker: str, tmp_path: Path) -> None:
    """Appended and not projected: whoever reads the topic next sees to it."""
    handler, url = f"h{uuid4().hex}", f"kafka://{broker}"
    async with opened(url, tmp_path / "a.db") as one, opened(url, tmp_path / "b.db") as two:
        old = (await one.offer(offer(handler, "x"))).mine
        await one.offer(offer(handler, "y"))
        await two.activate(handler, old.name)  # the index of the first knows nothing of it
        assert (await one.log.index.active(handler)).version != old.id
        await one.log.versions.catch_up()
        assert (await one.log.index.active(handler)).version == old.id


async def test_an_index_emptied_under_a_worker_loses_and_doubles_nothing(broker: str, tmp_path: Path) -> None:
    """First positions are read again from the topic, versions from theirs; copies stay copies."""
    index = tmp_path / "index.db"
    settings = Settings(journal=f"kafka://{broker}", index=str(index))
    app = App("emptied", settings=settings, events=[Wanted, Given])

    @app.handler
    async def give(wanted: Wanted) -> Given:
        return Given(who=wanted.who, number=wanted.number)

    async def given() -> list[int]:
        found = await asyncio.to_thread(committed, broker, "given")
        return sorted(one.body()["number"] for one in found)

    async with serving(app):
        ids = [uuid4() for _ in range(60)]
        for rounds in range(3):
            for n in range(20 * (rounds + 1)):
                await app.publish(Wanted(who=f"c{n % 7}", number=n), event_id=ids[n])

            async def holds(count: int = 20 * (rounds + 1)) -> bool:
                return len(await given()) >= count

            await until(holds)
            wipe(index)
        assert await given() == list(range(60))
