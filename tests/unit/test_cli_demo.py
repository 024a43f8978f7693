"""``headrace demo``: the packaged example runs anywhere, ends by itself, and adds up."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from tests.unit.terminal import Running, apart

from headrace.cli.output import Exit

EVENTS = 150


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder; home and what is temporary are others, which are looked at."""
    for name, variable in (("temporary", "TMPDIR"), ("home", "HOME")):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def test_the_demo_adds_up(folder: Path) -> None:
    """Published = handled, nothing dead, the promised keys; and its journal is there to be looked at."""
    ran = apart("demo", "--events", EVENTS, "--json", cwd=folder)

    assert (ran.code, ran.err) == (Exit.DONE, "")
    found = ran.document
    assert (found["published"], found["handled"], found["dead"]) == (EVENTS, EVENTS, 0)
    assert found["emitted"] == EVENTS + found["escalated"]
    assert 0 < found["p50_ms"] <= found["p95_ms"]
    assert found["events_per_s"] > 0
    assert found["model_version"].startswith("intent@1:")
    assert found["violations"] == []
    assert list(folder.iterdir()) == []
    left = [*(folder.parent / "temporary").iterdir(), *(folder.parent / "home").iterdir()]
    assert left == [Path(found["journal"]).parent], "neither we nor a library may leave anything else"
    status = apart("status", "--journal", found["journal"], "--verify", "--json", cwd=folder)
    assert status.code == Exit.DONE
    assert {one["handler"] for one in status.document["subscriptions"]} == {
        "support.route",
        "support.escalate",
    }


def test_the_summary_is_for_people(folder: Path) -> None:
    """Counts, latency with its histogram, intents as bars, and the next commands, which work."""
    ran = apart("demo", "--events", EVENTS, cwd=folder)

    assert ran.code == Exit.DONE
    assert f"{EVENTS} messages published, {EVENTS} handled" in ran.out
    assert "verify: clean" in ran.out
    assert "p95" in ran.out
    assert "█" in ran.out
    shown = [line for line in ran.out[ran.out.index("\nnext\n") :].splitlines() if " --journal " in line]
    commands = [line.split("headrace ", 1)[1].split() for line in shown]
    assert [words[0] for words in commands] == ["show", "status", "tail", "model"]
    for words in commands:
        followed = apart(*words, cwd=folder)
        assert (followed.code, followed.err) == (Exit.DONE, "")


def test_a_second_run_on_the_same_journal_counts_only_itself(folder: Path) -> None:
    """Twice the same messages are twice as many events, and each run tells of its own."""
    for _ in range(2):
        found = apart("demo", "--events", 40, "--journal", "mine.db", "--json", cwd=folder).document
        assert (found["published"], found["handled"], found["dead"]) == (40, 40, 0)

    (tickets,) = [
        one
        for one in apart("status", "--journal", "mine.db", "--json", cwd=folder).document["topics"]
        if one["name"] == "tickets"
    ]
    assert tickets["events"] == 80


def test_it_can_be_interrupted_and_run_again(folder: Path) -> None:
    """Ctrl-C in the middle: exit code 130, the journal sound, and the next run finishes what was left."""
    with Running("demo", "--events", 100_000, "--journal", "mine.db", cwd=folder) as running:
        while "Routed" not in apart("tail", "--journal", "mine.db", cwd=folder).out:
            pass
        ran = running.ended(signal.SIGINT)

    assert (ran.code, ran.out) == (Exit.INTERRUPTED, "")
    assert "Traceback" not in ran.err
    assert apart("status", "--journal", "mine.db", "--verify", cwd=folder).code == Exit.DONE
    again = apart("demo", "--events", 20, "--journal", "mine.db", "--json", cwd=folder)
    assert (again.code, again.document["handled"]) == (Exit.DONE, 20)


def test_an_interrupted_run_leaves_no_temporary_files(folder: Path) -> None:
    """What was made for the demo alone goes with it."""
    temporary = folder.parent / "temporary"
    with Running("demo", "--events", 100_000, cwd=folder) as running:
        while not list(temporary.glob("headrace-demo-*/.headrace.db-notify")):
            pass
        ran = running.ended(signal.SIGINT)

    assert ran.code == Exit.INTERRUPTED
    assert list(temporary.iterdir()) == []


def test_the_model_is_given_away(folder: Path) -> None:
    """Written whole; there already is fine; another file of that name is left alone."""
    assert apart("demo", "--model-to", "intent.onnx", cwd=folder).code == Exit.DONE
    again = apart("demo", "--model-to", "intent.onnx", cwd=folder)
    (folder / "other.onnx").write_bytes(b"mine")
    other = apart("demo", "--model-to", "other.onnx", cwd=folder)
    nowhere = apart("demo", "--model-to", "no/where.onnx", cwd=folder)

    assert (folder / "intent.onnx").stat().st_size > 1_000_000
    assert (again.code, "is there already" in again.err) == (Exit.DONE, True)
    assert (other.code, (folder / "other.onnx").read_bytes()) == (Exit.UNUSABLE, b"mine")
    assert nowhere.code == Exit.UNUSABLE
    assert sorted(file.name for file in folder.iterdir()) == ["intent.onnx", "other.onnx"]
