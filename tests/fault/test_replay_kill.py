"""`replay_kill.py` in a short form; at full length with HEADRACE_FAULT=full (`make fault`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fault.short import FULL, SEED, campaign, noticed

FAULTS = ("lost", "doubled", "two_versions", "torn")
#: Each failpoint once, or nearly four times.
RUNS = 60 if FULL else 16


@pytest.mark.timeout(1_500 if FULL else 300)
def test_each_version_handles_each_event_once_live_and_replayed_together(tmp_path: Path) -> None:
    """Killed and begun again beside live load, with its version going live: nothing is lost or doubled."""
    code, result, said = campaign("replay_kill.py", f"--dir={tmp_path}", f"--runs={RUNS}", f"--seed={SEED}")

    assert code == 0, said
    assert {fault: result[fault] for fault in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert result["runs"] == RUNS
    assert result["upgraded_midway"] >= 0.6 * RUNS
    assert result["kills"] >= 2 * RUNS
    assert result["kills_in_flight"] >= 0.8 * result["kills"]


@pytest.mark.parametrize(
    ("sabotage", "fault"), [("no_ledger", "doubled"), ("no_allotment", "torn"), ("no_suspects", "lost")]
)
@pytest.mark.timeout(600)
def test_a_rule_that_is_switched_off_is_noticed(tmp_path: Path, sabotage: str, fault: str) -> None:
    """Without the rule the same runs find faults: they are able to fail."""
    options = (f"--dir={tmp_path}", "--runs=4", "--only=settle.open", f"--sabotage={sabotage}")
    assert noticed("replay_kill.py", *options, faults=(fault,))
