"""The benchmarks on a real Kafka run: each prints one JSON object with its promised figures."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: script and options of the smallest run that goes through all of it -> the figures that others read
RUNS = {
    ("kafka", "--rounds", "1", "--events", "400"): (
        {"bare", "bare_with_index", "headrace", "faststream", "faststream_batched"}
        | {"vs_bare", "vs_faststream", "vs_batched"}
    ),
    ("latency", "--journal", "kafka", "--rounds", "1", "--seconds", "0.5", "--rate", "50"): (
        {"floor_p50_ms", "floor_p95_ms", "p50_ms", "p95_ms", "ratio", "publisher_late_p95_ms"}
    ),
}


@pytest.mark.parametrize("command", RUNS, ids=lambda command: command[0])
def test_a_benchmark_prints_its_figures(command: tuple[str, ...], tmp_path: Path) -> None:
    """One line on stdout, a JSON object with every promised figure."""
    script, *options = command

    done = subprocess.run(
        [sys.executable, f"bench/{script}.py", "--json", *options, "--folder", str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )

    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found.keys() >= RUNS[command]
    assert all(found[name] is not None for name in RUNS[command])
