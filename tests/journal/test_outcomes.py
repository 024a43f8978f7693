"""Outcomes: what follows from handled events is written together, once, or not at all."""

from __future__ import annotations

import pytest
from tests.journal.lab import OUT, Lab, Member, offer

from headrace import errors
from headrace.ports import FAILPOINTS, Batch, OpenState, Outcome
from headrace.testing import FailAt

#: Inside the outcome transaction, with a claim behind it: a failure there must leave nothing.
WITHIN = (
    "settle.begin",
    "settle.positions",
    "settle.events",
    "settle.open",
    "settle.dead",
    "claim.begin",
    "claim.written",
)


async def mixed(member: Member, limit: int = 1_000) -> tuple[Batch, Outcome]:
    """Return a batch and an outcome in which every kind of ending occurs."""
    batch = await member.taken(limit)
    done, failed, dead = batch.rows
    outcome = await member.made(batch, [done])
    outcome.waiting.append(member.waits(batch, failed, after_ms=1_000))
    outcome.dead.append(member.dies(batch, dead))
    return batch, outcome


@pytest.mark.needs("failpoints")
@pytest.mark.parametrize("point", WITHIN)
async def test_a_failure_within_leaves_nothing(lab: Lab, point: str) -> None:
    """A failure anywhere in the transaction takes all of it back; the outcome can be repeated."""
    lab.partitions = 1
    member = await lab.member()
    await lab.publish("a", "b", "c", "d")
    batch, outcome = await mixed(member, 3)
    before = lab.ledger.dump()

    lab.faults.now = FailAt(point, errors.DiskFull(path="a test"))
    with pytest.raises(errors.DiskFull):
        await member.settle(batch, outcome, limit=10)
    assert lab.ledger.dump() == before
    lab.sound()

    settled = await member.settle(batch, outcome, limit=10)
    assert (settled.stale, dict.fromkeys(settled.conflicts)) == (frozenset(), {})
    assert settled.next is not None
    assert lab.ledger.counts(member.sub) == {"taken": 4, "running": 1, "done": 1, "dead": 1}
    assert len(lab.ledger.offsets((await member.journal.topic(OUT)).id)) == 1
    lab.sound()


@pytest.mark.needs("failpoints")
@pytest.mark.parametrize("point", ["claim.begin", "claim.written"])
async def test_a_failed_claim_takes_nothing(lab: Lab, point: str) -> None:
    """A claim that fails before its commit has not counted an attempt, and can be repeated."""
    member = await lab.member()
    await lab.publish("a", "b")
    before = lab.ledger.dump()

    lab.faults.now = FailAt(point, errors.DiskFull(path="a test"))
    with pytest.raises(errors.DiskFull):
        await member.take()
    assert lab.ledger.dump() == before

    assert len((await member.taken()).rows) == 2
    lab.sound()


@pytest.mark.needs("failpoints")
async def test_a_failed_take_over_takes_nothing(lab: Lab) -> None:
    """A balance that fails before its commit owns nothing; the next one does."""
    member = await lab.member(balance=False)
    await lab.publish("a")
    lab.faults.now = FailAt("balance.taken", errors.DiskFull(path="a test"))
    with pytest.raises(errors.DiskFull):
        await member.balance()
    assert {at.owner for at in lab.ledger.positions(member.sub).values()} == {None}

    await member.balance()
    assert len((await member.taken()).rows) == 1


@pytest.mark.needs("failpoints")
async def test_a_failed_offer_activates_nothing(lab: Lab) -> None:
    """A version whose offer fails is not known; offered again it becomes active."""
    journal = await lab.journal()
    old = (await journal.offer(offer("d1"))).mine
    lab.faults.now = FailAt("version.offered", errors.DiskFull(path="a test"))
    with pytest.raises(errors.DiskFull):
        await journal.offer(offer("d2"))
    assert (await journal.offer(offer("d1"))).active == old

    again = await journal.offer(offer("d2"))
    assert again.mine == again.active
    assert again.mine.model_name == "model@2:d2"


def test_every_failpoint_of_the_journal_is_attacked() -> None:
    """A new failpoint needs a test above (or, after a commit, the one below)."""
    after = {
        "publish.committed",
        "balance.committed",
        "claim.committed",
        "settle.committed",
        "release.committed",
    }
    elsewhere = {
        "publish.begin",
        "publish.inserted",
        "balance.taken",
        "version.offered",
        "handle.before",
        "handle.after",
    }

    assert {*WITHIN, *after, *elsewhere} == set(FAILPOINTS)


async def one_round(member: Member) -> None:
    """Take, settle and leave."""
    batch = await member.taken()
    await member.settle(batch, await member.made(batch))
    await member.leave()


@pytest.mark.needs("failpoints")
@pytest.mark.parametrize("point", ["claim.committed", "settle.committed", "release.committed"])
async def test_a_failure_after_the_commit_has_done_all_of_it(lab: Lab, point: str) -> None:
    """Who dies after a commit leaves a whole journal behind: the next worker finishes each event once."""
    member = await lab.member()
    await lab.publish("a", "b", "c")
    lab.faults.now = FailAt(point, RuntimeError("after the commit"))
    with pytest.raises(RuntimeError):
        await one_round(member)
    lab.sound()

    member.die()
    lab.clock.advance(60)
    heir = await lab.member()
    while batch := await heir.take():
        await heir.settle(batch, await heir.made(batch))
    assert lab.ledger.counts(heir.sub) == {"taken": 3, "done": 3}
    assert list(lab.ledger.children().values()) == [1, 1, 1]
    lab.sound()


@pytest.mark.needs("refuses_conflicts")
async def test_an_emitted_id_that_is_taken_refuses_only_its_own_cause(lab: Lab) -> None:
    """A derived id that somebody else has written fails that event; its neighbours are committed."""
    member = await lab.member()
    await lab.publish("a", "b")
    batch = await member.taken()
    outcome = await member.made(batch)
    (taken, _) = [row[1] for row in outcome.emitted]
    await lab.publish_one(event_id=taken, topic=OUT)

    settled = await member.settle(batch, outcome)

    assert set(settled.conflicts) == {batch.rows[0][0]}
    assert lab.ledger.counts(member.sub) == {"taken": 2, "running": 1, "done": 1}
    lab.sound()
    await member.settle(batch, Outcome(dead=[member.dies(batch, batch.rows[0], "conflict")]))
    assert lab.ledger.counts(member.sub) == {"taken": 2, "done": 1, "dead": 1}
    lab.sound()


async def two_in_hand(lab: Lab) -> tuple[Member, list[tuple[Batch, Outcome]]]:
    """Return two batches of different partitions, with outcomes that emit."""
    lab.partitions = 16
    member = await lab.member()
    await lab.publish(*"abcdefgh")
    batches = [await member.taken(1), await member.taken(1)]
    return member, [(batch, await member.made(batch)) for batch in batches]


@pytest.mark.needs("failpoints")
@pytest.mark.parametrize("point", WITHIN)
async def test_outcomes_together_are_written_all_or_none(lab: Lab, point: str) -> None:
    """Several outcomes in one transaction: a failure takes back all, a repetition writes them once."""
    member, parts = await two_in_hand(lab)
    before = lab.ledger.dump()
    lab.faults.now = FailAt(point, errors.DiskFull(path="a test"))
    with pytest.raises(errors.DiskFull):
        await member.consumer.settle(parts, limit=1)
    assert lab.ledger.dump() == before

    settled = await member.consumer.settle(parts, limit=1)
    assert [one.next is None for one in settled] == [True, False]
    assert lab.ledger.counts(member.sub) == {"taken": 3, "running": 1, "done": 2}
    assert len(await lab.rows(OUT)) == 2
    lab.sound()


@pytest.mark.needs("refuses_conflicts")
async def test_outcomes_together_part_with_a_taken_id(lab: Lab) -> None:
    """An id that an earlier outcome of the transaction has taken refuses its own event, and no other."""
    member, parts = await two_in_hand(lab)
    (_, first), (batch, second) = parts
    second.emitted[:] = first.emitted
    settled = await member.consumer.settle(parts, limit=1)
    assert [one.conflicts for one in settled] == [{}, {batch.rows[0][0]: first.emitted[0][1]}]
    assert lab.ledger.counts(member.sub) == {"taken": 3, "running": 2, "done": 1}
    assert settled[-1].next is not None


async def test_children_are_where_their_cause_says(lab: Lab) -> None:
    """An emitted event is committed with the outcome of its cause, one deeper, in the chain of it."""
    member = await lab.member()
    await lab.publish("a", "b")
    batch = await member.taken()
    await member.settle(batch, await member.made(batch))

    children = await lab.rows(OUT)

    causes = {row[2]: row for row in batch.rows}
    for child in children:
        (parent,) = member.journal.decode_head(child[5]).parents
        assert (child[3], child[4]) == (causes[parent][3], 1)
    assert len(children) == 2


async def test_a_dead_letter_keeps_everything(lab: Lab) -> None:
    """The original bytes, the reason and the attempts survive; the event counts as dead and runs no more."""
    member = await lab.member()
    (event,) = await lab.publish("a")
    batch = await member.taken()
    await member.settle(batch, Outcome(dead=[member.dies(batch, batch.rows[0], "invalid")]))

    assert lab.ledger.dead(member.sub) == [(batch.rows[0][0], "invalid", event.body)]
    assert lab.ledger.counts(member.sub) == {"taken": 1, "dead": 1}
    assert await member.take() is None
    lab.sound()


async def test_an_empty_outcome_keeps_everything_in_hand(lab: Lab) -> None:
    """An outcome that names nothing changes no count; what it leaves survives a death as suspects."""
    member = await lab.member()
    await lab.publish("a", "b")
    batch = await member.taken()

    await member.settle(batch, Outcome())

    assert lab.ledger.counts(member.sub) == {"taken": 2, "running": 2}
    assert {one.state for one in lab.ledger.opened(member.sub).values()} == {OpenState.RUNNING}
    lab.sound()


async def test_two_handlers_have_two_outcomes(lab: Lab) -> None:
    """The same event is finished by each handler for itself; their children differ."""
    await lab.publish("a")
    for handler in ("lab.one", "lab.two"):
        member = await lab.member(handler=handler)
        batch = await member.taken()
        await member.settle(batch, await member.made(batch))

    assert len(await lab.rows(OUT)) == 2
    lab.sound()
