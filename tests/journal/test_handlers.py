"""Handlers that are renamed, retired, and come back: nothing is handled twice or lost without a word."""

from __future__ import annotations

import logging

import pytest
from tests.journal.lab import HANDLER, OUT, TOPIC, Lab, Member, offer
from tests.journal.test_retention import AGED, aged, look, swept

from headrace import errors
from headrace.journal.connection import Connection
from headrace.journal.handlers import retire
from headrace.journal.progress import progress
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import OpenState, Outcome

NEW = "lab.new"


async def db_of(lab: Lab) -> Connection:
    """Return the connection of the journal."""
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    return journal.connection()


async def renamed(lab: Lab, name: str = NEW, was: str = HANDLER) -> Member:
    """Return a worker of the handler under its new name."""
    journal = await lab.journal()
    worker = await journal.join(lab.kind.lease_ms)
    subscription = await journal.subscribe(name, TOPIC, was=was)
    offered = await journal.offer(offer(handler=name))
    member = Member(lab, journal, worker, subscription, journal.consumer(worker, subscription), offered.mine)
    await member.balance()
    return member


# --- renamed ----------------------------------------------------------------------------------


async def test_a_renamed_handler_goes_on(lab: Lab) -> None:
    """Under its new name it takes what the old one had not taken, and nothing else."""
    old = await lab.member()
    await lab.publish("a", "b")
    await old.drain()
    await old.leave()
    await lab.publish("c")

    new = await renamed(lab)
    batch = await new.taken()

    assert len(batch.rows) == 1
    assert (new.sub, new.subscription.born) == (old.sub, HANDLER)
    await new.settle(batch)
    assert lab.ledger.counts(new.sub) == {"taken": 3, "done": 3}
    (await look(lab)).close()


async def test_what_waits_is_renamed_with_it(lab: Lab) -> None:
    """An event that waits for its retry is tried again under the new name, with its attempts."""
    old = await lab.member()
    await lab.publish("a")
    batch = await old.taken()
    await old.settle(batch, Outcome(waiting=[old.waits(batch, batch.rows[0], after_ms=1_000)]))
    await old.leave()
    lab.clock.advance(2)

    new = await renamed(lab)
    batch = await new.taken()

    assert new.attempt(batch, batch.rows[0]).number == 2


async def test_the_old_name_still_leads_there(lab: Lab) -> None:
    """A worker with the old code, after a roll-back, continues the same subscription."""
    old = await lab.member()
    await lab.publish("a", "b")
    await old.drain()
    await old.leave()
    new = await renamed(lab)
    await new.leave()

    again = await lab.member()

    assert again.sub == new.sub
    assert await again.take() is None


async def test_a_handler_may_get_its_name_back(lab: Lab) -> None:
    """Renamed there and back it is the same handler; the ids that it derives never change."""
    old = await lab.member()
    await old.leave()
    new = await renamed(lab)
    await new.leave()

    back = await renamed(lab, HANDLER, NEW)

    assert (back.sub, back.subscription.born) == (old.sub, HANDLER)
    lab.sound()


async def test_a_rename_that_was_done_changes_nothing(lab: Lab) -> None:
    """`was` may stay in the code; of a handler that nobody knows it means nothing."""
    first = await renamed(lab, was="lab.nobody")
    await lab.publish("a")
    await first.drain()
    await first.leave()

    again = await renamed(lab, was="lab.nobody")

    assert again.sub == first.sub
    assert await again.take() is None


async def test_two_histories_do_not_become_one(lab: Lab) -> None:
    """Where both have handled events the rename is refused, and nothing is changed."""
    one, two = await lab.member(), await lab.member(handler=NEW)
    await lab.publish("a")
    await one.drain()
    before = lab.ledger.dump()

    with pytest.raises(errors.RenameRefused):
        await two.journal.subscribe(NEW, TOPIC, was=HANDLER)

    assert lab.ledger.dump() == before


async def test_a_retired_history_is_no_hindrance(lab: Lab) -> None:
    """As the refusal advises: the old one retired, the new one starts."""
    one, two = await lab.member(), await lab.member(handler=NEW)
    await one.leave()
    await retire(await db_of(lab), HANDLER, dry_run=False)

    assert (await two.journal.subscribe(NEW, TOPIC, was=HANDLER)).id == two.subscription.id


# --- retired ----------------------------------------------------------------------------------


async def test_a_live_handler_is_not_retired(lab: Lab) -> None:
    """While a worker serves it, and for a lease after that worker has died."""
    member = await lab.member()
    db = await db_of(lab)
    before = lab.ledger.dump()

    with pytest.raises(errors.RetireRefused, match="serves it"):
        await retire(db, HANDLER, dry_run=False)
    member.die()
    with pytest.raises(errors.RetireRefused, match="serves it"):
        await retire(db, HANDLER, dry_run=False)

    assert lab.ledger.dump() == before
    lab.expire()
    assert (await retire(db, HANDLER, dry_run=False)).handler == HANDLER


async def test_what_is_open_is_closed_with_a_reason(lab: Lab) -> None:
    """Waiting and parked events, and those in the hand of a dead worker: each has a letter that says why."""
    member = await lab.member()
    await lab.publish("a", "b", "c")
    batch = await member.taken(limit=3)
    await member.settle(
        batch,
        Outcome(
            waiting=[
                member.waits(batch, batch.rows[0], after_ms=1e9),
                member.waits(batch, batch.rows[1], state=OpenState.PARKED),
            ]
        ),
    )
    await lab.publish("d", "e")
    await member.taken(limit=1)
    member.die()
    lab.expire()
    db = await db_of(lab)

    foretold = await retire(db, "make", dry_run=True)
    done = await retire(db, "make", dry_run=False)

    assert foretold == done
    assert done.closed + done.untaken == 5
    counts = lab.ledger.counts(member.sub)
    assert counts == {"taken": done.closed, "expired": done.closed}
    letters = db.rows("SELECT reason, code, fate, body FROM dead")
    assert letters == [("retired", "HR-E246", "expired", b"")] * done.closed
    lab.sound()
    (await look(lab)).close()


async def test_nobody_waits_for_a_retired_handler(lab: Lab) -> None:
    """Retention removes what it has not taken; `status` no longer shows it."""
    idle = await lab.member(handler="lab.idle")
    await idle.leave()
    await aged(lab, "a", "b")
    journal = await lab.journal()
    sweeper = journal.sweeper("lab", (AGED,), 1)
    await swept(lab, sweeper)
    assert len(lab.ledger.offsets(1)) == 2

    await retire(await db_of(lab), "idle", dry_run=False)
    await swept(lab, sweeper)

    assert lab.ledger.offsets(1) == []
    reader = await look(lab)
    assert [one.handler for one in progress(reader, lab.clock)] == [HANDLER]
    reader.close()


async def test_a_retired_handler_that_comes_back_is_told(lab: Lab, caplog: pytest.LogCaptureFixture) -> None:
    """It goes on behind what it had taken, and what was removed meanwhile counts as expired."""
    member = await lab.member()
    await lab.publish("a", "b")
    await member.drain()
    await lab.publish("c")
    await member.leave()
    await retire(await db_of(lab), HANDLER, dry_run=False)
    lab.clock.advance(2 * 86_400)
    await swept(lab, (await lab.journal()).sweeper("lab", (AGED,), 10**12))
    await lab.publish("d")

    with caplog.at_level(logging.WARNING, "headrace.journal"):
        back = await lab.member()
    await back.drain()

    assert f"{HANDLER} was retired" in caplog.text
    assert lab.ledger.counts(back.sub) == {"taken": 4, "done": 3, "expired": 1}
    (await look(lab)).close()


async def test_a_name_has_to_be_known_and_clear(lab: Lab) -> None:
    """An unknown name is told with the known ones; a short one that fits two handlers is refused."""
    await lab.member()
    await lab.member(handler="other.make")
    db = await db_of(lab)

    with pytest.raises(errors.HandlerUnknown):
        await retire(db, "nobody", dry_run=False)
    with pytest.raises(errors.RetireRefused, match="it may be"):
        await retire(db, "make", dry_run=False)


@pytest.mark.parametrize("point", ["retire.partition", "retire.committed"])
async def test_a_retirement_that_was_cut_short_goes_on(lab: Lab, point: str) -> None:
    """Killed between two partitions the journal is sound, and the same call finishes it."""
    from headrace.testing import FailAt

    member = await lab.member()
    await lab.publish("a", "b", "c", "d")
    batch = await member.taken()
    await member.settle(
        batch, Outcome(waiting=[member.waits(batch, row, after_ms=1e9) for row in batch.rows])
    )
    await member.leave()
    db = await db_of(lab)
    lab.faults.now = FailAt(point, errors.DiskFull(path="a test"))

    with pytest.raises(errors.DiskFull):
        await retire(db, HANDLER, dry_run=False)
    lab.sound()
    if point == "retire.partition":
        await retire(db, HANDLER, dry_run=False)

    assert lab.ledger.counts(member.sub) == {"taken": 4, "expired": 4}
    lab.sound()
    assert OUT  # its effects are those of before
