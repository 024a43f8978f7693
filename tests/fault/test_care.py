"""`care.py` in a short form; at full length with HEADRACE_FAULT=full (`make fault`)."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fault.short import FULL, SEED, campaign, noticed

RUNS = 20 if FULL else 2
FAULTS = ("backup_faults", "compact_faults", "retention_faults", "erase_bytes_left", "troubles")


@pytest.mark.timeout(1_800 if FULL else 600)
def test_nothing_goes_too_early_and_what_is_erased_is_gone(tmp_path: Path) -> None:
    """Whoever is killed: backups are whole, the file stays in bounds, no event is lost or doubled."""
    code, result, said = campaign(
        "care.py", f"--dir={tmp_path}", f"--runs={RUNS}", f"--seed={SEED % (1 << 20)}"
    )

    assert code == 0, said
    assert {fault: result[fault] for fault in FAULTS} == dict.fromkeys(FAULTS, 0)
    assert result["bytes_bound_held"]
    assert min(result[name] for name in ("backups", "restores", "erasures", "worker_kills")) > 0


@pytest.mark.parametrize(
    ("sabotage", "faults"),
    [
        ("removes_unfinished", ("retention_faults", "backup_faults")),
        ("no_rewrite", ("erase_bytes_left",)),
        ("keeps_all", ("compact_faults",)),
    ],
)
@pytest.mark.timeout(600)
def test_a_rule_that_is_switched_off_is_noticed(
    tmp_path: Path, sabotage: str, faults: tuple[str, ...]
) -> None:
    """Without the rule the same runs find faults: they are able to fail."""
    options = (f"--dir={tmp_path}", "--runs=2", f"--sabotage={sabotage}")
    assert noticed("care.py", *options, faults=faults)
