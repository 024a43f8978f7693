"""Versions: which one is active is a fact in the journal; who handled what is in exactly one place."""

from __future__ import annotations

import pytest
from tests.journal.lab import HANDLER, Lab, offer

from headrace import errors
from headrace.ports import Outcome, VersionOffer


async def test_an_unknown_version_becomes_active(lab: Lab) -> None:
    """Weights or a declared version never seen before take over at once."""
    journal = await lab.journal()
    for told in (offer("d1"), offer("d2"), offer("d2", "2"), offer(None, "3")):
        found = await journal.offer(told)
        assert found.mine == found.active
        assert await journal.offer(told) == found


async def test_a_known_inactive_version_is_refused(lab: Lab) -> None:
    """Going back is a decision: an old version that is offered again stays inactive and takes nothing."""
    journal = await lab.journal()
    old = (await journal.offer(offer("d1"))).mine
    new = (await journal.offer(offer("d2"))).mine
    await lab.publish("a")

    again = await journal.offer(offer("d1"))
    member = await lab.member(offer("d1"))

    assert (again.mine, again.active) == (old, new)
    with pytest.raises(errors.VersionInactive):
        await member.take()
    assert lab.ledger.counts(member.sub) == {}


async def test_the_same_bytes_are_never_a_new_version(lab: Lab) -> None:
    """Epochs count digests per model name: offered again, or by another worker, a digest keeps its number."""
    journal = await lab.journal()
    names = [
        (await journal.offer(offer(digest))).mine.model_name for digest in ("d1", "d2", "d1", "d3", "d2")
    ]

    assert names == ["model@1:d1", "model@2:d2", "model@1:d1", "model@3:d3", "model@2:d2"]


async def test_a_declared_model_version_is_shown(lab: Lab) -> None:
    """A model that says its own version is named by it."""
    journal = await lab.journal()
    found = await journal.offer(VersionOffer(HANDLER, "2", "m", "f" * 64, "2026-05"))

    assert found.mine.name == "2+m@2026-05:ffffffffffff"


async def test_activate_goes_back(lab: Lab) -> None:
    """A version is named whole, by its epoch, or by a part that only it has; a wrong name changes nothing."""
    journal = await lab.journal()
    old = (await journal.offer(offer("d1"))).mine
    new = (await journal.offer(offer("d2"))).mine

    for name in (old.name, old.model_name, "model@1", "@1", "d1"):
        assert name is not None
        assert await journal.activate(HANDLER, name) == old
        assert (await journal.offer(offer("d2"))).active == old
        await journal.activate(HANDLER, new.name)
    for name in ("@9", "model", "d"):
        with pytest.raises(errors.VersionUnknown):
            await journal.activate(HANDLER, name)
    with pytest.raises(errors.HandlerUnknown):
        await journal.activate("lab.other", "@1")
    assert (await journal.offer(offer("d1"))).active == new


async def test_a_claim_pins_its_version(lab: Lab) -> None:
    """What was claimed before an upgrade is finished by the old version, and the ledger says so."""
    old = await lab.member(offer("d1"))
    await lab.publish("a", "b", None)
    batch = await old.taken()

    new = (await lab.journal()).offer
    newer = (await new(offer("d2"))).mine
    settled = await old.settle(batch, await old.made(batch), limit=10)

    assert (settled.stale, settled.next) == (frozenset(), None)
    assert {lab.ledger.version_of(old.sub, row[1], row[0]) for row in batch.rows} == {old.version.name}
    assert newer.id != old.version.id
    lab.sound()


async def test_only_the_active_version_claims(lab: Lab) -> None:
    """After an upgrade the old version takes nothing more, neither by itself nor with an outcome."""
    old = await lab.member(offer("d1"))
    await lab.publish("a")
    batch = await old.taken()
    await (await lab.journal()).offer(offer("d2"))
    await lab.publish("a", "b")

    settled = await old.settle(batch, limit=10)

    assert settled.next is None
    with pytest.raises(errors.VersionInactive):
        await old.take()
    assert lab.ledger.counts(old.sub) == {"taken": 1, "done": 1}


async def test_a_range_ends_where_the_old_version_stopped_taking(lab: Lab) -> None:
    """Each offset lies in the range of the version that took it, and a range begins at the last taken + 1."""
    lab.partitions = 1
    old = await lab.member(offer("d1"))
    await lab.publish("a", "b", "c")
    first = await old.taken(2)
    new = await lab.member(offer("d2"), balance=False)
    await old.settle(first)
    await old.leave()
    await new.balance()

    rest = await new.taken()
    await new.settle(rest)

    (place,) = {row[1] for row in rest.rows}
    start = lab.ledger.positions(old.sub)[place].start
    taken, versions = [start, first.rows[-1][0]], [old.version.name, new.version.name]
    assert lab.ledger.ranges(old.sub, place) == list(zip(taken, versions, strict=True))
    assert lab.ledger.exceptions(old.sub) == {}
    lab.sound()


@pytest.mark.parametrize("ending", ["done", "dead"])
async def test_a_retry_after_an_upgrade_leaves_an_exception_row(lab: Lab, ending: str) -> None:
    """An offset taken by one version and finished by another has a row of its own that names the other."""
    old = await lab.member(offer("d1"))
    await lab.publish("a", "b")
    batch = await old.taken()
    failed, fine = batch.rows
    await old.settle(batch, Outcome(done=[fine], waiting=[old.waits(batch, failed)]))
    new = (await (await lab.journal()).offer(offer("d2"))).mine
    old.version = new  # the same worker has loaded the new weights

    again = await old.taken()
    dead = [old.dies(again, failed)] if ending == "dead" else []
    await old.settle(again, Outcome(done=[] if dead else again.rows, dead=dead))

    assert again.rows == [failed]
    assert lab.ledger.exceptions(old.sub) == {failed[0]: new.name}
    assert lab.ledger.version_of(old.sub, fine[1], fine[0]) != new.name
    lab.sound()


async def test_a_rerun_after_a_crash_under_a_new_version_is_that_versions(lab: Lab) -> None:
    """What a dead worker had in hand and another version finishes belongs to the one that finished it."""
    old = await lab.member(offer("d1"))
    await lab.publish("a")
    (row,) = (await old.taken()).rows
    old.die()
    lab.clock.advance(60)

    new = await lab.member(offer("d2"))
    await new.settle(await new.taken())

    assert lab.ledger.version_of(new.sub, row[1], row[0]) == new.version.name
    lab.sound()


async def test_a_retry_under_the_same_version_leaves_none(lab: Lab) -> None:
    """The usual retry costs no row."""
    member = await lab.member(offer("d1"))
    await lab.publish("a")
    batch = await member.taken()
    await member.settle(batch, Outcome(waiting=[member.waits(batch, batch.rows[0])]))

    await member.settle(await member.taken())

    assert lab.ledger.exceptions(member.sub) == {}
    lab.sound()


async def test_handlers_have_versions_of_their_own(lab: Lab) -> None:
    """The same weights under another handler are another version; activating one leaves the other alone."""
    journal = await lab.journal()
    mine = [(await journal.offer(offer(digest))).mine for digest in ("d1", "d2")]
    theirs = [(await journal.offer(offer(digest, handler="lab.other"))).mine for digest in ("d1", "d2")]

    await journal.activate(HANDLER, mine[0].name)

    assert len({one.id for one in (*mine, *theirs)}) == 4
    assert (await journal.offer(offer("d1", handler="lab.other"))).active == theirs[1]
