"""Leases: who owns a partition, for how long, and what becomes of the work of an owner that is gone."""

from __future__ import annotations

import pytest
from tests.journal.lab import LEASE_MS, Lab, Member, offsets

from headrace import errors
from headrace.testing import FailAt


def owners(lab: Lab, member: Member) -> dict[int | None, int]:
    """Return how many partitions each worker owns."""
    found: dict[int | None, int] = {}
    for position in lab.ledger.positions(member.sub).values():
        found[position.owner] = found.get(position.owner, 0) + 1
    return found


async def test_one_worker_has_all_partitions(lab: Lab) -> None:
    """Alone, a worker takes everything."""
    lab.partitions = 5
    member = await lab.member()

    assert member.consumer.held() == 5
    if lab.kind.can.leases:
        assert owners(lab, member) == {member.worker.id: 5}


@pytest.mark.parametrize(("partitions", "workers"), [(16, 3), (4, 4), (2, 5), (7, 2)])
async def test_shares_are_fair(lab: Lab, partitions: int, workers: int) -> None:
    """After everybody has looked twice each has at most ceil(P/N), and every partition has one owner."""
    lab.partitions = partitions
    members = [await lab.member(balance=False) for _ in range(workers)]
    for _ in range(3):
        for member in members:
            await member.balance()

    held = [member.consumer.held() for member in members]
    assert sum(held) == partitions
    assert max(held) <= -(-partitions // workers)
    if lab.kind.can.leases:
        assert sum(owners(lab, members[0]).values()) == partitions
        assert None not in owners(lab, members[0])


@pytest.mark.needs("hands_over_idle")
async def test_surplus_is_handed_back_when_its_work_ends(lab: Lab) -> None:
    """A newcomer gets its share; what is in hand is finished by the old owner first."""
    lab.partitions = 2
    old = await lab.member()
    await lab.publish(*"abcdefgh")
    batch = await old.taken()
    assert len({row[1] for row in batch.rows}) == 2

    new = await lab.member()
    await old.balance()
    await new.balance()
    assert (old.consumer.held(), new.consumer.held()) == (2, 0)
    assert await new.take() is None

    await old.settle(batch)
    await new.balance()
    assert (old.consumer.held(), new.consumer.held()) == (1, 1)
    lab.sound()


@pytest.mark.needs("failpoints")
async def test_an_outcome_stands_when_the_hand_back_after_it_fails(lab: Lab) -> None:
    """An error would have it settled again: events count twice, and what they emit is a conflict."""
    lab.partitions = 2
    old = await lab.member()
    await lab.publish(*"abcdefgh")
    batch = await old.taken()
    await lab.member()
    await old.balance()

    lab.faults.now = FailAt("release.committed", errors.DiskFull(path="full.db"))
    await old.settle(batch, await old.made(batch))

    assert lab.ledger.counts(old.sub) == {"taken": 8, "done": 8}
    assert sum(lab.ledger.children().values()) == 8
    lab.sound()


@pytest.mark.needs("hands_over_idle")
async def test_a_leaving_partition_takes_nothing_new(lab: Lab) -> None:
    """A partition marked as surplus is not refilled while its last batch is settled."""
    lab.partitions = 2
    old = await lab.member()
    await lab.publish(*"abcdefgh")
    batch = await old.taken(4)
    new = await lab.member()
    await old.balance()

    settled = await old.settle(batch, limit=10)

    assert settled.next is None or len({row[1] for row in settled.next.rows}) == 1
    await new.balance()
    assert new.consumer.held() == 1
    lab.sound()


async def test_a_worker_that_leaves_frees_its_partitions_at_once(lab: Lab) -> None:
    """No lease has to run out: another worker can take them and go on where the first stopped."""
    first, second = await lab.member(), await lab.member()
    await lab.publish(*"abc")
    await first.drain()
    await second.drain()
    await lab.publish(*"abc")

    await first.leave()
    await second.balance()

    assert len((await second.taken()).rows) == 3
    lab.sound()


@pytest.mark.needs("leases")
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


@pytest.mark.needs("leases")
async def test_a_wall_clock_that_goes_back_keeps_no_lease_alive(lab: Lab) -> None:
    """Leases end by the boot clock: an hour back changes nothing."""
    first = await lab.member()
    first.die()
    lab.clock.set_wall(-3_600)
    lab.expire()

    second = await lab.member()

    assert second.consumer.held() == lab.partitions


@pytest.mark.needs("leases")
async def test_a_lease_dies_with_the_boot(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a restart of the machine the boot clock starts anew: no old lease counts."""
    lab.clock.advance(1_000_000)
    first = await lab.member()
    first.die()
    monkeypatch.setattr(lab.clock, "boot_id", lambda: "another boot")
    monkeypatch.setattr(lab.clock, "_boot_ns", 5)

    second = await lab.member()

    assert second.consumer.held() == lab.partitions


@pytest.mark.needs("leases")
@pytest.mark.needs("several_connections")
async def test_a_renewed_lease_lives_on(lab: Lab) -> None:
    """Renewing moves the end of the lease; it works from any thread and says whether the worker is known."""
    first = await lab.member()
    for _ in range(5):
        lab.clock.advance(LEASE_MS / 1000 * 0.9)
        assert first.worker.renew()

    second = await lab.member()
    await first.balance()

    assert second.consumer.held() == 0
    assert first.consumer.held() == lab.partitions // 2
    await first.leave()
    assert not first.worker.renew()


@pytest.mark.needs("leases")
async def test_an_expired_lease_is_taken_over_and_its_outcome_refused(lab: Lab) -> None:
    """The outcome of a worker that was fenced off is dropped: no event, no position, no letter."""
    first = await lab.member()
    await lab.publish("a", "b")
    batch = await first.taken()
    lab.expire()
    second = await lab.member()
    before = lab.ledger.dump()

    late = await first.made(batch, batch.rows[:1])
    late.dead.append(first.dies(batch, batch.rows[1]))
    settled = await first.settle(batch, late, limit=10)

    assert settled.stale == set(offsets(batch.rows))
    assert settled.next is None
    assert lab.ledger.dump() == before | {"stamp": lab.ledger.dump()["stamp"]}
    await second.drain()
    assert lab.ledger.counts(second.sub) == {"taken": 2, "done": 2}
    assert set(lab.ledger.children().values()) == {1}
    lab.sound()


@pytest.mark.needs("leases")
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


@pytest.mark.needs("leases")
async def test_an_owner_that_comes_back_under_a_new_epoch_is_fenced_all_the_same(lab: Lab) -> None:
    """An outcome claimed before a loss stays stale when the same worker owns the partition again."""
    first = await lab.member()
    await lab.publish("a")
    batch = await first.taken()
    lab.expire()
    second = await lab.member()
    await second.leave()
    lab.expire()
    assert await first.balance() == lab.partitions

    settled = await first.settle(batch, await first.made(batch))

    assert settled.stale == {batch.rows[0][0]}
    await first.drain()
    assert set(lab.ledger.children().values()) == {1}
    lab.sound()


@pytest.mark.needs("failpoints")
async def test_a_forgotten_partition_finds_its_owner_again(lab: Lab) -> None:
    """When the take-over was committed but the worker never learned of it, the next balance gets it."""
    member = await lab.member(balance=False)
    await lab.publish("a")
    lab.faults.now = FailAt("balance.committed", RuntimeError("after the commit"))
    with pytest.raises(RuntimeError):
        await member.balance()

    assert await member.balance() == lab.partitions
    assert len((await member.taken()).rows) == 1
    lab.sound()


async def test_who_has_left_is_not_told_of_commits(lab: Lab) -> None:
    """Else a process that starts and stops workers keeps them all; who comes back is told again."""
    member = await lab.member()
    audience: set[object] = getattr(member.journal, "_audience", set())
    await member.consumer.release()
    assert member.consumer not in audience

    await member.balance()
    await lab.publish("a")
    await lab.kind.arrived(member)
    assert member.consumer.more()
    assert len((await member.taken()).rows) == 1
