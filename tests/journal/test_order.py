"""Ordered visibility: whoever asks for what comes after the last event seen never misses one."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest
from tests.journal.journals import Kind
from tests.journal.lab import Lab, Member, SeededChance
from tests.journal.nursery import Nursery


async def read_on(member: Member, until: asyncio.Event, *, beside: float) -> list[tuple[int, int]]:
    """Take what there is, again and again; return (place, offset) in the order seen."""
    seen: list[tuple[int, int]] = []
    last = False
    while True:
        batch = await member.take(7)
        if batch is not None:
            seen += [(row[1], row[0]) for row in batch.rows]
            await member.settle(batch)
        elif last:
            return seen
        elif until.is_set():
            # Where nobody tells of commits they are looked for, every few milliseconds.
            last = True
            await asyncio.sleep(0.1)
        await asyncio.sleep(beside)


def check_order(seen: list[tuple[int, int]]) -> None:
    """Check that the offsets of every partition were seen in rising order."""
    for place in {place for place, _ in seen}:
        offsets = [offset for at, offset in seen if at == place]
        assert all(a < b for a, b in pairwise(offsets))


async def test_a_reader_misses_nothing_of_many_publishers(lab: Lab) -> None:
    """Several connections publish at once; a reader beside them sees every event once, in order."""
    await lab.journal()
    publishers = (
        [await lab.another() for _ in range(3)] if lab.kind.can.several_connections else lab._open * 3
    )
    reader = await lab.member()
    ended = asyncio.Event()

    async def publish(number: int) -> None:
        for n in range(20):
            await lab.publish(f"k{n % 4}", None, f"k{number}", journal=publishers[number])
            await asyncio.sleep(0)

    task = asyncio.create_task(read_on(reader, ended, beside=0))
    await asyncio.gather(*(publish(number) for number in range(3)))
    ended.set()
    seen = await task

    check_order(seen)
    assert sorted(offset for _, offset in seen) == lab.ledger.offsets(reader.subscription.topic.id)
    assert len(seen) == 180
    lab.sound()


def test_a_reader_misses_nothing_of_other_processes(
    shared_kind: Kind, tmp_path: Path, nursery: Nursery
) -> None:
    """The same with publishers that are processes of their own."""
    jobs = [
        {"job": "publish", "kind": shared_kind.where, "folder": str(tmp_path), "seed": n, "units": 60}
        for n in (1, 2, 3)
    ]

    async def main() -> None:
        lab = Lab(shared_kind, tmp_path, chance=SeededChance(9))
        reader = await lab.member()
        ended = asyncio.Event()
        task = asyncio.create_task(read_on(reader, ended, beside=0.001))
        assert await asyncio.to_thread(nursery.run, *jobs) == [0, 0, 0]
        ended.set()
        seen = await task
        check_order(seen)
        assert len(seen) == len(set(seen)) == 3 * 60 * 3
        lab.sound()
        await lab.close()

    asyncio.run(main())


@pytest.mark.needs("knows_parents")
async def test_a_gap_is_no_end(lab: Lab) -> None:
    """A publish that was refused leaves at most a hole in the offsets: what comes behind it is seen."""
    journal = await lab.journal()
    reader = await lab.member()
    await lab.publish("a")
    refused = [await lab.event(), await lab.event(parents=[bytes(16)])]
    found = await asyncio.gather(journal.publish(refused), lab.publish("b"), return_exceptions=True)
    assert isinstance(found[0], Exception)
    await lab.publish("a")

    assert len((await reader.taken()).rows) == 3
