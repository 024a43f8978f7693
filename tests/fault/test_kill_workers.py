"""`kill_workers.py` in a short form; at full length with HEADRACE_FAULT=full (`make fault`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fault._judge import FAULTS
from tests.fault.short import FULL, SEED, campaign, noticed

#: Each failpoint once, or each eleven times.
RUNS = 200 if FULL else 18


@pytest.mark.timeout(1_500 if FULL else 240)
def test_nothing_is_lost_doubled_torn_or_handled_by_two_versions(tmp_path: Path) -> None:
    """Whatever is killed, stopped or reloaded: every event is finished once, by one version, and whole."""
    code, result, said = campaign("kill_workers.py", f"--dir={tmp_path}", f"--runs={RUNS}", f"--seed={SEED}")

    assert code == 0, said
    assert {fault: result[fault] for fault in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert result["runs"] == RUNS
    assert min(result["failpoints"].values()) >= (10 if FULL else 1)
    # A short form has few kills, of which one or two may come too early or too late.
    assert result["kills_in_flight"] >= (0.9 if FULL else 0.8) * result["kills"]


@pytest.mark.parametrize(
    ("sabotage", "point", "fault"),
    [
        ("no_suspects", "handle.after", "lost"),
        ("no_exceptions", "settle.begin", "two_versions"),
        ("outcome_in_parts", "settle.open", "torn"),
    ],
)
@pytest.mark.timeout(600)
def test_a_rule_that_is_switched_off_is_noticed(
    tmp_path: Path, sabotage: str, point: str, fault: str
) -> None:
    """Without the rule the same runs find faults: they are able to fail."""
    options = (f"--dir={tmp_path}", "--runs=4", f"--only={point}", f"--sabotage={sabotage}")
    assert noticed("kill_workers.py", *options, faults=(fault,))
