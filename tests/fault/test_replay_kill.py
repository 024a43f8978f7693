"""`replay_kill.py` in a short form; at full length with HEADRACE_FAULT=full (`make fault`)."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).with_name("replay_kill.py")
FAULTS = ("lost", "doubled", "two_versions", "torn")
FULL = os.environ.get("HEADRACE_FAULT") == "full"
#: Each failpoint once, or nearly four times.
RUNS = 60 if FULL else 16
#: In CI the same runs each time: red means the change.  Elsewhere new ones.
SEED = 1 if os.environ.get("CI") else random.randrange(1 << 31)


def kill(tmp_path: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """Return exit code, result and the words of a campaign."""
    command = [sys.executable, str(SCRIPT), "--json", "--dir", str(tmp_path), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout or "{}"), done.stderr


@pytest.mark.timeout(1_500 if FULL else 300)
def test_each_version_handles_each_event_once_live_and_replayed_together(tmp_path: Path) -> None:
    """Killed and begun again beside live load, with its version going live: nothing is lost or doubled."""
    code, result, said = kill(tmp_path, f"--runs={RUNS}", f"--seed={SEED}")

    assert code == 0, said
    assert {fault: result[fault] for fault in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert result["runs"] == RUNS
    assert result["upgraded_midway"] >= 0.6 * RUNS
    assert result["kills"] >= 2 * RUNS
    assert result["kills_in_flight"] >= 0.8 * result["kills"]


@pytest.mark.parametrize(
    ("sabotage", "fault"), [("no_ledger", "doubled"), ("no_allotment", "torn"), ("no_suspects", "lost")]
)
@pytest.mark.timeout(300)
def test_a_rule_that_is_switched_off_is_noticed(tmp_path: Path, sabotage: str, fault: str) -> None:
    """Without the rule the same runs find faults: they are able to fail."""
    options = ("--runs=4", "--seed=1", "--only=settle.open", f"--sabotage={sabotage}")
    code, result, _ = kill(tmp_path, *options)

    assert code == 1
    assert result[fault] > 0
