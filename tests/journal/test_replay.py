"""Replays: history goes through a version once, live and replayed together, whoever dies or comes between."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pytest
from tests.journal.lab import HANDLER, LEASE_MS, OUT, TOPIC, Lab, Member, offer, offsets
from tests.journal.runner import Runner, begun, finished, planned, running

from headrace import errors
from headrace.event.lineage import uuid7
from headrace.journal import progress, redrive
from headrace.journal.connection import Connection
from headrace.journal.erase import erase
from headrace.journal.handlers import retire
from headrace.journal.queries import load
from headrace.journal.replays import SqliteReplays
from headrace.journal.retention import SWEEP_EVERY_US
from headrace.journal.sqlite import SqliteJournal
from headrace.journal.standing import standings
from headrace.journal.verify import verify
from headrace.ports import Keep, NoFaults, OpenState, Outcome, VersionInfo
from headrace.ports.look import State
from headrace.ports.replay import ReplayPlan
from headrace.testing import FailAt

pytestmark = pytest.mark.needs("replays")

NEW = offer("d2")


async def lived(lab: Lab, *keys: str | None) -> Member:
    """Publish events and let the first version handle them."""
    await lab.publish(*keys)
    member = await lab.member(offer("d1"))
    await member.drain()
    return member


async def everything(runner: Runner) -> list[int]:
    """Run a replay to its end; return what it has handled, in the order of the offsets."""
    found: list[int] = []
    while batch := await runner.take():
        await runner.settle(batch, await runner.made(batch))
        found += offsets(batch.rows)
    return sorted(found)


async def upgraded(member: Member) -> VersionInfo:
    """Make the second version the active one, and the worker's."""
    member.version = (await member.journal.offer(NEW)).mine
    return member.version


# --- what is allotted ---------------------------------------------------------------------------


async def test_history_goes_through_a_version_once(lab: Lab) -> None:
    """Every event that live has handled is handled by the new version, once, beside the live results."""
    await lived(lab, "a", "b", None, "c")
    topic = (await (await lab.journal()).topic(TOPIC)).id

    runner = await running(lab, NEW)
    assert await everything(runner) == lab.ledger.offsets(topic)

    state = await runner.state()
    assert (state.allotted, state.done, state.emitted, state.complete) == (4, 4, 4, True)
    assert set(finished(lab, runner.sub).values()) == {runner.version.name}
    assert len(await lab.rows(f"{OUT}.side.trial")) == len(await lab.rows(OUT)) == 4
    lab.sound()


async def test_a_second_replay_finds_nothing_to_do(lab: Lab) -> None:
    """What a version has finished in a replay is not allotted again, on whatever side."""
    await lived(lab, "a", "b")
    await everything(await running(lab, NEW))

    for side in ("trial", "other", None):
        found = await begun(lab, NEW, side=side)
        assert isinstance(found, ReplayPlan)
        assert (found.allotted, found.skipped) == (0, {"replayed": 2})
    lab.sound()


async def test_what_the_version_has_handled_live_is_passed_over(lab: Lab) -> None:
    """Ranges and exceptions of live count: a retry that ended under the new version is the new version's."""
    member = await lived(lab, "a", "b")
    await lab.publish("c")
    batch = await member.taken()
    await member.settle(batch, Outcome(waiting=[member.waits(batch, batch.rows[0])]))
    await upgraded(member)
    await lab.publish("d")
    await member.drain()
    by_offset = finished(lab, member.sub)
    old = [seq for seq, by in by_offset.items() if by != member.version.name]

    assert (await planned(lab, NEW)).skipped == {"handled": 2}
    assert await everything(await running(lab, NEW)) == sorted(old)
    assert len(old) == 2
    lab.sound()


async def test_what_is_not_finished_live_is_passed_over(lab: Lab) -> None:
    """Not taken, in hand, or waiting for a retry: live may come to finish it under any version."""
    lab.partitions = 1
    member = await lived(lab, "a")
    await lab.publish("b", "c", "d")
    batch = await member.taken(2)
    await member.settle(batch, Outcome(waiting=[member.waits(batch, batch.rows[0], after_ms=60_000)]))

    plan = await planned(lab, NEW)

    assert (plan.allotted, plan.skipped) == (1, {"unfinished": 3})
    runner = await running(lab, NEW)
    assert len(await everything(runner)) == 1
    lab.sound()


async def test_dead_letters_of_another_version_are_replayed_and_its_own_are_not(lab: Lab) -> None:
    """An event that died under the version has had its turn: it is redriven, not replayed."""
    member = await lab.member(offer("d1"))
    await lab.publish("a")
    batch = await member.taken()
    await member.settle(batch, Outcome(dead=[member.dies(batch, row) for row in batch.rows]))

    assert (await planned(lab, offer("d1"))).skipped == {"dead": 1}
    assert await everything(await running(lab, NEW)) == offsets(batch.rows)
    lab.sound()


async def test_what_retention_had_removed_before_is_none_of_it(lab: Lab) -> None:
    """It lies within the stretch that was allotted; nobody says that the replay has handled it."""
    await lived(lab, "a")
    lab.clock.advance(2 * 86_400)
    keep = (await lab.journal()).sweeper("lab", [Keep(TOPIC, 86_400_000_000, None)], 30 * 86_400_000_000)
    lab.clock.advance(SWEEP_EVERY_US / 1e6)
    while await keep.step():
        pass
    await lived(lab, "a")
    lab.clock.advance(1)
    assert len(await everything(await running(lab, NEW))) == 1

    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    reader = journal.reader()
    told = [
        [
            (one.replay, one.state)
            for one in standings(reader, reader.find(str(UUID(bytes=row[0]))), lab.clock)
        ]
        for row in reader.rows("SELECT eid FROM skeleton UNION ALL SELECT eid FROM event WHERE tp >> 10 = 1")
    ]
    reader.close()
    assert told == [[("", State.DONE)], [("", State.DONE), ("side trial", State.DONE)]]


async def test_what_is_older_than_the_handler_is_passed_over(lab: Lab) -> None:
    """A handler that began with the latest event has no history before it."""
    await lab.publish("a", "b")
    member = await lab.member(offer("d1"), latest=True)
    await lab.publish("c")
    await member.drain()

    plan = await planned(lab, NEW)

    assert (plan.allotted, plan.skipped) == (1, {"before_start": 2})
    assert len(await everything(await running(lab, NEW))) == 1
    lab.sound()


async def test_offsets_bound_a_replay(lab: Lab) -> None:
    """Both bounds are included; what lies outside is neither replayed nor told as passed over."""
    await lived(lab, "a", "b", "c", "d", None)
    all_of_it = lab.ledger.offsets((await (await lab.journal()).topic(TOPIC)).id)

    runner = await running(lab, NEW, from_offset=all_of_it[1], to_offset=all_of_it[3])
    assert await everything(runner) == all_of_it[1:4]
    rest = await running(lab, NEW)
    assert rest.replay.plan.skipped == {"replayed": 3}
    assert await everything(rest) == [all_of_it[0], all_of_it[4]]
    lab.sound()


async def test_times_bound_a_replay(lab: Lab) -> None:
    """From a time on and before one, by the clock of the publisher, also where that was set back."""
    times: list[int] = []
    for step in (10.0, 10.0, -15.0, 30.0):
        lab.clock.set_wall(step)
        times.append(lab.clock.wall_us())
        await lab.publish("a")
    member = await lab.member(offer("d1"))
    await member.drain()
    all_of_it = lab.ledger.offsets(member.subscription.topic.id)

    # In order of time: 5, 10, 20, 35 seconds; the third was published last but one.
    assert times == sorted(times, key=times.index)
    runner = await running(lab, NEW, from_us=times[2], to_us=times[1])
    assert await everything(runner) == [all_of_it[0], all_of_it[2]]
    later = await running(lab, NEW, from_us=times[1])
    assert await everything(later) == [all_of_it[1], all_of_it[3]]
    lab.sound()


async def test_a_chain_bounds_a_replay(lab: Lab) -> None:
    """The events of the topic that belong to the chain of an event, whichever of them was named."""
    first, second = await lab.publish("a", "b")
    child = await lab.event(parents=[first.event_id])
    await (await lab.journal()).publish([child])
    member = await lab.member(offer("d1"))
    await member.drain()

    runner = await running(lab, NEW, chain=child.event_id)
    handled = await everything(runner)
    assert {row[2] for row in await lab.rows() if row[0] in handled} == {first.event_id, child.event_id}
    assert await everything(await running(lab, NEW, chain=second.event_id))
    lab.sound()


async def test_an_event_that_is_not_there_has_no_chain(lab: Lab) -> None:
    """Nothing is allotted for it."""
    await lived(lab, "a")
    unknown = uuid7(1, bytes(10))
    assert (await planned(lab, NEW, chain=unknown)).allotted == 0


async def test_a_plan_writes_nothing(lab: Lab) -> None:
    """Neither the version nor anything else is known afterwards."""
    await lived(lab, "a", "b")
    before = lab.ledger.dump()

    plan = await planned(lab, NEW)

    assert (plan.allotted, plan.version.name) == (2, "1+model@2:d2")
    assert lab.ledger.dump() == before


async def test_a_handler_without_history_is_refused(lab: Lab) -> None:
    """It was never live: there is nothing that live has closed."""
    await lab.publish("a")
    before = lab.ledger.dump()
    with pytest.raises(errors.ReplayRefused, match="no live subscription"):
        await begun(lab, NEW)
    assert lab.ledger.dump() == before


async def test_another_version_than_the_one_asked_for_is_refused(lab: Lab) -> None:
    """The files hold another one: nothing is written, and both are named."""
    await lived(lab, "a")
    before = lab.ledger.dump()
    with pytest.raises(errors.ReplayRefused, match=r"holds version 1\+model@2:d2 of it, not model@1"):
        await begun(lab, NEW, version="model@1")
    assert lab.ledger.dump() == before
    for name in ("@2", "model@2", "1+model@2:d2"):
        assert (await planned(lab, NEW, version=name)).allotted == 1


async def test_a_version_that_was_only_tried_becomes_active_when_a_worker_brings_it(lab: Lab) -> None:
    """A replay makes it known and leaves the old one active; a worker that offers it is its first."""
    member = await lived(lab, "a")
    runner = await running(lab, NEW)
    journal = await lab.journal()

    assert (await journal.offer(offer("d1"))).active == member.version
    offered = await journal.offer(NEW)
    assert offered.active == offered.mine == runner.version
    assert (await journal.offer(offer("d1"))).active == runner.version  # and the old one is known by now
    lab.sound()


# --- side by side -------------------------------------------------------------------------------


async def test_live_results_have_the_ids_that_live_would_have_given(lab: Lab) -> None:
    """``--live``: into the live topics, under the ids of the version as if it had been active."""
    await lived(lab, "a", "b")
    runner = await running(lab, NEW, side=None)
    batch = await runner.taken()
    outcome = await runner.made(batch)
    await runner.settle(batch, outcome)

    assert len(await lab.rows(OUT)) == 4
    handlers = lab.ledger.children()
    assert sorted(count for count in handlers.values()) == [1, 1, 1, 1]
    assert {model for _, _, model in handlers} == {"model@1:d1", "model@2:d2"}
    lab.sound()


async def test_again_has_a_ledger_of_its_own(lab: Lab) -> None:
    """What the version has handled is handled once more under each name, and once only."""
    await lived(lab, "a", "b")
    for again in ("one", "two"):
        runner = await running(lab, offer("d1"), again=again)
        assert len(await everything(runner)) == 2
        assert isinstance(await begun(lab, offer("d1"), again=again), ReplayPlan)
    assert (await planned(lab, offer("d1"))).skipped == {"handled": 2}
    lab.sound()


async def test_two_workers_share_a_replay(lab: Lab) -> None:
    """The same order twice at once: the partitions are shared, no event is handed out twice."""
    await lived(lab, *"abcdefgh", None, None)
    first = await running(lab, NEW)
    second = await running(lab, NEW)
    assert second.subscription == first.subscription
    assert (first.replay.resumed, second.replay.resumed) == (False, True)
    await first.balance()
    await second.balance()

    found = await everything(first), await everything(second)

    assert len(found[0]) + len(found[1]) == 10
    assert not set(found[0]) & set(found[1])
    assert (await first.state()).complete
    lab.sound()


async def test_two_orders_share_no_event(lab: Lab) -> None:
    """They overlap: the later one gets what the earlier was not allotted, though that is not finished."""
    await lived(lab, *"abcd")
    all_of_it = lab.ledger.offsets((await (await lab.journal()).topic(TOPIC)).id)
    first = await running(lab, NEW, to_offset=all_of_it[1])
    second = await running(lab, NEW)

    assert await everything(second) == all_of_it[2:]
    assert await everything(first) == all_of_it[:2]
    lab.sound()


async def test_a_version_goes_live_in_the_middle(lab: Lab) -> None:
    """Live goes on with new events under it, the replay with old ones: none of both is the other's."""
    member = await lived(lab, *"abcdef")
    runner = await running(lab, NEW)
    batch = await runner.taken(2)
    await upgraded(member)
    await lab.publish("a", "b", "g")
    await member.drain()
    await runner.settle(batch, await runner.made(batch))

    assert len(await everything(runner)) == 4
    assert (await planned(lab, NEW)).skipped == {"handled": 3, "replayed": 6}
    lab.sound()


async def test_a_key_keeps_its_order(lab: Lab) -> None:
    """An event that waits for a retry holds those of its key, in a replay as live."""
    await lived(lab, "a", "a", "b")
    runner = await running(lab, NEW)
    batch = await runner.taken()
    first, second = [row for row in batch.rows if runner.key(row) == "a"]
    waiting = [
        runner.waits(batch, first),
        runner.waits(batch, second, state=OpenState.BLOCKED),
    ]
    other = [row for row in batch.rows if row not in (first, second)]
    await runner.settle(batch, Outcome(done=other, waiting=waiting))

    again = await runner.taken()
    assert again.rows == [first]
    await runner.settle(again)
    assert (await runner.taken()).rows == [second]
    lab.sound()


# --- who dies -----------------------------------------------------------------------------------


@pytest.mark.needs("leases")
async def test_a_replay_whose_worker_died_goes_on(lab: Lab) -> None:
    """What it had in hand runs again, alone, and nothing beside it that was not allotted."""
    member = await lived(lab, *"aabb")
    await upgraded(member)
    await lab.publish(*"ab")
    await member.drain()  # between what is allotted lies what is not: the new version has handled it
    member.version = await (await lab.journal()).activate(HANDLER, "model@1:d1")
    await lab.publish(*"ab")
    await member.drain()
    all_of_it = lab.ledger.offsets(member.subscription.topic.id)
    dying = await running(lab, NEW)
    in_hand = await dying.taken()
    assert offsets(in_hand.rows) == [*all_of_it[:4], *all_of_it[6:]]
    dying.die()
    lab.clock.advance(2 * LEASE_MS / 1000)

    heir = await running(lab, NEW)
    assert heir.replay.resumed
    found: list[int] = []
    while batch := await heir.take():
        assert batch.alone
        assert len(batch.rows) == 1
        await heir.settle(batch, await heir.made(batch))
        found += offsets(batch.rows)
    assert sorted(found) == offsets(in_hand.rows)
    assert (await heir.state()).complete
    lab.sound()


@pytest.mark.needs("failpoints")
@pytest.mark.parametrize("point", ["replay.allotted", "settle.events", "claim.written"])
async def test_a_failure_within_leaves_nothing(lab: Lab, point: str) -> None:
    """A transaction that fails half-way has allotted, claimed, emitted and counted nothing."""
    await lived(lab, "a", "b")
    runner = None if point.startswith("replay.") else await running(lab, NEW)
    batch = await runner.taken(1) if runner and point.startswith("settle.") else None
    before = lab.ledger.dump()
    lab.faults.now = FailAt(point, errors.DiskFull(path="a test"))
    if runner is None:
        work: Any = begun(lab, NEW)
    else:
        work = runner.take() if batch is None else runner.settle(batch, await runner.made(batch))
    with pytest.raises(errors.DiskFull):
        await work
    lab.faults.now = NoFaults()
    after = lab.ledger.dump()
    after["stamp"], after["topic"] = before["stamp"], before["topic"]  # made known before, to be kept
    assert after == before
    runner = runner or await running(lab, NEW)
    if batch is not None:
        await runner.settle(batch, await runner.made(batch))
    await everything(runner)
    state = await runner.state()
    assert (state.done, state.emitted, state.complete) == (2, 2, True)
    lab.sound()


# --- dead letters -------------------------------------------------------------------------------


async def died(runner: Member) -> list[int]:
    """Let everything that can be taken die."""
    found: list[int] = []
    while batch := await runner.take():
        await runner.settle(batch, Outcome(dead=[runner.dies(batch, row) for row in batch.rows]))
        found += offsets(batch.rows)
    return found


@pytest.mark.needs("redrives")
async def test_a_dead_letter_of_a_replay_is_redriven_in_it(lab: Lab) -> None:
    """The same order goes on with it, on the version of the replay."""
    await lived(lab, "a", "b")
    runner = await running(lab, NEW)
    dead = await died(runner)
    assert (await runner.state()).complete
    await runner.leave()
    journal = await lab.journal()

    assert await lab.kind.redrive(journal, lab.ledger.letters()) == ["", ""]
    again = await running(lab, NEW)
    assert again.subscription == runner.subscription
    assert await everything(again) == sorted(dead)
    assert set(finished(lab, again.sub).values()) == {again.version.name}
    lab.sound()


@pytest.mark.needs("redrives")
async def test_a_redrive_is_refused_when_the_version_has_the_event_elsewhere(lab: Lab) -> None:
    """Live, while a replay of the active version has it; in the replay, while or after live has it."""
    member = await lab.member(offer("d1"))
    await lab.publish("a")
    (seq,) = await died(member)
    (live_letter,) = lab.ledger.letters()
    runner = await running(lab, NEW)
    journal = await lab.journal()
    await upgraded(member)
    (problem,) = await lab.kind.redrive(journal, [live_letter])
    assert "in a replay" in problem  # allotted, not even begun
    assert await died(runner) == [seq]
    replay_letter = next(one for one in lab.ledger.letters() if one != live_letter)

    assert await lab.kind.redrive(journal, [live_letter]) == [""]  # it died there, so it is live's again
    (problem,) = await lab.kind.redrive(journal, [replay_letter])
    assert "open live" in problem
    await member.balance()
    await member.settle(await member.taken())
    (problem,) = await lab.kind.redrive(journal, [replay_letter])
    assert "finished it" in problem
    lab.sound()


@pytest.mark.needs("redrives")
async def test_a_redriven_event_whose_version_changes_meanwhile_is_not_handled_twice(lab: Lab) -> None:
    """Redriven under the old version; before its turn the new one, which has it in a replay, is active."""
    member = await lab.member(offer("d1"))
    await lab.publish("a", "b")
    await died(member)
    await everything(await running(lab, NEW))
    letters = lab.ledger.letters()
    assert await lab.kind.redrive(await lab.journal(), letters) == ["", ""]
    await upgraded(member)
    await member.balance()

    assert await member.take() is None
    assert [reason for _, reason, _ in lab.ledger.dead(member.sub)] == ["replayed", "replayed"]
    assert lab.ledger.counts(member.sub) == {"taken": 2, "dead": 2}
    lab.sound()
    member.version = await (await lab.journal()).activate(HANDLER, "model@1:d1")
    assert await lab.kind.redrive(await lab.journal(), lab.ledger.letters()) == ["", ""]
    await member.balance()
    assert len((await member.taken()).rows) == 2  # the old version may have it
    lab.sound()


@pytest.mark.needs("redrives")
async def test_a_plan_is_made_again_when_a_dead_letter_is_redriven_meanwhile(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the count and the transaction an event became open: it is not allotted."""
    member = await lab.member(offer("d1"))
    await lab.publish("a", "b")
    await died(member)
    db: Connection = vars(await lab.journal())["_connection"]
    drafted, letters = SqliteReplays._draft, lab.ledger.letters()

    def draft(*given: Any) -> Any:
        found = drafted(*given)
        if letters:  # between the first plan and its transaction
            number = letters.pop()
            assert db._transact(lambda: redrive._redrive(db, number)).problem == ""
            letters.clear()
        return found

    monkeypatch.setattr(SqliteReplays, "_draft", draft)
    runner = await running(lab, NEW)
    assert (runner.replay.plan.allotted, runner.replay.plan.skipped) == (1, {"unfinished": 1})
    lab.sound()


# --- following ----------------------------------------------------------------------------------


async def test_a_replay_that_follows_takes_what_live_closes(lab: Lab) -> None:
    """First what is closed; then whatever live closes, and nothing before that."""
    lab.partitions = 2
    member = await lived(lab, "a", "b")
    runner = await running(lab, NEW, follow=True)
    replays = (await lab.journal()).replays()
    assert len(await everything(runner)) == 2
    await lab.publish("a", "b", "c")
    assert await replays.extend(runner.subscription) == 0
    batch = await member.taken()
    held, *others = batch.rows
    await member.settle(batch, Outcome(done=others, waiting=[member.waits(batch, held, after_ms=1_000)]))
    early = await replays.extend(runner.subscription)
    assert offsets([held])[0] not in await everything(runner)
    await lab.publish("a", "b", "c")
    await member.drain()
    lab.clock.advance(1.5)
    for one in lab.members:
        one.worker.renew()
    await member.drain()

    assert early + await replays.extend(runner.subscription) == 6
    await everything(runner)
    assert await replays.extend(runner.subscription) == 0
    assert sorted(finished(lab, runner.sub)) == sorted(finished(lab, member.sub))
    state = await runner.state()
    assert (state.allotted, state.done, state.complete) == (8, 8, True)
    lab.sound()


async def test_what_is_open_when_a_replay_begins_to_follow_comes_later(lab: Lab) -> None:
    """Other partitions are ahead by then: the position of its own has waited for it."""
    lab.partitions = 4
    member = await lab.member(offer("d1"))
    await lab.publish(*"abcdefgh")
    await lab.publish(*"abcdefgh")
    batch = await member.taken()
    held = batch.rows[8]
    done = [row for row in batch.rows if row is not held]
    await member.settle(batch, Outcome(done=done, waiting=[member.waits(batch, held)]))
    runner = await running(lab, NEW, follow=True)
    assert held[0] not in await everything(runner)
    await member.drain()

    assert await (await lab.journal()).replays().extend(runner.subscription) > 0
    await everything(runner)
    assert sorted(finished(lab, runner.sub)) == offsets(batch.rows)
    lab.sound()


async def test_a_replay_that_follows_passes_over_what_its_version_handles_live(lab: Lab) -> None:
    """Once the version is the active one there is nothing left to shadow."""
    member = await lived(lab, "a", "b")
    runner = await running(lab, NEW, follow=True)
    await upgraded(member)
    await lab.publish("a", "b", "c")
    await member.drain()

    assert await (await lab.journal()).replays().extend(runner.subscription) == 0
    assert len(await everything(runner)) == 2
    assert (await runner.state()).complete
    lab.sound()


async def test_a_replay_that_follows_may_begin_before_there_is_history(lab: Lab) -> None:
    """With nothing to do yet it waits; begun again, it is the same one."""
    member = await lab.member(offer("d1"))
    runner = await running(lab, NEW, follow=True)
    again = await running(lab, NEW, follow=True)
    assert (again.subscription, again.replay.resumed) == (runner.subscription, True)
    await lab.publish("a")
    await member.drain()

    assert await (await lab.journal()).replays().extend(runner.subscription) == 1
    assert len(await everything(runner)) + len(await everything(again)) == 1
    lab.sound()


async def test_an_extension_is_whole_or_not_at_all(lab: Lab) -> None:
    """Offsets that are allotted once are not allotted a second time when it is repeated."""
    member = await lived(lab, "a")
    runner = await running(lab, NEW, follow=True)
    replays = (await lab.journal()).replays()
    for count in range(1, 4):
        await lab.publish("a", "b")
        await member.drain()
        assert await replays.extend(runner.subscription) == 2
        assert await replays.extend(runner.subscription) == 0
        assert (await runner.state()).allotted == 1 + 2 * count
    assert len(await everything(runner)) == 7
    lab.sound()


# --- what goes ----------------------------------------------------------------------------------


async def test_retention_waits_for_what_a_replay_still_has_to_handle(lab: Lab) -> None:
    """Not for what it was not allotted; once it is complete nothing waits for it."""
    member = await lived(lab, "a", "b", "c", "d")
    all_of_it = lab.ledger.offsets(member.subscription.topic.id)
    runner = await running(lab, NEW, to_offset=all_of_it[1])
    lab.clock.advance(2 * 86_400)
    for one in lab.members:
        one.worker.renew()
    sweeper = (await lab.journal()).sweeper("lab", (Keep(TOPIC, 86_400_000_000, None),), 10**12)

    async def swept() -> list[int]:
        lab.clock.advance(SWEEP_EVERY_US / 1e6)
        while await sweeper.step():
            lab.sound()
        return lab.ledger.offsets(member.subscription.topic.id)

    assert await swept() == all_of_it[:2]
    for one in lab.members:
        one.worker.renew()
    await runner.balance()
    assert await everything(runner) == all_of_it[:2]
    assert await swept() == []
    assert (await runner.state()).complete
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    reader = journal.reader()
    assert verify(reader) == []
    reader.close()


async def test_what_is_erased_is_no_longer_replayed(lab: Lab) -> None:
    """In hand, or still to be taken: it is closed, the rest goes on, and the replay comes to its end."""
    await lived(lab, "a", "a", "b", "b")
    runner = await running(lab, NEW)
    batch = await runner.taken(1)
    assert runner.key(batch.rows[0]) == "a"
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    await erase(journal, ["a"], None, effects=False, dry_run=False)
    settled = await runner.settle(batch, await runner.made(batch))
    assert settled.stale
    lab.sound()

    await runner.balance()
    assert len(await everything(runner)) == 2
    state = await runner.state()
    assert (state.allotted, state.done, state.expired, state.complete) == (4, 2, 2, True)
    (told,) = progress.replays(journal.reader(), lab.clock)
    assert (told.allotted, told.done, told.expired, told.waiting) == (4, 2, 2, 0)
    lab.sound()


@pytest.mark.parametrize("replays_only", [True, False])
async def test_what_a_replay_has_left_is_given_up(lab: Lab, replays_only: bool) -> None:
    """With its handler, or alone: nothing waits for it any more, and its row says what became of it."""
    member = await lived(lab, *["a"] * 6)
    await member.leave()
    third = lab.ledger.offsets(member.subscription.topic.id)[2]
    between = await running(lab, NEW, side="other", from_offset=third, to_offset=third)
    assert await everything(between) == [third]
    await between.leave()
    runner = await running(lab, NEW)
    first = await runner.taken(1)
    await runner.settle(first, await runner.made(first))
    await runner.taken(3)
    journal = await lab.journal()
    assert isinstance(journal, SqliteJournal)
    db = journal.connection()
    with pytest.raises(errors.RetireRefused, match="serves it"):
        await retire(db, HANDLER, dry_run=False, replays_only=replays_only)
    runner.die()
    lab.expire()

    foretold = await retire(db, HANDLER, dry_run=True, replays_only=replays_only)
    done = await retire(db, HANDLER, dry_run=False, replays_only=replays_only)

    assert foretold == done
    assert (done.replays, done.replayed_closed, done.closed) == (1, 4, 0)
    state = await journal.replays().state(runner.subscription)
    assert (state.allotted, state.done, state.expired, state.complete) == (5, 1, 4, True)
    topic = member.subscription.topic.id
    assert db.rows(load("removal.sql").held, (topic, json.dumps(lab.ledger.offsets(topic)))) == []
    lab.sound()
    if replays_only:
        assert (await planned(lab, NEW)).allotted == 4, "the version may have them in another replay"
        with pytest.raises(errors.RetireRefused, match="no unfinished replay"):
            await retire(db, HANDLER, dry_run=False, replays_only=True)
        return
    with pytest.raises(errors.ReplayRefused) as refused:
        await planned(lab, offer("d3"))
    assert "it was retired" in (refused.value.hint or "")
