"""Erasing a key: payloads, letters and errors go for good, and every count says what became of the events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.journal.lab import OUT, TOPIC, Content, Lab, Member
from tests.journal.test_handlers import db_of
from tests.journal.test_retention import AGED, look, swept

from headrace import errors
from headrace.journal.erase import Erasure, erase
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import OpenState, Outcome
from headrace.ports.care import Erased

SECRET = "s3cret"
EMPTY = Erased({}, 0, 0, 0, None, "")


async def erased(lab: Lab, key: str = "a", topic: str | None = None, *, effects: bool = False) -> Erased:
    """Erase a key; the journal is sound afterwards."""
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    found = await erase(journal, [key], topic, effects=effects, dry_run=False)
    lab.sound()
    (await look(lab)).close()
    return found


async def ticket(lab: Lab, key: str | None = "a") -> None:
    """Publish something that is to be erased."""
    await lab.publish_one(Content(key, f'{{"text":"{SECRET}"}}'.encode()))


def rows(lab: Lab) -> str:
    """Return all there is, as text."""
    return repr(lab.ledger.dump())


async def test_what_is_done_loses_its_payload(lab: Lab) -> None:
    """Event, and the event that followed under the same key; other keys are whole, ids and counts stay."""
    member = await lab.member()
    await ticket(lab)
    await lab.publish("b")
    await member.drain()

    found = await erased(lab)

    assert (found.topics, found.letters, found.expired, found.effects) == ({TOPIC: 1, OUT: 1}, 0, 0, 0)
    assert lab.ledger.counts(member.sub) == {"taken": 2, "done": 2}
    assert SECRET not in rows(lab)
    assert (len(lab.ledger.offsets(1)), len(lab.ledger.offsets(2))) == (1, 1)


async def test_one_topic_alone(lab: Lab) -> None:
    """Other topics keep what they have, and what is kept there is told."""
    member = await lab.member()
    await ticket(lab)
    await member.drain()

    found = await erased(lab, topic=TOPIC)

    assert (found.topics, found.effects) == ({TOPIC: 1}, 1)
    assert len(lab.ledger.offsets(2)) == 1
    with pytest.raises(errors.CommandInvalid):
        await erased(lab, topic="nowhere")


@pytest.mark.parametrize(
    "ending", ["untaken", "claimed", "running", "retry", "blocked", "parked", "returned"]
)
async def test_what_is_still_to_be_handled_is_closed(lab: Lab, ending: str) -> None:
    """Wherever it stands: it counts as expired, with a letter that says why and holds nothing."""
    member = await lab.member()
    await ticket(lab)
    await ticket(lab, "b")
    await bring(member, ending)

    found = await erased(lab)

    db = await db_of(lab)
    assert (found.topics, found.expired) == ({TOPIC: 1}, 1)
    counts = lab.ledger.counts(member.sub)
    assert counts["expired"] == 1
    letters = db.rows("SELECT reason, code, fate, body, errors FROM dead")
    assert letters == [("erased", "HR-E245", "expired", b"", "[]")]
    assert rows(lab).count(SECRET) == 1, "that of the other key"


async def bring(member: Member, ending: str) -> None:
    """Bring the events to where they are to stand."""
    if ending == "untaken":
        return
    batch = await member.taken()
    if ending == "running":  # another one of the batch has ended before it
        await member.settle(batch, Outcome(done=[row for row in batch.rows if member.key(row) == "b"]))
    if ending in ("claimed", "running"):
        return
    first = {row for row in batch.rows if member.key(row) == "a"}
    waiting = [member.waits(batch, row, after_ms=1e9, state=OpenState(ending)) for row in first]
    await member.settle(batch, Outcome(waiting=waiting, done=[row for row in batch.rows if row not in first]))


@pytest.mark.parametrize("ending", ["done", "dead", "retry"])
async def test_what_was_in_hand_does_not_bring_it_back(lab: Lab, ending: str) -> None:
    """A worker ends with an event that was erased meanwhile: what it made of it is refused."""
    member = await lab.member()
    await ticket(lab)
    batch = await member.taken()
    (row,) = batch.rows
    outcome = {
        "done": await member.made(batch),
        "dead": Outcome(dead=[member.dies(batch, row)]),
        "retry": Outcome(waiting=[member.waits(batch, row)]),
    }[ending]
    await erased(lab)

    settled = await member.settle(batch, outcome)

    assert settled.stale == {row[0]}
    assert SECRET not in rows(lab)
    assert lab.ledger.counts(member.sub) == {"taken": 1, "expired": 1}
    lab.sound()


async def test_what_was_read_and_not_claimed_is_not_handed_out(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker reads ahead without the write lock: what is erased before its claim is not in the batch."""
    member = await lab.member()
    await ticket(lab)
    look_ahead: Any = vars(type(member.consumer))["_look"]
    found = look_ahead(member.consumer, 10)
    assert any(one.rows for one in found.values())
    await erased(lab)

    with monkeypatch.context() as patch:
        patch.setattr(type(member.consumer), "_look", lambda *_: found)
        assert await member.take() is None

    assert lab.ledger.counts(member.sub) == {"taken": 1, "expired": 1}
    lab.sound()


async def test_the_neighbours_are_handled_once(lab: Lab) -> None:
    """Events of other keys that were in hand in the same partition run again, and count once."""
    member = await lab.member()
    for _ in range(5):
        await ticket(lab)
        await lab.publish("a1", "a2", "a3", "a4", "a5", "a6")
    batch = await member.taken()
    await erased(lab)
    settled = await member.settle(batch, await member.made(batch))
    assert settled.stale, "their partition was taken away"

    for _ in range(3):
        await member.balance()
        await member.drain()

    counts = lab.ledger.counts(member.sub)
    assert counts == {"taken": 35, "done": 30, "expired": 5}
    assert set(lab.ledger.children().values()) == {1}
    lab.sound()


async def test_letters_lose_all_they_hold(lab: Lab) -> None:
    """Payload, error, traceback and the errors of attempts; nothing is left to decide on."""
    member = await lab.member()
    await ticket(lab)
    batch = await member.taken()
    letter = member.dies(batch, batch.rows[0])._replace(error=SECRET, traceback=SECRET)
    await member.settle(batch, Outcome(dead=[letter]))

    found = await erased(lab)

    db = await db_of(lab)
    assert found.letters == 1
    assert db.rows("SELECT body, error, traceback, errors, fate FROM dead") == [
        (b"", "", "", "[]", "dropped")
    ]
    assert lab.ledger.counts(member.sub) == {"taken": 1, "dead": 1}
    assert SECRET not in rows(lab)


async def test_effects_under_other_keys_go_if_asked_for(lab: Lab) -> None:
    """Without the word they stay and are counted; with it all that followed goes, however far."""
    root = await lab.publish_one(Content("a", SECRET.encode()))
    child = await lab.publish_one(Content("b", SECRET.encode()), parents=[root.event_id])
    await lab.publish_one(Content(None, SECRET.encode()), parents=[child.event_id])
    await lab.publish_one(Content("b", b"whole"))

    kept = await erased(lab)
    assert (kept.events, kept.effects) == (1, 2)


async def test_all_that_follows_goes_if_asked_for(lab: Lab) -> None:
    """Event, effect and the effect of the effect."""
    root = await lab.publish_one(Content("a", SECRET.encode()))
    child = await lab.publish_one(Content("b", SECRET.encode()), parents=[root.event_id])
    await lab.publish_one(Content(None, SECRET.encode()), parents=[child.event_id])
    await lab.publish_one(Content("b", b"whole"))

    found = await erased(lab, effects=True)

    assert (found.events, found.effects) == (3, 0)
    assert SECRET not in rows(lab)
    assert "whole" in rows(lab)


async def test_it_is_told_without_the_key(lab: Lab) -> None:
    """An event says how much was erased; only who knows the key can tell whose it was."""
    from hashlib import blake2b

    await ticket(lab, "ada@example.org")
    journal = await lab.journal()
    found = await erased(lab, "ada@example.org")

    assert isinstance(journal, SqliteJournal)
    reader = journal.reader()
    (event,) = reader.events(topic="headrace.erasures")
    told = Erasure.model_validate_json(event.payload)
    assert found.event_id == event.envelope.event_id.bytes
    assert (told.events, told.letters, told.expired) == ({TOPIC: 1}, 0, 0)
    salted = blake2b(b"ada@example.org", key=bytes.fromhex(told.salt), digest_size=16)
    assert told.key_hashes == (salted.hexdigest(),)
    assert "ada@example.org" not in rows(lab)
    reader.close()


async def test_a_repeated_publish_does_not_bring_it_back(lab: Lab) -> None:
    """Whatever its content: the id of an erased event is taken."""
    await ticket(lab)
    (event_id,) = lab.ledger.ids(1)
    await erased(lab)

    same = await lab.publish_one(Content("a", SECRET.encode()), event_id=event_id)
    other = await lab.publish_one(Content("a", b"other"), event_id=event_id)

    assert same.duplicate
    assert other.duplicate
    assert SECRET not in rows(lab)


async def test_nothing_is_found_of_an_unknown_key(lab: Lab) -> None:
    """Nothing is changed then, and nothing is told."""
    await ticket(lab)
    before = lab.ledger.dump()

    assert await erased(lab, "nobody") == EMPTY

    assert lab.ledger.dump() == before


async def test_a_dry_run_counts_and_changes_nothing(lab: Lab) -> None:
    """It says what the real run then does."""
    member = await lab.member()
    await ticket(lab)
    await ticket(lab, "b")
    await member.drain()
    await ticket(lab)
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    before = lab.ledger.dump()

    foretold = await erase(journal, ["a"], None, effects=False, dry_run=True)

    assert lab.ledger.dump() == before
    assert foretold == (await erased(lab))._replace(event_id=None)


@pytest.mark.parametrize("point", ["remove.skeleton", "remove.events", "erase.step", "erase.told"])
async def test_an_erasure_that_was_cut_short_goes_on(lab: Lab, point: str) -> None:
    """Failed at any point the journal is sound, and the same call erases the rest."""
    from headrace.testing import FailAt

    member = await lab.member()
    for _ in range(3):
        await ticket(lab)
    await member.drain()
    await ticket(lab)
    lab.faults.now = FailAt(point, errors.DiskFull(path="a test"))

    with pytest.raises(errors.DiskFull):
        await erased(lab)
    lab.sound()
    await erased(lab)

    assert SECRET not in rows(lab)
    assert lab.ledger.counts(member.sub) == {"taken": 4, "done": 3, "expired": 1}


async def test_two_keys_at_once(lab: Lab) -> None:
    """One event tells of both."""
    for key in ("a", "b", "c"):
        await ticket(lab, key)
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)

    found = await erase(journal, ["a", "b"], None, effects=False, dry_run=False)

    assert found.topics == {TOPIC: 2}
    reader = journal.reader()
    (event,) = reader.events(topic="headrace.erasures")
    assert len(json.loads(event.payload)["key_hashes"]) == 2
    reader.close()


async def test_effects_are_found_when_retention_has_removed_their_cause(lab: Lab) -> None:
    """What is left of the cause knows whose it was, until it is erased too."""
    root = await lab.publish_one(Content("a", SECRET.encode()))
    lab.clock.advance(2 * 86_400)
    await swept(lab, (await lab.journal()).sweeper("lab", (AGED,), 10**15))
    await lab.publish_one(Content(None, SECRET.encode()), parents=[root.event_id])

    found = await erased(lab, effects=True)
    again = await erased(lab, effects=True)

    assert (found.events, again) == (1, EMPTY)
    assert SECRET not in rows(lab)
    db = await db_of(lab)
    assert db.rows("SELECT DISTINCT content, owner, why FROM skeleton") == [(b"", b"", "erased")]
