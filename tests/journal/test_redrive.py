"""Redrive: a dead event is made waiting again, with a new generation, once, and on the active version."""

from __future__ import annotations

import pytest
from tests.journal.lab import LEASE_MS, Lab, Member, offer

from headrace import errors
from headrace.ports import Batch, Outcome


async def bury(lab: Lab, member: Member) -> Batch:
    """Take what there is and let all of it die."""
    batch = await member.taken()
    await member.settle(batch, Outcome(dead=[member.dies(batch, row) for row in batch.rows]))
    return batch


async def redrive(lab: Lab) -> list[str]:
    """Redrive every dead letter."""
    found = await lab.kind.redrive(await lab.journal(), lab.ledger.letters())
    for member in lab.members:
        await lab.kind.arrived(member)
    return found


@pytest.mark.needs("redrives")
async def test_a_redriven_event_runs_again_from_its_first_attempt(lab: Lab) -> None:
    """It waits in its place with a new generation, and is taken like any other."""
    member = await lab.member()
    await lab.publish("a")
    batch = await bury(lab, member)

    assert await redrive(lab) == [""]
    assert lab.ledger.counts(member.sub) == {"taken": 1}
    lab.sound()
    await member.balance()
    again = await member.taken()
    attempt = member.attempt(again, again.rows[0])
    assert (again.rows, attempt.number, attempt.generation) == (batch.rows, 1, 1)
    await member.settle(again, await member.made(again))

    assert lab.ledger.counts(member.sub) == {"taken": 1, "done": 1}
    assert lab.ledger.dead(member.sub) == []
    lab.sound()


@pytest.mark.needs("redrives")
async def test_a_redrive_is_seen_after_a_look_that_failed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was told of one and could not read the journal is not told again."""

    def fails(*_: object) -> None:
        raise errors.JournalBusy(path="journal.db", waited_s=30)

    member = await lab.member()
    await lab.publish("a")
    batch = await bury(lab, member)
    assert await redrive(lab) == [""]
    with monkeypatch.context() as patch:
        patch.setattr(type(member.consumer), lab.kind.sees_redriven, fails)
        with pytest.raises(errors.JournalBusy):
            await member.take()

    assert (await member.taken()).rows == batch.rows


@pytest.mark.needs("redrives")
async def test_an_event_may_die_again(lab: Lab) -> None:
    """The second death has a letter of its own, which can be redriven in turn; the first one cannot."""
    member = await lab.member()
    await lab.publish("a")
    await bury(lab, member)
    (first,) = lab.ledger.letters()
    for generation in (1, 2):
        assert await redrive(lab) == [""]
        await member.balance()
        again = await bury(lab, member)
        assert member.attempt(again, again.rows[0]).generation == generation
        lab.sound()

    (refused,) = await lab.kind.redrive(await lab.journal(), [first])
    assert refused
    assert len(lab.ledger.dead(member.sub)) == 1


@pytest.mark.needs("redrives")
async def test_a_redrive_is_not_repeated(lab: Lab) -> None:
    """While the event is open, or once it is finished, its letter cannot be redriven again."""
    member = await lab.member()
    await lab.publish("a")
    await bury(lab, member)
    (number,) = lab.ledger.letters()
    journal = await lab.journal()

    assert await lab.kind.redrive(journal, [number]) == [""]
    assert all(await lab.kind.redrive(journal, [number, number, number + 99]))
    await member.balance()
    await member.settle(await member.taken())
    assert all(await lab.kind.redrive(journal, [number]))
    assert await member.take() is None
    lab.sound()


@pytest.mark.needs("redrives")
async def test_a_redriven_event_waits_for_its_key(lab: Lab) -> None:
    """Late as it is, it never runs beside another event of its key."""
    lab.partitions = 1
    member = await lab.member()
    await lab.publish("a")
    await bury(lab, member)
    await lab.publish("a", "b")
    in_hand = await member.taken()
    await redrive(lab)
    await member.balance()

    assert await member.take() is None
    settled = await member.settle(in_hand, limit=10)

    assert settled.next is not None
    assert [member.key(row) for row in settled.next.rows] == ["a"]
    lab.sound()


@pytest.mark.needs("redrives")
async def test_the_active_version_takes_it_and_the_ledger_says_so(lab: Lab) -> None:
    """Finished by another version than its range's: an exception row; by the range's own after all: none."""
    member = await lab.member(offer("d1"))
    await lab.publish("a")
    batch = await bury(lab, member)
    (row,) = batch.rows
    journal = await lab.journal()
    newer = (await journal.offer(offer("d2"))).mine
    old, member.version = member.version, newer
    await redrive(lab)
    await member.balance()
    await bury(lab, member)
    assert lab.ledger.version_of(member.sub, row[1], row[0]) == newer.name
    lab.sound()

    member.version = await journal.activate(old.handler, old.name)
    assert await redrive(lab) == [""]
    await member.balance()
    await member.settle(await member.taken())
    assert lab.ledger.version_of(member.sub, row[1], row[0]) == old.name
    assert lab.ledger.exceptions(member.sub) == {}
    lab.sound()


@pytest.mark.needs("redrives")
async def test_a_redrive_survives_the_death_of_the_owner(lab: Lab) -> None:
    """Made waiting while nobody looked, or in hand when its worker died: the next owner has it."""
    first = await lab.member()
    await lab.publish("a")
    await bury(lab, first)
    first.die()
    await redrive(lab)
    lab.clock.advance(2 * LEASE_MS / 1000)

    second = await lab.member()
    again = await second.taken()
    second.die()
    lab.clock.advance(2 * LEASE_MS / 1000)
    third = await lab.member()
    last = await third.taken()

    assert third.attempt(last, last.rows[0])[:3] == (2, 1, 1)
    assert (last.rows, last.alone) == (again.rows, True)
    await third.settle(last)
    lab.sound()
