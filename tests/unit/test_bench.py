"""The benchmarks run: each prints one JSON object with its promised figures, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: script -> (the smallest run that goes through all of it, the figures that others read)
SCRIPTS = {
    "pipeline": (
        ("--rounds", "1", "--events", "64"),
        {"floor_us", "headrace_us", "ratio", "ratio_suspending"},
    ),
    "embedded": (
        ("--rounds", "1", "--events", "200", "--steps", "4"),
        {"raw_events_per_s", "headrace_events_per_s", "ratio", "ratio_normal", "ratio_def"}
        | {"vs_dbos", "vs_langgraph"},
    ),
    "latency": (
        ("--rounds", "1", "--seconds", "0.5", "--rate", "50"),
        {"floor_p50_ms", "floor_p95_ms", "p50_ms", "p95_ms", "ratio", "publisher_late_p95_ms"},
    ),
    "growth": (
        ("--rounds", "1", "--events", "2000", "--slice", "100"),
        {"sizes", "handled_per_s", "drop", "rss_mib"},
    ),
    "replay": (
        ("--rounds", "1", "--seconds", "0.5", "--rate", "50", "--events", "4000"),
        {"p95_ms", "with_replay_p95_ms", "ratio", "replayed_per_s"},
    ),
    "start": (
        ("--rounds", "1", "--starts", "1"),
        {"import_ms", "first_event_ms"},
    ),
    "reload": (("--rounds", "1"), {"code_ms", "model_ms", "lost"}),
}


def run(script: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run a benchmark as a person does."""
    command = [sys.executable, f"bench/{script}.py", "--json", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=110)


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_benchmark_prints_its_figures(script: str, tmp_path: Path) -> None:
    """One line on stdout, a JSON object with every promised figure, and an empty folder afterwards."""
    options, wanted = SCRIPTS[script]

    done = run(script, *options, "--folder", str(tmp_path))

    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    found = json.loads(line)
    assert found.keys() >= wanted
    # `make setup` installs the peers, so that every figure is one.
    assert all(found[name] is not None for name in wanted)
    assert not list(tmp_path.iterdir())


def test_every_benchmark_is_tested() -> None:
    """No script of the folder is missing above; `kafka` is tested with the services."""
    assert {file.stem for file in (ROOT / "bench").glob("[!_]*.py")} == {*SCRIPTS, "kafka"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a folder lies on")
def test_a_folder_in_memory_is_refused() -> None:
    """Where a flush costs nothing no figure is printed."""
    done = run("growth", "--events", "100", "--folder", "/dev/shm")

    assert done.returncode == 2
    assert not done.stdout
    assert "/dev/shm lies in memory" in done.stderr


def test_an_absent_peer_is_left_out() -> None:
    """A peer that is not installed is named on stderr, and nothing fails."""
    program = (
        "import _peers, pathlib\n"
        "_peers.PEERS = {'absent': ('no_such_module', None)}\n"
        "with _peers.peers(pathlib.Path(), 1) as sides: print(sides)\n"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT / "bench", capture_output=True, text=True, check=True
    )

    assert done.stdout == "{}\n"
    assert "absent is not installed" in done.stderr
