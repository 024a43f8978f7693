"""Claims: which events a worker gets, in which order, and how often they were tried."""

from __future__ import annotations

import asyncio

import pytest
from tests.journal.lab import Lab, Member, offsets

from headrace.ports import FIRST_ATTEMPT, OpenState, Outcome, Settled


async def test_a_new_handler_starts_at_the_earliest_event(lab: Lab) -> None:
    """History counts; with `latest` it does not, and the accounting starts there."""
    await lab.publish("a", "b")
    late = await lab.member(handler="lab.late", latest=True)
    early = await lab.member(handler="lab.early")
    (event,) = await lab.publish("c")

    assert len((await early.taken()).rows) == 3
    assert [row[2] for row in (await late.taken()).rows] == [event.event_id]
    lab.sound()


async def test_start_is_decided_once(lab: Lab) -> None:
    """A handler that is known keeps its progress, whatever it says of its start later."""
    first = await lab.member(latest=True)
    assert await first.take() is None
    await lab.publish("a")
    await first.leave()

    again = await lab.member(latest=True)

    assert again.sub == first.sub
    assert len((await again.taken()).rows) == 1


async def test_a_batch_has_at_most_the_limit(lab: Lab) -> None:
    """No batch is larger than asked for, and all together hold every event once."""
    member = await lab.member()
    await lab.publish(*"abcdefghij", *[None] * 10)
    found: list[int] = []

    while batch := await member.take(3):
        assert len(batch.rows) <= 3
        found += offsets(batch.rows)
        await member.settle(batch)

    assert sorted(found) == lab.ledger.offsets(member.subscription.topic.id)
    lab.sound()


async def test_an_outcome_brings_the_next_batch(lab: Lab) -> None:
    """Settling with a limit claims in the same transaction what `take` would."""
    member = await lab.member()
    await lab.publish(*"abcd")

    settled = await member.settle(await member.taken(2), limit=2)

    assert settled.next is not None
    await member.settle(settled.next)
    assert lab.ledger.counts(member.sub) == {"taken": 4, "done": 4}
    assert await member.take() is None


async def test_a_claim_has_rows_in_offset_order_per_partition(lab: Lab) -> None:
    """Within a batch the events of a partition come in commit order."""
    member = await lab.member()
    await lab.publish(*"abcabcabc")

    rows = (await member.taken()).rows

    for place in {row[1] for row in rows}:
        mine = offsets(row for row in rows if row[1] == place)
        assert mine == sorted(mine)


async def test_a_waiting_event_blocks_its_key_and_no_other(lab: Lab) -> None:
    """Until a retry is finished no later event of its key is handed out; those of other keys are."""
    lab.partitions = 1
    member = await lab.member()
    await lab.publish("a", "b")
    batch = await member.taken()
    first, other = batch.rows
    await member.settle(batch, Outcome(done=[other], waiting=[member.waits(batch, first, after_ms=1_000)]))
    await lab.publish("a", "b", "a")

    unblocked = await member.taken()
    assert [member.key(row) for row in unblocked.rows] == ["b"]
    await member.settle(unblocked)
    assert await member.take() is None
    assert [one.state for one in lab.ledger.opened(member.sub).values()] == ["retry", "blocked", "blocked"]

    lab.clock.advance(1)
    order = [first[0]]
    for _ in range(3):
        again = await member.taken()
        assert len(again.rows) == 1
        order += offsets(again.rows)
        await member.settle(again)
    assert order[1:] == sorted(order[1:])
    assert order[0] == order[1]
    lab.sound()


async def test_one_event_of_a_key_runs_at_a_time_among_the_open(lab: Lab) -> None:
    """Events of one key that were all put back are handed out one after the other, oldest first."""
    lab.partitions = 1
    member = await lab.member()
    await lab.publish("a", "a", "a", None, None)
    batch = await member.taken()
    await member.settle(batch, Outcome(waiting=[member.waits(batch, row) for row in batch.rows]))

    again = await member.taken()
    assert [member.key(row) for row in again.rows].count("a") == 1
    assert again.rows[0][0] == batch.rows[0][0]
    assert await member.take() is None

    await member.settle(again)
    assert offsets((await member.taken()).rows) == [batch.rows[1][0]]
    lab.sound()


async def test_attempts_are_counted_before_they_run(lab: Lab) -> None:
    """Every claim is an attempt, its number comes with the batch, and the errors of the earlier ones too."""
    member = await lab.member()
    await lab.publish("a")
    batch = await member.taken()
    for number in (1, 2, 3):
        (row,) = batch.rows
        attempt = member.attempt(batch, row)
        assert (attempt.number, len(attempt.errors)) == (number, number - 1)
        if number > 1:
            assert lab.ledger.opened(member.sub)[row[0]].attempts == number
        await member.settle(batch, Outcome(waiting=[member.waits(batch, row)]))
        batch = await member.taken()
    lab.sound()


@pytest.mark.parametrize("state", [OpenState.RETURNED, OpenState.BLOCKED])
async def test_what_was_not_begun_is_no_attempt(lab: Lab, state: OpenState) -> None:
    """An event that is handed back untouched is in its first attempt the next time."""
    member = await lab.member()
    await lab.publish("a")
    batch = await member.taken()
    await member.settle(batch, Outcome(waiting=[member.waits(batch, batch.rows[0], state=state)]))

    again = await member.taken()

    assert member.attempt(again, again.rows[0]) == FIRST_ATTEMPT


async def test_a_retry_waits_for_its_time(lab: Lab) -> None:
    """Nothing is handed out before its time; the consumer says when that is."""
    member = await lab.member()
    await lab.publish("a", "b")
    batch = await member.taken()
    a, b = batch.rows
    waiting = [member.waits(batch, a, after_ms=2_000), member.waits(batch, b, after_ms=1_000)]
    await member.settle(batch, Outcome(waiting=waiting))

    assert member.consumer.next_due_ns() == lab.clock.boot_ns() + 1_000_000_000
    assert await member.take() is None
    lab.clock.advance(1)
    assert (await member.taken()).rows == [b]
    assert member.consumer.next_due_ns() == lab.clock.boot_ns() + 1_000_000_000
    lab.clock.advance(1)
    assert (await member.taken()).rows == [a]
    assert member.consumer.next_due_ns() is None


async def test_a_parked_event_stays_until_somebody_moves_it(lab: Lab) -> None:
    """Parked means waiting for something else than time; its key is blocked, it is counted."""
    member = await lab.member()
    await lab.publish("a", "a")
    batch = await member.taken()
    first, second = batch.rows
    parked = member.waits(batch, first, state=OpenState.PARKED)
    await member.settle(
        batch, Outcome(waiting=[parked, member.waits(batch, second, state=OpenState.BLOCKED)])
    )

    lab.clock.advance(3_600)

    assert await member.take() is None
    assert [one.state for one in lab.ledger.opened(member.sub).values()] == ["parked", "blocked"]
    lab.sound()


async def test_due_events_come_before_new_ones(lab: Lab) -> None:
    """A retry that may run is not put off by a flood of new events."""
    member = await lab.member()
    await lab.publish("a")
    batch = await member.taken()
    await member.settle(batch, Outcome(waiting=[member.waits(batch, batch.rows[0])]))
    await lab.publish(*"bcdefg")

    assert (await member.taken()).rows == batch.rows


async def open_bound(lab: Lab, bound: int) -> Member:
    """Return a member whose one partition has been driven to the bound of open offsets."""
    lab.partitions = 1
    member = await lab.member()
    await lab.publish(*[None] * (3 * bound))
    for _ in range(3 * bound):
        batch = await member.take(bound - 1)
        if batch is None:
            break
        waiting = [member.waits(batch, row, after_ms=60_000) for row in batch.rows]
        await member.settle(batch, Outcome(waiting=waiting))
        assert len(lab.ledger.opened(member.sub)) <= bound
    return member


async def test_a_partition_pauses_at_the_bound_of_open_offsets(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where everything fails the position stops at the bound, and goes on as soon as some are closed."""
    lab.kind.bound_open(monkeypatch, 7)
    member = await open_bound(lab, 7)
    assert len(lab.ledger.opened(member.sub)) == 7
    assert lab.ledger.counts(member.sub)["taken"] == 7
    await lab.publish("new")
    assert await member.take() is None

    lab.clock.advance(60)
    await member.settle(await member.taken(3))

    later = [await member.taken(4), await member.taken(10)]
    assert [len(batch.rows) for batch in later] == [4, 3]
    lab.sound()


async def test_the_bound_holds_for_both_helpings_of_a_claim(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one partition leaves of its share another may take, but not beyond its own bound."""
    lab.kind.bound_open(monkeypatch, 10)
    lab.partitions = 2
    member = await lab.member()
    keys = [f"k{n}" for n in range(60)]
    await lab.publish(*keys)
    for limit in (8, 16, 100, 100):
        batch = await member.take(limit)
        if batch is not None:
            waiting = [member.waits(batch, row, after_ms=60_000) for row in batch.rows]
            await member.settle(batch, Outcome(waiting=waiting))

    per_place = [one.taken for one in lab.ledger.positions(member.sub).values()]
    assert max(per_place) <= 10
    lab.sound()


async def test_a_partial_outcome_leaves_the_rest_running(lab: Lab) -> None:
    """Rows that an outcome does not name stay in hand, and are finished by a second one."""
    member = await lab.member()
    await lab.publish("a", "b", "c")
    batch = await member.taken()
    quick, *slow = batch.rows

    await member.settle(batch, await member.made(batch, [quick]))
    assert lab.ledger.counts(member.sub) == {"taken": 3, "running": 2, "done": 1}
    lab.sound()
    await lab.publish("d")
    more = await member.taken()
    await member.settle(more)
    await member.settle(batch, await member.made(batch, slow))

    assert lab.ledger.counts(member.sub) == {"taken": 4, "done": 4}
    assert set(lab.ledger.children().values()) == {1}
    lab.sound()


async def test_nothing_to_take_is_nothing(lab: Lab) -> None:
    """An empty topic gives no batch, writes nothing, and `wait` returns after the time it was given."""
    member = await lab.member()
    assert await member.take() is None
    before = lab.ledger.dump()

    assert await member.take() is None
    await member.consumer.wait(0.001)

    assert lab.ledger.dump() == before


async def test_a_publish_ends_a_wait(lab: Lab) -> None:
    """A consumer that waits is woken by a commit of its own process; by another one in another test."""
    member = await lab.member()
    waiting = asyncio.create_task(member.consumer.wait(60))
    await asyncio.sleep(0)

    await lab.publish("a")

    await asyncio.wait_for(waiting, 5)


async def retrying(lab: Lab) -> tuple[Member, Settled]:
    """Return a worker whose next event is blocked by a retry, and what the settle of that one gave."""
    lab.partitions = 1
    member = await lab.member()
    await lab.publish("a", "a")
    batch = await member.taken(1)
    waiting = [member.waits(batch, batch.rows[0], after_ms=60_000)]
    return member, await member.settle(batch, Outcome(waiting=waiting), limit=1)


async def test_blocked_events_alone_are_no_batch(lab: Lab) -> None:
    """Where everything that is new has to wait for its key there is nothing to run."""
    member, settled = await retrying(lab)

    assert settled.next is None
    assert await member.take() is None
    assert [one.state for one in lab.ledger.opened(member.sub).values()] == ["retry", "blocked"]


async def test_an_event_behind_blocked_ones_is_found(lab: Lab) -> None:
    """However many events of a blocked key come first, the one of another key behind them is handed out."""
    member, _ = await retrying(lab)
    await lab.publish("a", "a", "a", "b")

    assert [member.key(row) for row in (await member.taken(1)).rows] == ["b"]


async def test_blocked_events_take_no_crash_protection_away(lab: Lab) -> None:
    """A batch is settled for its own rows only: what is claimed meanwhile is found again after a death."""
    member, settled = await retrying(lab)
    await lab.publish("b")
    in_hand = await member.taken()
    if settled.next is not None:
        await member.settle(settled.next)
    lab.sound()
    member.die()
    lab.clock.advance(30)

    heir = await lab.member()
    assert (await heir.taken()).rows == in_hand.rows
    lab.sound()
