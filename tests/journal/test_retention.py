"""Retention: old payloads go, what is left of them is known, nothing goes that somebody waits for."""

from __future__ import annotations

import pytest
from tests.journal.lab import HANDLER, OUT, TOPIC, Content, Lab, Member

from headrace import errors
from headrace.journal.reader import Reader
from headrace.journal.retention import STEP_ROWS_MAX, SWEEP_EVERY_US
from headrace.journal.sqlite import SqliteJournal
from headrace.journal.verify import verify
from headrace.ports import Journal, Keep, OpenState, Outcome, Sweeper

DAY_US = 86_400_000_000
WINDOW_US = 10 * DAY_US
AGED = Keep(TOPIC, DAY_US, None)


def sweeper(journal: Journal, *rules: Keep) -> Sweeper:
    """Return what removes old events."""
    return journal.sweeper("lab", rules or (AGED,), WINDOW_US)


async def swept(lab: Lab, one: Sweeper) -> None:
    """Let a whole round go by; each of its steps leaves a sound journal."""
    lab.clock.advance(SWEEP_EVERY_US / 1e6)
    while await one.step():
        lab.sound()
    lab.sound()


async def aged(lab: Lab, *keys: str | None) -> Member:
    """Return a worker that has finished events that are two days old by now."""
    member = await lab.member()
    await lab.publish(*keys)
    await member.drain()
    lab.clock.advance(2 * 86_400)
    member.worker.renew()
    return member


async def look(lab: Lab) -> Reader:
    """Return a reader, after a check of everything."""
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    reader = journal.reader()
    assert verify(reader) == []
    return reader


async def test_what_is_old_and_finished_goes(lab: Lab) -> None:
    """Its payload is removed, its counts stay, and the young stay whole."""
    member = await aged(lab, "a", "b", None)
    await lab.publish("a")
    await member.drain()

    await swept(lab, sweeper(await lab.journal()))

    assert len(lab.ledger.offsets(1)) == 1
    assert lab.ledger.counts(member.sub) == {"taken": 4, "done": 4}
    (await look(lab)).close()


async def test_what_nobody_has_finished_stays(lab: Lab) -> None:
    """Events that are not taken, in hand, waiting, parked, or dead without a decision stay, however old."""
    member = await aged(lab, "a", "b", "c", "d", "e")
    await lab.publish("a", "b", "c", "d", "e", "f")
    batch = await member.taken(limit=5)
    rows = batch.rows
    outcome = Outcome(
        done=[rows[0]],
        dead=[member.dies(batch, rows[1])],
        waiting=[
            member.waits(batch, rows[2], after_ms=1e12),
            member.waits(batch, rows[3], state=OpenState.PARKED),
        ],
    )
    await member.settle(batch, outcome)
    lab.clock.advance(3 * 86_400)
    member.worker.renew()

    await swept(lab, sweeper(await lab.journal()))

    kept = {row[0] for row in rows[1:]}
    assert kept < set(lab.ledger.offsets(1))
    assert len(lab.ledger.offsets(1)) == len(kept) + 1, "and the one that was not taken"
    (await look(lab)).close()


async def test_the_slowest_handler_counts(lab: Lab) -> None:
    """An event goes when every handler of its topic has finished it, and no sooner."""
    slow = await lab.member(handler="lab.slow")
    await aged(lab, "a", "b")
    one = sweeper(await lab.journal())

    await swept(lab, one)
    assert len(lab.ledger.offsets(1)) == 2
    slow.worker.renew()
    await slow.balance()
    await slow.settle(await slow.taken())
    await swept(lab, one)

    assert lab.ledger.offsets(1) == []


async def test_a_decision_about_a_dead_letter_lets_its_event_go(lab: Lab) -> None:
    """A redrive must have something to run; once dropped, the bytes go from the letter too."""
    member = await lab.member()
    await lab.publish("a")
    batch = await member.taken()
    await member.settle(batch, Outcome(dead=[member.dies(batch, batch.rows[0])]))
    lab.clock.advance(2 * 86_400)
    journal = await lab.journal()
    one = sweeper(journal)
    await swept(lab, one)
    assert len(lab.ledger.offsets(1)) == 1

    assert isinstance(journal, SqliteJournal)
    from headrace.journal.redrive import drop

    await drop(journal.connection(), lab.ledger.letters())
    await swept(lab, one)

    assert lab.ledger.offsets(1) == []
    assert [body for _, _, body in lab.ledger.dead(member.sub)] == [b""]


async def test_a_topic_keeps_within_its_size(lab: Lab) -> None:
    """The oldest go first, as many as are too much."""
    journal, body = await lab.journal(), b"x" * 1_000
    member = await lab.member()
    for n in range(4):
        unit = [await lab.event(Content(f"k{n}", body)) for _ in range(100)]
        await journal.publish(unit)
    await member.drain()
    before = lab.ledger.offsets(1)

    await swept(lab, sweeper(journal, Keep(TOPIC, None, 300_000)))

    after = lab.ledger.offsets(1)
    assert after == before[-len(after) :], "the youngest"
    assert 250 < len(after) < 300
    (await look(lab)).close()


async def test_a_step_is_short(lab: Lab) -> None:
    """However much is to go, a transaction takes a bounded part of it."""
    await aged(lab, *[f"k{n}" for n in range(STEP_ROWS_MAX + 10)])
    one = sweeper(await lab.journal())
    lab.clock.advance(SWEEP_EVERY_US / 1e6)

    await one.step()

    assert len(lab.ledger.offsets(1)) == 10


async def test_several_workers_may_sweep(lab: Lab) -> None:
    """What one has looked at another leaves alone, and what both would remove is removed once."""
    await aged(lab, *[f"k{n}" for n in range(2 * STEP_ROWS_MAX)])
    journal = await lab.journal()
    one, two = sweeper(journal), sweeper(journal)
    lab.clock.advance(SWEEP_EVERY_US / 1e6)

    more = True
    while more:
        more = await one.step() | await two.step()
        lab.sound()

    assert lab.ledger.offsets(1) == []


# --- what is left -----------------------------------------------------------------------------


@pytest.mark.needs("refuses_conflicts")
async def test_a_repeated_publish_is_known(lab: Lab) -> None:
    """Same id and content has no effect, other content is a conflict, as before the payload went."""
    await aged(lab, "a")
    (event_id,) = lab.ledger.ids(1)
    await swept(lab, sweeper(await lab.journal()))

    receipt = await lab.publish_one(Content("a", b'{"n":0}'), event_id=event_id)
    with pytest.raises(errors.EventConflict):
        await lab.publish_one(Content("a", b'{"n":1}'), event_id=event_id)
    with pytest.raises(errors.EventConflict):
        await lab.publish_one(Content("b", b'{"n":0}'), event_id=event_id)

    assert receipt.duplicate
    assert lab.ledger.offsets(1) == []


async def test_a_cause_is_known(lab: Lab) -> None:
    """An event may name one whose payload is gone as its parent, and belongs to its chain."""
    await aged(lab, "a")
    (event_id,) = lab.ledger.ids(1)
    await swept(lab, sweeper(await lab.journal()))

    await lab.publish_one(parents=[event_id])

    reader = await look(lab)
    child = reader.events()[-1]
    assert child.envelope.depth == 1
    assert child.envelope.causality_id.bytes == event_id
    chain = reader.chain(child)
    assert (chain[0].envelope.event_id.bytes, chain[0].removed) == (event_id, "retention")
    assert {one.removed for one in chain[1:]} == {""}, "what followed from it is whole"
    reader.close()


async def test_the_rest_goes_after_the_window(lab: Lab) -> None:
    """Then the id is as good as new, and what followed from it is still sound."""
    member = await aged(lab, "a", "b")
    ids = lab.ledger.ids(1)
    one = sweeper(await lab.journal())
    await swept(lab, one)
    lab.clock.advance(WINDOW_US / 1e6 + 1)
    await swept(lab, one)

    receipt = await lab.publish_one(Content("a", b'{"n":0}'), event_id=ids[0])

    assert not receipt.duplicate
    assert len(lab.ledger.offsets(2)) == 2, "its effects are there"
    assert lab.ledger.counts(member.sub) == {"taken": 2, "done": 2}
    (await look(lab)).close()


async def test_the_history_of_versions_still_counts(lab: Lab) -> None:
    """Which version has handled how many does not change when payloads go."""
    from headrace.journal.history import histories

    await aged(lab, "a", "b", "c")
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    reader = journal.reader()
    before = histories(reader, HANDLER)
    await swept(lab, sweeper(journal))

    (after,) = histories(reader, HANDLER)

    assert after.handled == before[0].handled
    assert (after.taken, after.neither, after.both) == (3, 0, 0)
    reader.close()


async def test_a_new_handler_begins_with_what_there_is(lab: Lab) -> None:
    """It counts from the earliest event that is retained."""
    await aged(lab, "a", "b")
    await lab.publish("c")
    await swept(lab, sweeper(await lab.journal()))

    late = await lab.member(handler="lab.late")
    await late.drain()

    assert lab.ledger.counts(late.sub) == {"taken": 1, "done": 1}
    lab.sound()


async def test_what_an_app_no_longer_says_is_forgotten(lab: Lab) -> None:
    """`status` shows the retention that is declared now."""
    from headrace.journal.progress import topics

    journal = await lab.journal()
    await swept(lab, sweeper(journal, AGED, Keep(OUT, None, 1 << 20)))
    await swept(lab, sweeper(journal, Keep(TOPIC, 2 * DAY_US, None)))

    assert isinstance(journal, SqliteJournal)
    reader = journal.reader()
    told = {one.name: (one.age_us, one.bytes_max) for one in topics(reader)}
    assert told == {TOPIC: (2 * DAY_US, None), OUT: (None, None)}
    reader.close()


async def test_a_long_backlog_is_not_read_again_and_again(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round ends after some looks in vain, and the next one goes on behind them."""
    monkeypatch.setattr("headrace.journal.retention.LOOK_ROWS_MAX", 2)
    monkeypatch.setattr("headrace.journal.retention.VAIN_LOOKS_MAX", 3)
    member = await lab.member()
    await lab.publish(*["a"] * 12, "b")
    batch = await member.taken()
    done = [row for row in batch.rows if member.key(row) == "b"]
    waiting = [member.waits(batch, row, after_ms=1e12) for row in batch.rows if row not in done]
    await member.settle(batch, Outcome(done=done, waiting=waiting))
    lab.clock.advance(2 * 86_400)
    one = sweeper(await lab.journal())

    left = []
    for _ in range(3):
        await swept(lab, one)
        left.append(len(lab.ledger.offsets(1)))

    assert left == [13, 13, 12]
