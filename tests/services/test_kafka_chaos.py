"""`kafka_chaos.py` and `kafka_handover.py` in a short form; at full length with HEADRACE_FAULT=full."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.fault._chaos_judge import FAULTS
from tests.fault.short import FULL, SEED, campaign

RUNS, EVENTS = (60, 20_000) if FULL else (2, 3_000)


@pytest.mark.timeout(3_600 if FULL else 600)
def test_nothing_is_lost_doubled_reordered_or_handled_by_two_versions(tmp_path: Path) -> None:
    """Whatever is killed, stopped, restored or reloaded: a plain reader finds each result once, in order."""
    code, result, said = campaign("kafka_chaos.py", f"--runs={RUNS}", f"--seed={SEED}", f"--dir={tmp_path}")

    assert code == 0, said
    assert {fault: result[fault] for fault in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert result["runs"] == RUNS
    assert result["hung_by_broker"] <= max(1, RUNS // 12)
    assert result["kills_in_flight"] >= 0.5 * result["kills"] > 0
    assert result["copies"] > 0


@pytest.mark.timeout(900)
def test_a_rule_that_is_switched_off_is_noticed(tmp_path: Path) -> None:
    """Without the rule the same run finds its fault: it is able to fail."""
    rules = {"doubled": "no_copies", "lost": "no_open", "reordered": "no_waiting"}

    def found(fault: str, seed: int) -> tuple[int, int]:
        options = ("--runs=1", f"--seed={seed}", "--only=handle.after", f"--dir={tmp_path}")
        code, result, _ = campaign("kafka_chaos.py", *options, f"--sabotage={rules[fault]}")
        return code, result[fault]

    with ThreadPoolExecutor() as side_by_side:
        runs = {fault: side_by_side.submit(found, fault, 1) for fault in rules}
    for fault, run in runs.items():
        code, count = run.result()
        if not count:  # three of them at once, on a busy machine: it was given up before its fault came about
            code, count = found(fault, 2)
        assert (code, count > 0) == (1, True), fault


@pytest.mark.timeout(1_200)
def test_a_model_is_handed_over_and_rolled_back_under_load() -> None:
    """Each event is in one version's results, though a worker is killed; the tool counts the same."""
    code, result, said = campaign("kafka_handover.py", f"--events={EVENTS}")

    assert code == 0, (result, said)
    assert sum(result["versions"].values()) == EVENTS
    assert result["versions"] == result["history"]
    assert len(result["versions"]) == 2
    assert result["kills"] == 1
