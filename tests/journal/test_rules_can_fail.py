"""Each rule of the journal is switched off once, to see that a test of this suite notices.

A mutation changes the text of a query or a decision; the named test then runs on the changed journal and must
fail.  A rule that can be removed without a test that breaks is a rule that will be removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from tests.journal import (
    test_claims,
    test_erase,
    test_handlers,
    test_leases,
    test_outcomes,
    test_publish,
    test_redrive,
    test_replay,
    test_retention,
    test_takeover,
    test_versions,
)
from tests.journal.journals import Sqlite, SqliteMemory
from tests.journal.lab import Content, Lab

from headrace.errors import HeadraceError
from headrace.journal import consumer, replay_consumer, replay_plan
from headrace.journal.append import Appender
from headrace.journal.held import Held
from headrace.journal.queries import load

Patch = pytest.MonkeyPatch
REPLAY = "replay.sql"


FAILURES = (AssertionError, HeadraceError, apsw.ConstraintError, pytest.fail.Exception)


class Mutation(NamedTuple):
    """A rule, how it is switched off, and the test that must notice."""

    rule: str
    switch_off: Callable[[Patch], None]
    check: Callable[..., Any]
    given: dict[str, Any] = {}  # noqa: RUF012 - never changed


def sql(name: str, old: str, new: str, file: str = "queries.sql") -> Callable[[Patch], None]:
    """Return the change of one query."""

    def change(patch: Patch) -> None:
        queries = load(file)
        text = getattr(queries, name)
        assert old in text, f"{name} no longer says {old!r}"
        patch.setattr(queries, name, text.replace(old, new))

    return change


def both(*changes: Callable[[Patch], None]) -> Callable[[Patch], None]:
    """Return several changes as one."""

    def change(patch: Patch) -> None:
        for one in changes:
            one(patch)

    return change


def method(owner: type, name: str, answer: Any) -> Callable[[Patch], None]:
    """Return the change of a method into one that always gives the same answer."""
    return lambda patch: patch.setattr(owner, name, lambda *_, **__: answer)


MUTATIONS = [
    Mutation(
        "a known id is looked up before it is written",
        sql("event_copy", "WHERE eid", "WHERE 0 AND eid"),
        test_publish.test_same_id_same_content_has_no_effect,
    ),
    Mutation(
        "ids are unique per topic",
        sql("event_copy", "AND tp >> 10 = ?", "AND ? > 0"),
        test_publish.test_ids_are_unique_per_topic,
    ),
    Mutation(
        "same id with other content is a conflict",
        method(Appender, "_check_same", None),
        test_publish.test_same_id_other_content_is_refused,
        {"content": Content(body=b"[]")},
    ),
    Mutation(
        "a refused unit leaves nothing in the group",
        sql("savepoint_undo", "ROLLBACK TO unit", "SAVEPOINT inner"),
        test_publish.test_a_unit_is_written_whole_or_not_at_all,
    ),
    Mutation(
        "an unknown version becomes the active one",
        sql("handler_activate", "WHERE id = ?", "WHERE id = ? AND active IS NULL"),
        test_versions.test_an_unknown_version_becomes_active,
    ),
    Mutation(
        "only the active version claims",
        sql("active", "handler.active)", "(SELECT min(id) FROM version))"),
        test_versions.test_only_the_active_version_claims,
    ),
    Mutation(
        "an epoch belongs to a digest",
        sql("model_get", "AND digest = ?", "AND ? <> ''"),
        test_versions.test_the_same_bytes_are_never_a_new_version,
    ),
    Mutation(
        "a new version begins a range",
        sql("range_add", "VALUES (?, ?, ?, ?)", "SELECT ?1, ?2, ?3, ?4 WHERE ?3 = 0"),
        test_versions.test_a_range_ends_where_the_old_version_stopped_taking,
    ),
    Mutation(
        "a final outcome of another version leaves an exception row",
        sql("exception_put", "VALUES (?, ?, ?, ?)", "SELECT ?1, ?2, ?3, ?4 WHERE 0"),
        test_versions.test_a_retry_after_an_upgrade_leaves_an_exception_row,
        {"ending": "done"},
    ),
    Mutation(
        "a redrive back to the range's version drops the exception row",
        sql("exception_drop", "WHERE sub = ?", "WHERE 0 AND sub = ?"),
        test_redrive.test_the_active_version_takes_it_and_the_ledger_says_so,
    ),
    Mutation(
        "a waiting event blocks its key",
        method(Held, "blocks", False),
        test_claims.test_a_waiting_event_blocks_its_key_and_no_other,
    ),
    Mutation(
        "one event in flight per key",
        both(
            method(Held, "may_run", True),
            lambda patch: patch.setattr(Held, "_foremost", lambda held: list(held.open.values())),
        ),
        test_claims.test_a_waiting_event_blocks_its_key_and_no_other,
    ),
    Mutation(
        "open offsets are bounded",
        method(Sqlite, "bound_open", None),
        test_claims.test_a_partition_pauses_at_the_bound_of_open_offsets,
    ),
    Mutation(
        "attempts are counted before they run",
        sql("claim_open", "attempts = attempts + 1", "attempts = attempts"),
        test_claims.test_attempts_are_counted_before_they_run,
    ),
    Mutation(
        "a take-over keeps the range that a dead owner had in hand",
        sql("open_recover_range", "seq <= ?4", "seq <= ?4 AND 0"),
        test_takeover.test_what_was_never_settled_at_all_is_suspected_too,
    ),
    Mutation(
        "a take-over keeps the single events that a dead owner had in hand",
        sql("open_recover_running", "state = 'running'", "state = 'running' AND 0"),
        test_takeover.test_what_a_dead_worker_had_in_hand_runs_one_by_one,
    ),
    Mutation(
        "suspects run one by one",
        both(
            sql("open_recover_range", "'retry', 1, 1,", "'retry', 1, 0,"),
            sql("open_recover_running", "crashes = crashes + 1", "crashes = crashes"),
        ),
        test_takeover.test_what_a_dead_worker_had_in_hand_runs_one_by_one,
    ),
    Mutation(
        "an outcome with a stale epoch is refused",
        both(
            sql("settle_range", "AND owner = ?6 AND epoch = ?7", "AND ?6 = ?6 AND ?7 = ?7"),
            sql("settle_open", "AND owner = ?6 AND epoch = ?7", "AND ?6 = ?6 AND ?7 = ?7"),
        ),
        test_leases.test_an_expired_lease_is_taken_over_and_its_outcome_refused,
    ),
    Mutation(
        "a live lease is respected",
        both(
            sql("positions_free", "OR worker.lease_until_ns <= ?3", "OR ?3 = ?3"),
            sql("position_take", "AND lease_until_ns > ?5", "AND ?5 <> ?5"),
        ),
        test_leases.test_a_live_lease_is_respected,
    ),
    Mutation(
        "a lease dies with the boot",
        both(
            sql("positions_free", "worker.boot <> ?2 OR", "worker.boot <> worker.boot OR"),
            sql("position_take", "boot = ?4 AND", "boot = boot AND"),
        ),
        test_leases.test_a_lease_dies_with_the_boot,
    ),
    Mutation(
        "a worker has at most its share",
        method(consumer, "fair_share", 1_000),
        test_leases.test_shares_are_fair,
        {"partitions": 4, "workers": 2},
    ),
    Mutation(
        "surplus waits for its work to end",
        both(
            method(Held, "running", False),
            sql("position_release", "AND claimed_after = high", "AND claimed_after <= high"),
        ),
        test_leases.test_surplus_is_handed_back_when_its_work_ends,
    ),
    Mutation(
        "an outcome is one transaction",
        sql("rollback", "ROLLBACK", "COMMIT"),
        test_outcomes.test_a_failure_within_leaves_nothing,
        {"point": "settle.dead"},
    ),
    Mutation(
        "a redriven event waits for its key",
        lambda patch: patch.setattr(Held, "may_run", _blind_to_redrives(Held.may_run)),
        test_redrive.test_a_redriven_event_waits_for_its_key,
    ),
    Mutation(
        "what a version has handled live is not allotted",
        sql("ranges", "WHERE sub = ?", "WHERE 0 AND sub = ?", REPLAY),
        test_replay.test_what_the_version_has_handled_live_is_passed_over,
    ),
    Mutation(
        "exceptions count where they belong when history is allotted",
        sql("exceptions", "WHERE sub = ?", "WHERE 0 AND sub = ?", REPLAY),
        test_replay.test_what_the_version_has_handled_live_is_passed_over,
    ),
    Mutation(
        "what is open live is not allotted",
        sql("open", "WHERE sub = ?", "WHERE 0 AND sub = ?", REPLAY),
        test_replay.test_what_is_not_finished_live_is_passed_over,
    ),
    Mutation(
        "dead letters of the version are not allotted",
        sql("dead", "WHERE sub = ?", "WHERE 0 AND sub = ?", REPLAY),
        test_replay.test_dead_letters_of_another_version_are_replayed_and_its_own_are_not,
    ),
    Mutation(
        "what another replay was allotted is not allotted",
        sql("taken", "WHERE subscription", "WHERE 0 AND subscription", REPLAY),
        test_replay.test_two_orders_share_no_event,
    ),
    Mutation(
        "a replay goes on with an unfinished one of the same order",
        sql("same", "WHERE subscription", "WHERE 0 AND subscription", REPLAY),
        test_replay.test_two_workers_share_a_replay,
    ),
    Mutation(
        "a plan is made again under the lock",
        lambda patch: patch.setattr(replay_plan.Ground, "only", lambda _, earlier: earlier),
        test_replay.test_a_plan_is_made_again_when_a_dead_letter_is_redriven_meanwhile,
    ),
    Mutation(
        "a replay takes only what it was allotted",
        sql("claim_rows", "AND seq <= ( SELECT upto", "AND 0 <= ( SELECT upto", REPLAY),
        test_replay.test_a_replay_whose_worker_died_goes_on,
    ),
    Mutation(
        "after a crash a replay runs again only what it was allotted",
        sql("open_recover_range", "AND (NOT EXISTS", "AND (1 OR NOT EXISTS"),
        test_replay.test_a_replay_whose_worker_died_goes_on,
    ),
    Mutation(
        "a live redrive is refused while a replay of the version has the event",
        sql("replay_has", "WHERE subscription", "WHERE 0 AND subscription"),
        test_replay.test_a_redrive_is_refused_when_the_version_has_the_event_elsewhere,
    ),
    Mutation(
        "a redrive in a replay is refused when live has the event",
        sql("live_has", "WHERE subscription", "WHERE 0 AND subscription"),
        test_replay.test_a_redrive_is_refused_when_the_version_has_the_event_elsewhere,
    ),
    Mutation(
        "a redriven event does not come to a version that has it in a replay",
        lambda patch: patch.setattr(consumer, "less_replayed", lambda *told: told[5]),
        test_replay.test_a_redriven_event_whose_version_changes_meanwhile_is_not_handled_twice,
    ),
    Mutation(
        "a version that was only tried is no roll-back",
        sql("version_get", "trial FROM", "0 FROM"),
        test_replay.test_a_version_that_was_only_tried_becomes_active_when_a_worker_brings_it,
    ),
    Mutation(
        "what follows ends at the first event that is open",
        lambda patch: patch.setattr(replay_consumer.ReplayScan, "_upto", lambda _self, _tp, cursor: cursor),
        test_replay.test_what_is_open_when_a_replay_begins_to_follow_comes_later,
    ),
]


MUTATIONS += [
    Mutation(
        "retention waits for what is not taken, or in hand",
        sql("held", "event.seq > position.claimed_after AND", "0 AND", "removal.sql"),
        test_retention.test_the_slowest_handler_counts,
    ),
    Mutation(
        "retention waits for what is open",
        sql("held", "open.seq = event.seq", "open.seq = event.seq AND 0", "removal.sql"),
        test_retention.test_what_nobody_has_finished_stays,
    ),
    Mutation(
        "a dead letter without a decision keeps its event",
        sql("held", "dead.fate IS NULL", "dead.fate IS NULL AND 0", "removal.sql"),
        test_retention.test_a_decision_about_a_dead_letter_lets_its_event_go,
    ),
    Mutation(
        "retention does not wait for the retired",
        sql("held", "subscription.kind <> 'retired'", "1", "removal.sql"),
        test_handlers.test_nobody_waits_for_a_retired_handler,
    ),
    Mutation(
        "an id is known after its payload went",
        sql("event_copy", "FROM skeleton WHERE", "FROM skeleton WHERE 0 AND"),
        test_retention.test_a_repeated_publish_is_known,
    ),
    Mutation(
        "a cause is known after its payload went",
        sql("event_cause", "FROM skeleton WHERE", "FROM skeleton WHERE 0 AND"),
        test_retention.test_a_cause_is_known,
    ),
    Mutation(
        "what is left goes after the window",
        sql("outlived", "removed_us < ?", "removed_us < ? AND 0", "retention.sql"),
        test_retention.test_the_rest_goes_after_the_window,
    ),
    Mutation(
        "what is gone is counted",
        sql("position_gone", "gone = gone + ?1", "gone = gone + 0 * ?1", "removal.sql"),
        test_retention.test_what_is_old_and_finished_goes,
    ),
    Mutation(
        "what is gone is counted by version",
        sql("range_gone", "gone = gone + ?", "gone = gone + 0 * ?", "removal.sql"),
        test_retention.test_the_history_of_versions_still_counts,
    ),
    Mutation(
        "an erasure takes the partition from its worker",
        sql("fence", "owner = NULL, epoch = epoch + 1", "owner = owner", "handlers.sql"),
        test_erase.test_what_was_read_and_not_claimed_is_not_handed_out,
    ),
    Mutation(
        "letters lose what they hold",
        sql("letters_erase", "WHERE id IN", "WHERE 0 AND id IN", "erase.sql"),
        test_erase.test_letters_lose_all_they_hold,
    ),
    Mutation(
        "the old name of a handler leads to it",
        both(
            sql("handler_get", "WHERE was.name = ?1", "WHERE was.name = ?1 AND 0"),
            sql("handler_add", "WHERE NOT EXISTS", "WHERE 1 OR EXISTS"),
        ),
        test_handlers.test_the_old_name_still_leads_there,
    ),
]


def _blind_to_redrives(may_run: Callable[[Held, Any], bool]) -> Callable[[Held, Any], bool]:
    def seen(held: Held, entry: Any) -> bool:
        unsettled, held.unsettled = held.unsettled, 0
        try:
            return may_run(held, entry)
        finally:
            held.unsettled = unsettled

    return seen


async def attempt(mutation: Mutation, folder: Path) -> None:
    """Run the test on a journal of its own."""
    lab = Lab(SqliteMemory(), folder)
    with Patch.context() as patch:
        own = {"monkeypatch": patch} if "monkeypatch" in signature(mutation.check).parameters else {}
        try:
            await mutation.check(lab=lab, **mutation.given, **own)
        finally:
            await lab.close()


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.rule.replace(" ", "-"))
def test_a_rule_that_is_switched_off_is_missed(
    mutation: Mutation, tmp_path: Path, monkeypatch: Patch
) -> None:
    """With the rule the test passes, without it the test fails."""
    asyncio.run(attempt(mutation, tmp_path))

    mutation.switch_off(monkeypatch)
    with pytest.raises(FAILURES):
        asyncio.run(attempt(mutation, tmp_path))
