"""Take-over: what becomes of the work of an owner that is gone, and of what it had put off."""

from __future__ import annotations

import asyncio

import pytest
from tests.journal.lab import Lab, offsets

from headrace.journal import scan
from headrace.ports import Batch, OpenState, Outcome


async def test_what_a_dead_worker_had_in_hand_runs_one_by_one(lab: Lab) -> None:
    """Its events are suspects: alone, in order, the crash counted; those it had finished are not."""
    lab.partitions = 1
    first = await lab.member()
    await lab.publish("a", "b", "c", None)
    batch = await first.taken()
    innocent, *suspects = batch.rows
    await first.settle(batch, Outcome(done=[innocent]))
    first.die()
    lab.expire()

    second = await lab.member()
    for row in suspects:
        again = await second.taken()
        assert (again.alone, again.rows) == (True, [row])
        attempt = second.attempt(again, row)
        assert (attempt.number, attempt.crashes) == (2, 1)
        await second.settle(again)
    assert await second.take() is None
    lab.sound()


async def test_what_was_never_settled_at_all_is_suspected_too(lab: Lab) -> None:
    """A whole claimed range without any outcome comes back one by one; new events are no suspects."""
    lab.partitions = 1
    first = await lab.member()
    await lab.publish("a", "b")
    batch = await first.taken()
    first.die()
    await lab.publish("c")
    lab.expire()
    second = await lab.member()

    seen = []
    for _ in range(3):
        again = await second.taken()
        seen.append((offsets(again.rows), again.alone))
        await second.settle(again)

    new = lab.ledger.offsets(second.subscription.topic.id)[-1]
    assert sorted(seen) == [([row[0]], True) for row in batch.rows] + [([new], False)]
    lab.sound()


async def test_attempts_and_crashes_survive_every_death(lab: Lab) -> None:
    """Counted before the run: after n deaths the n + 1st worker is told of n crashes."""
    await lab.publish("a")
    for deaths in range(4):
        member = await lab.member()
        batch = await member.taken()
        attempt = member.attempt(batch, batch.rows[0])
        assert (attempt.number, attempt.crashes) == (deaths + 1, deaths)
        member.die()
        lab.expire()
    lab.sound()


async def test_waiting_events_are_taken_over_with_their_time_and_order(lab: Lab) -> None:
    """A retry that waits, and what its key blocks, wait on with the next owner and are no suspects."""
    lab.partitions = 1
    first = await lab.member()
    await lab.publish("a", "a", "b")
    batch = await first.taken()
    a1, a2, b = batch.rows
    waiting = [first.waits(batch, a1, after_ms=30_000)]
    waiting.append(first.waits(batch, a2, state=OpenState.BLOCKED))
    await first.settle(batch, Outcome(done=[b], waiting=waiting))
    first.die()
    lab.expire()

    second = await lab.member()
    assert await second.take() is None
    lab.clock.advance(20)
    for row, number in ((a1, 2), (a2, 1)):
        again = await second.taken()
        assert (again.alone, again.rows, second.attempt(again, row).number) == (False, [row], number)
        await second.settle(again)
    lab.sound()


@pytest.mark.parametrize("back_s", [-3_600, -10 * 86_400, 3_600])
async def test_a_wall_clock_that_jumps_does_not_hold_a_retry_up(lab: Lab, back_s: int) -> None:
    """After a take-over a retry waits at most as long as it was meant to, whatever the wall clock did."""
    first = await lab.member()
    await lab.publish("a")
    batch = await first.taken()
    await first.settle(batch, Outcome(waiting=[first.waits(batch, batch.rows[0], after_ms=30_000)]))
    first.die()
    lab.clock.set_wall(back_s)
    lab.expire()

    second = await lab.member()
    lab.clock.advance(30)

    assert await second.take() is not None


async def test_the_position_goes_on_where_it_was(lab: Lab) -> None:
    """A take-over re-runs what was open and continues at the position; nothing finished comes again."""
    first = await lab.member()
    await lab.publish(*"abcd")
    done = await first.taken(2)
    await first.settle(done)
    in_hand = await first.taken(1)
    first.die()
    lab.expire()

    second = await lab.member()
    found: list[int] = []
    while batch := await second.take():
        found += offsets(batch.rows)
        await second.settle(batch)

    everything = lab.ledger.offsets(second.subscription.topic.id)
    assert sorted(found) == sorted(set(everything) - set(offsets(done.rows)))
    assert offsets(in_hand.rows)[0] in found
    lab.sound()


async def test_a_position_never_goes_back(lab: Lab) -> None:
    """A partition taken over that is ahead of the others is not read again from where they stand."""
    lab.partitions = 2
    quick, slow = await lab.member(), await lab.member()
    for member in (quick, slow):
        await member.balance()
    await lab.publish(*"abcdefghijkl")
    seen: list[int] = []
    while batch := await quick.take(2):
        seen += offsets(batch.rows)
        await quick.settle(batch)
    await quick.leave()
    await slow.balance()

    while batch := await slow.take(2):
        seen += offsets(batch.rows)
        await slow.settle(batch)

    assert sorted(seen) == lab.ledger.offsets(slow.subscription.topic.id)
    lab.sound()


async def test_an_event_finished_beside_its_claimed_range_does_not_come_back(lab: Lab) -> None:
    """An event that only waited for its key is finished once, though those claimed with it never were."""
    lab.partitions = 1
    first = await lab.member()
    await lab.publish("a")
    batch = await first.taken()
    await first.settle(batch, Outcome(waiting=[first.waits(batch, batch.rows[0], after_ms=1_000)]))
    await lab.publish("a", "b")
    slow = await first.taken()
    lab.clock.advance(1)
    finished: list[int] = []
    while batch := await first.take():
        finished += offsets(batch.rows)
        await first.settle(batch, await first.made(batch))
    first.die()
    lab.expire()

    second = await lab.member()
    await second.drain()

    assert not set(offsets(slow.rows)) & set(finished)
    assert list(lab.ledger.children().values()) == [1, 1, 1]
    assert lab.ledger.counts(second.sub) == {"taken": 3, "done": 3}
    lab.sound()


async def test_what_waits_beside_a_claimed_range_goes_on_with_its_first_outcome(lab: Lab) -> None:
    """An empty outcome is enough: from then on each event in hand stands for itself."""
    lab.partitions = 1
    member = await lab.member()
    await lab.publish("a")
    batch = await member.taken()
    await member.settle(batch, Outcome(waiting=[member.waits(batch, batch.rows[0], after_ms=1_000)]))
    await lab.publish("a", "b")
    slow = await member.taken()
    assert [member.key(row) for row in slow.rows] == ["b"]
    lab.clock.advance(1)
    await member.settle(await member.taken())

    await member.settle(slow, Outcome())

    assert [member.key(row) for row in (await member.taken()).rows] == ["a"]
    lab.sound()


@pytest.mark.needs("leases")
@pytest.mark.needs("several_connections")
async def test_a_worker_without_partitions_does_not_look_on(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that ends among the events of others is taken up later; by then all may be lost."""
    monkeypatch.setattr(scan, "PAGE_ROWS_MAX", 1)
    monkeypatch.setattr(scan, "PAGES_MAX", 1)
    first = await lab.member()
    second = await lab.member(journal=await lab.another())
    for member in (first, second):
        await member.balance()
    await lab.publish(*"abcdefgh")
    batch: Batch | None = await first.taken(1)
    while batch is not None:  # until the next event is one of the other's
        batch = (await first.settle(batch, limit=1)).next
    lab.expire()
    second.worker.renew()
    for member in (second, first):
        await member.balance()
    assert first.consumer.held() == 0

    async with asyncio.timeout(10):
        assert await first.take() is None
