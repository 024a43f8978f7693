"""``headrace run``: worker processes that start, share, are replaced when they die, and stop in order."""

from __future__ import annotations

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.terminal import PATIENCE_S, Running, apart

from headrace.cli.output import Exit
from headrace.cli.run import Process, _run
from headrace.cli.supervise import (
    RESTART_S_MAX,
    RESTART_S_MIN,
    SETTLED_S,
    STOP_SLACK_S,
    Backoff,
    Supervisor,
    ended,
)
from headrace.settings import Settings

APP = """
import asyncio, os
from headrace import App, Event

class Job(Event, topic="jobs", key="name"):
    name: str
    seconds: float = 0.0

class Did(Event, topic="did", key="name"):
    name: str
    pid: int

app = App("factory")

@app.handler
async def work(job: Job) -> Did:
    print("begun", job.name, flush=True)
    if job.name == "deadly":
        os.kill(os.getpid(), 9)
    await asyncio.sleep(job.seconds)
    return Did(name=job.name, pid=os.getpid())
"""
LEASE = ("--lease-ms", "1000")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an app and settings that do not make a test wait."""
    (tmp_path / "factory.py").write_text(APP)
    (tmp_path / "headrace.toml").write_text("stop_grace_ms = 200\n")
    return tmp_path


def publish(folder: Path, *payloads: str) -> None:
    """Publish jobs."""
    ran = apart("publish", "factory:app", "Job", "-", cwd=folder, stdin="\n".join(payloads).encode())
    assert ran.code == Exit.DONE, ran.err


def counts(folder: Path) -> dict[str, int]:
    """Return the terms of the equation of the one handler."""
    (found,) = apart("status", "--json", cwd=folder).document["subscriptions"]
    assert found["sound"]
    return {name: found[name] for name in ("waiting", "running", "done", "dead") if found[name]}


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, Exit.DONE), (signal.SIGINT, Exit.INTERRUPTED)], ids=str
)
def test_a_worker_says_what_it_serves_and_stops_in_order(
    folder: Path, number: signal.Signals, code: Exit
) -> None:
    """Handlers, versions and partitions on stderr; a signal ends it with what it has not done handed back."""
    publish(folder, '{"name": "a"}')
    with Running("run", "factory:app", cwd=folder) as running:
        running.until("factory.work: version 1, topic jobs")
        running.until("factory.work: holds 16 partitions")
        while counts(folder) != {"done": 1}:
            pass
        ran = running.ended(number)

    assert ran.code == code
    assert "stopped: 1 event finished, 0 handed back" in ran.err
    assert ran.out == "begun a\n"  # the handler's own; ours all goes to stderr


def test_what_is_in_hand_is_handed_back(folder: Path) -> None:
    """A handler that does not end within the grace time: its event waits again, not tried, not lost."""
    publish(folder, '{"name": "slow", "seconds": 600}')
    with Running("run", "factory:app", cwd=folder) as running:
        assert running.process.stdout is not None
        assert running.process.stdout.readline() == "begun slow\n"
        ran = running.ended(signal.SIGTERM)

    assert "stopped: 0 events finished, 1 handed back" in ran.err
    assert counts(folder) == {"waiting": 1}
    event = apart("tail", "--jsonl", cwd=folder).lines[0]["event_id"]
    (why,) = apart("why", event, "--json", cwd=folder).document["handlers"]
    assert (why["state"], why["attempts"], why["crashes"]) == ("returned", 0, 0)


def test_a_second_interrupt_stops_at_once(folder: Path) -> None:
    """Ctrl-C twice does not wait for anybody; the journal is sound, and the event is run again later."""
    (folder / "headrace.toml").write_text("stop_grace_ms = 600000\n")
    publish(folder, '{"name": "slow", "seconds": 600}')
    with Running("run", "factory:app", cwd=folder) as running:
        assert running.process.stdout is not None
        running.process.stdout.readline()
        running.process.send_signal(signal.SIGINT)
        running.until("Ctrl-C again stops at once")
        ran = running.ended(signal.SIGINT)

    assert ran.code == Exit.INTERRUPTED
    assert counts(folder) == {"running": 1}
    assert apart("status", "--verify", cwd=folder).code == Exit.DONE


def test_several_workers_share_and_stop_together(folder: Path) -> None:
    """Each holds its share of the partitions; one signal to the first process stops all."""
    publish(folder, *(f'{{"name": "job-{number}"}}' for number in range(40)))
    mistyped = {"HEADRACE_JOURNL": "elsewhere.db"}
    with Running("run", "factory:app", "--workers", 2, *LEASE, cwd=folder, **mistyped) as running:
        running.until("holds 8 partitions", times=2)
        while counts(folder) != {"done": 40}:
            pass
        ran = running.ended(signal.SIGTERM)

    assert ran.code == Exit.DONE
    assert ran.err.count("handed back") == 2
    assert ran.err.count("did you mean HEADRACE_JOURNAL?") == 1, "told by the first process alone"


def test_workers_are_not_killed_within_their_grace(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who kills a worker that does not stop waits for as long as the settings let it take, and longer."""
    (folder / "headrace.toml").write_text("stop_grace_ms = 600000\n")
    monkeypatch.chdir(folder)
    found: list[float] = []

    def run(supervisor: Supervisor) -> int:
        found.append(supervisor.patience_s)
        return 0

    monkeypatch.setattr(Supervisor, "run", run)
    assert _run("factory:app", workers=2) == 0
    assert found == [600 + STOP_SLACK_S]


def test_a_worker_that_dies_is_replaced(folder: Path) -> None:
    """How it died is told; another one takes over, finds the event that kills, and finishes the others."""
    publish(folder, '{"name": "deadly"}', *(f'{{"name": "job-{number}"}}' for number in range(5)))
    with Running("run", "factory:app", "--workers", 2, *LEASE, cwd=folder) as running:
        running.until("was killed by SIGKILL", times=3)
        while counts(folder) != {"done": 5, "dead": 1}:
            pass
        ran = running.ended(signal.SIGTERM)

    assert ran.code == Exit.DONE
    (letter,) = apart("dlq", "ls", "--jsonl", cwd=folder).lines
    assert (letter["reason"], letter["crashes"]) == ("crash", 3)


def test_workers_do_not_outlive_the_first_process(folder: Path) -> None:
    """Killed outright, it cannot tell them; they notice, and stop in order."""
    with Running("run", "factory:app", "--workers", 2, *LEASE, cwd=folder) as running:
        running.until("topic jobs", times=2)
        ran = running.ended(signal.SIGKILL)  # reads until the last of them has closed its end

    assert ran.code == -signal.SIGKILL
    assert ran.err.count("handed back") == 2


def test_workers_that_cannot_run_are_not_tried_for_ever(folder: Path) -> None:
    """A mistake in the app would be the same the next time: all stop, with its exit code."""
    (folder / "broken.py").write_text("raise RuntimeError('no')\n")

    ran = apart("run", "broken:app", "--workers", 2, cwd=folder)

    assert ran.code == Exit.UNUSABLE
    assert "cannot run; all stop" in ran.err
    assert "RuntimeError: no" in ran.err


def test_an_app_without_handlers_is_told(folder: Path) -> None:
    """There would be nothing to do, for ever."""
    (folder / "idle.py").write_text("from headrace import App\napp = App('idle')\n")

    ran = apart("run", "idle:app", cwd=folder)

    assert ran.code == Exit.UNUSABLE
    assert "no handlers" in ran.err


def test_a_missing_model_ends_a_worker_before_it_takes_anything(folder: Path) -> None:
    """Exit code 3: the model is out of reach; the journal has no partition with an owner."""
    text = APP.replace("@app.handler\n", "@app.handler(model=Model.onnx('nowhere.onnx'))\n")
    (folder / "factory.py").write_text(text.replace("import App, Event", "import App, Event, Model"))

    ran = apart("run", "factory:app", cwd=folder)

    assert ran.code == Exit.UNREACHABLE
    assert "error[HR-E301]" in ran.err


def test_flags_win_over_the_app_and_the_file(folder: Path) -> None:
    """The journal of the flag is used, and no other is made."""
    with Running(
        "run", "factory:app", "--journal", "other.db", "--durability", "normal", cwd=folder
    ) as running:
        running.until("factory on other.db, normal durability")
        running.ended(signal.SIGTERM)

    assert (folder / "other.db").exists()
    assert not (folder / "headrace.db").exists()


@pytest.mark.parametrize(
    ("journal", "told"),
    [
        ("file.db", "factory on file.db, full durability"),
        ("kafka://a:1?sasl.password=s3cret&acks=all", "factory on kafka://a:1?sasl.password=***&acks=all"),
    ],
)
def test_the_start_is_told_as_it_is(capsys: pytest.CaptureFixture[str], journal: str, told: str) -> None:
    """Durability is a setting of SQLite, a cluster has rules of its own; a password is nobody's business."""
    app: Any = SimpleNamespace(name="factory", settings=Settings(journal=journal))
    worker: Any = SimpleNamespace(servers=[])
    Process("factory:app", {}, 0)._tell_start(app, worker)

    assert capsys.readouterr().err == f"{told}\n"


def test_waits_before_a_restart_grow_and_are_bounded() -> None:
    """Doubled for each that dies young; one that has lived a while starts from the beginning."""
    backoff = Backoff()
    waits = [backoff.after(0.1) for _ in range(20)]

    assert waits[:3] == [RESTART_S_MIN, 2 * RESTART_S_MIN, 4 * RESTART_S_MIN]
    assert max(waits) == RESTART_S_MAX
    assert backoff.after(SETTLED_S) == RESTART_S_MIN


def test_what_is_logged_cannot_steer_a_terminal(folder: Path) -> None:
    """What a handler logs of an event is printed with its escape sequences spelled out."""
    (folder / "factory.py").write_text(
        APP.replace("async def work(job: Job)", "async def work(job: Job, ctx: Context)")
        .replace("await asyncio.sleep(job.seconds)", "ctx.log.error('seen %s', job.name)")
        .replace("import App, Event", "import App, Context, Event")
    )
    publish(folder, '{"name": "\\u001b[2J"}')
    with Running("run", "factory:app", cwd=folder) as running:
        running.until("seen")
        ran = running.ended(signal.SIGTERM)

    assert "\x1b" not in ran.err
    assert "\\x1b[2J" in ran.err


@pytest.mark.parametrize(
    ("code", "said"),
    [(0, "ended with exit code 0"), (-9, "was killed by SIGKILL"), (-200, "was killed by signal 200")],
)
def test_ends_are_told_in_words(code: int, said: str) -> None:
    """An exit code, or the signal by its name."""
    assert ended(code) == said


def test_a_worker_goes_on_when_nobody_reads_its_log(folder: Path) -> None:
    """Whoever reads stderr has gone; events are handled all the same, until it is stopped."""
    publish(folder, '{"name": "one"}')
    with Running("run", "factory:app", cwd=folder) as worker:
        worker.until("partitions")
        assert worker.process.stderr is not None
        worker.process.stderr.close()
        publish(folder, '{"name": "two"}')
        while counts(folder) != {"done": 2}:
            pass
        worker.process.send_signal(signal.SIGTERM)
        assert worker.process.wait(PATIENCE_S) == Exit.DONE
