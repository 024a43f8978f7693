"""Leases: who owns a partition, for how long, and what becomes of the work of an owner that is gone."""

from __future__ import annotations

import pytest
from tests.journal.lab import LEASE_MS, Lab, Member, offsets

from headrace.ports import OpenState, Outcome
from headrace.testing import FailAt


def owners(lab: Lab, member: Member) -> dict[int | None, int]:
    """Return how many partitions each worker owns."""
    found: dict[int | None, int] = {}
    for position in lab.ledger.positions(member.sub).values():
        found[position.owner] = found.get(position.owner, 0) + 1
    return found


async def expire(lab: Lab) -> None:
    """Let every lease that nobody renews run out."""
    lab.clock.advance(LEASE_MS / 1000 + 0.001)


async def test_one_worker_has_all_partitions(lab: Lab) -> None:
    """Alone, a worker takes everything."""
    lab.partitions = 5
    member = await lab.member()

    assert member.consumer.held() == 5
    assert owners(lab, member) == {member.worker.id: 5}


@pytest.mark.parametrize(("partitions", "workers"), [(16, 3), (4, 4), (2, 5), (7, 2)])
async def test_shares_are_fair(lab: Lab, partitions: int, workers: int) -> None:
    """After everybody has looked twice each has at most ceil(P/N), and every partition has one owner."""
    lab.partitions = partitions
    members = [await lab.member(balance=False) for _ in range(workers)]
    for _ in range(3):
        for member in members:
            await member.consumer.balance()

    held = [member.consumer.held() for member in members]
    assert sum(held) == partitions
    assert max(held) <= -(-partitions // workers)
    assert sum(owners(lab, members[0]).values()) == partitions
    assert None not in owners(lab, members[0])


async def test_surplus_is_handed_back_when_its_work_ends(lab: Lab) -> None:
    """A newcomer gets its share; what is in hand is finished by the old owner first."""
    lab.partitions = 2
    old = await lab.member()
    await lab.publish(*"abcdefgh")
    batch = await old.taken()
    assert len({row[1] for row in batch.rows}) == 2

    new = await lab.member()
    await old.consumer.balance()
    await new.consumer.balance()
    assert (old.consumer.held(), new.consumer.held()) == (2, 0)
    assert await new.take() is None

    await old.settle(batch)
    await new.consumer.balance()
    assert (old.consumer.held(), new.consumer.held()) == (1, 1)
    lab.sound()


async def test_a_leaving_partition_takes_nothing_new(lab: Lab) -> None:
    """A partition marked as surplus is not refilled while its last batch is settled."""
    lab.partitions = 2
    old = await lab.member()
    await lab.publish(*"abcdefgh")
    batch = await old.taken(4)
    new = await lab.member()
    await old.consumer.balance()

    settled = await old.settle(batch, limit=10)

    assert settled.next is None or len({row[1] for row in settled.next.rows}) == 1
    await new.consumer.balance()
    assert new.consumer.held() == 1
    lab.sound()


async def test_a_worker_that_leaves_frees_its_partitions_at_once(lab: Lab) -> None:
    """No lease has to run out: another worker can take them and go on where the first stopped."""
    first, second = await lab.member(), await lab.member()
    await lab.publish(*"abc")
    await first.settle(await first.taken())
    await lab.publish(*"abc")

    await first.leave()
    await second.consumer.balance()

    assert len((await second.taken()).rows) == 3
    lab.sound()


async def test_a_live_lease_is_respected(lab: Lab) -> None:
    """Until the very end of a lease nobody takes the partition, whatever the wall clock says."""
    first = await lab.member()
    await lab.publish("a")
    await first.taken()
    lab.clock.advance(LEASE_MS / 1000 - 0.001)
    lab.clock.set_wall(+86_400)

    second = await lab.member()

    assert second.consumer.held() == 0
    assert await second.take() is None


async def test_a_wall_clock_that_goes_back_keeps_no_lease_alive(lab: Lab) -> None:
    """Leases end by the boot clock: an hour back changes nothing."""
    first = await lab.member()
    first.die()
    lab.clock.set_wall(-3_600)
    await expire(lab)

    second = await lab.member()

    assert second.consumer.held() == lab.partitions


async def test_a_lease_dies_with_the_boot(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the machine the boot clock starts anew: no old lease counts."""
    lab.clock.advance(1_000_000)
    first = await lab.member()
    first.die()
    monkeypatch.setattr(lab.clock, "boot_id", lambda: "another boot")
    monkeypatch.setattr(lab.clock, "_boot_ns", 5)

    second = await lab.member()

    assert second.consumer.held() == lab.partitions


async def test_a_renewed_lease_lives_on(lab: Lab) -> None:
    """Renewing moves the end of the lease; it works from any thread and says whether the worker is known."""
    lab.need("several_connections")
    first = await lab.member()
    for _ in range(5):
        lab.clock.advance(LEASE_MS / 1000 * 0.9)
        assert first.worker.renew()

    second = await lab.member()
    await first.consumer.balance()

    assert second.consumer.held() == 0
    assert first.consumer.held() == lab.partitions // 2
    await first.leave()
    assert not first.worker.renew()


async def test_an_expired_lease_is_taken_over_and_its_outcome_refused(lab: Lab) -> None:
    """The outcome of a worker that was fenced off is dropped: no event, no position, no letter."""
    first = await lab.member()
    await lab.publish("a", "b")
    batch = await first.taken()
    await expire(lab)
    second = await lab.member()
    before = lab.ledger.dump()

    late = await first.made(batch, batch.rows[:1])
    late.dead.append(first.dies(batch, batch.rows[1]))
    settled = await first.settle(batch, late, limit=10)

    assert settled.stale == set(offsets(batch.rows))
    assert settled.next is None
    assert lab.ledger.dump() == before | {"stamp": lab.ledger.dump()["stamp"]}
    await drain(second)
    assert lab.ledger.counts(second.sub) == {"taken": 2, "done": 2}
    assert set(lab.ledger.children().values()) == {1}
    lab.sound()


async def test_a_partition_that_was_lost_takes_only_its_own_results_with_it(lab: Lab) -> None:
    """Of a batch over two partitions the half whose owner is still the same is committed."""
    lab.partitions = 2
    first = await lab.member()
    await lab.publish(*"abcdefgh")
    batch = await first.taken()
    lab.clock.advance(LEASE_MS / 1000 * 0.6)
    await lab.member()  # alive, and holds nothing yet: it halves the shares
    lab.clock.advance(LEASE_MS / 1000 * 0.6)
    second = await lab.member()
    (lost,) = {place for place, at in lab.ledger.positions(first.sub).items() if at.owner == second.worker.id}

    settled = await first.settle(batch, await first.made(batch))

    mine = [row for row in batch.rows if row[1] != lost]
    assert mine
    assert settled.stale == {row[0] for row in batch.rows if row[1] == lost}
    assert lab.ledger.counts(first.sub)["done"] == len(mine)
    assert sum(lab.ledger.children().values()) == len(mine)
    lab.sound()


async def test_an_owner_that_comes_back_under_a_new_epoch_is_fenced_all_the_same(lab: Lab) -> None:
    """An outcome claimed before a loss stays stale when the same worker owns the partition again."""
    first = await lab.member()
    await lab.publish("a")
    batch = await first.taken()
    await expire(lab)
    second = await lab.member()
    await second.leave()
    await expire(lab)
    assert await first.consumer.balance() == lab.partitions

    settled = await first.settle(batch, await first.made(batch))

    assert settled.stale == {batch.rows[0][0]}
    await drain(first)
    assert set(lab.ledger.children().values()) == {1}
    lab.sound()


async def drain(member: Member) -> None:
    """Finish everything that can be taken, with one child for each event."""
    while batch := await member.take():
        await member.settle(batch, await member.made(batch))


async def test_what_a_dead_worker_had_in_hand_runs_one_by_one(lab: Lab) -> None:
    """Its events are suspects: alone, in order, the crash counted; those it had finished are not."""
    lab.partitions = 1
    first = await lab.member()
    await lab.publish("a", "b", "c", None)
    batch = await first.taken()
    innocent, *suspects = batch.rows
    await first.settle(batch, Outcome(done=[innocent]))
    first.die()
    await expire(lab)

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
    await expire(lab)
    second = await lab.member()

    seen = []
    for _ in range(3):
        again = await second.taken()
        seen.append((offsets(again.rows), again.alone))
        await second.settle(again)

    new = lab.ledger.offsets(second.subscription.topic.id)[-1]
    assert seen == [([row[0]], True) for row in batch.rows] + [([new], False)]
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
        await expire(lab)
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
    await expire(lab)

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
    await expire(lab)

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
    await expire(lab)

    second = await lab.member()
    found: list[int] = []
    while batch := await second.take():
        found += offsets(batch.rows)
        await second.settle(batch)

    everything = lab.ledger.offsets(second.subscription.topic.id)
    assert sorted(found) == sorted(set(everything) - set(offsets(done.rows)))
    assert offsets(in_hand.rows)[0] in found
    lab.sound()


async def test_a_forgotten_partition_finds_its_owner_again(lab: Lab) -> None:
    """When the take-over was committed but the worker never learned of it, the next balance gets it."""
    member = await lab.member(balance=False)
    await lab.publish("a")
    lab.faults.now = FailAt("balance.committed", RuntimeError("after the commit"))
    with pytest.raises(RuntimeError):
        await member.consumer.balance()

    assert await member.consumer.balance() == lab.partitions
    assert len((await member.taken()).rows) == 1
    lab.sound()


async def test_a_position_never_goes_back(lab: Lab) -> None:
    """A partition taken over that is ahead of the others is not read again from where they stand."""
    lab.partitions = 2
    quick, slow = await lab.member(), await lab.member()
    for member in (quick, slow):
        await member.consumer.balance()
    await lab.publish(*"abcdefghijkl")
    seen: list[int] = []
    while batch := await quick.take(2):
        seen += offsets(batch.rows)
        await quick.settle(batch)
    await quick.leave()
    await slow.consumer.balance()

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
    await expire(lab)

    second = await lab.member()
    await drain(second)

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
