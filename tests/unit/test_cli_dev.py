"""``headrace dev``: changed code and models take over, broken ones do not, and no event is lost meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.terminal import PATIENCE_S, Running, apart

from headrace.cli import sources
from headrace.cli.output import Exit
from headrace.cli.sources import Sources, forget_byte_code
from headrace.demo.app import MODEL

APP = """
import asyncio, os
from headrace import App, Event

class Job(Event, topic="jobs", key="name"):
    name: str

class Did(Event, topic="did", key="name"):
    name: str
    code: int
    pid: int

app = App("factory")

@app.handler
async def work(job: Job) -> Did:
    await asyncio.sleep(0.02)
    return Did(name=job.name, code=1, pid=os.getpid())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an app in it, and with the same app for publishers, which nobody changes."""
    (tmp_path / "factory.py").write_text(APP)
    (tmp_path / "sender.py").write_text(APP)
    return tmp_path


def publish(folder: Path, *names: str) -> None:
    """Publish jobs."""
    lines = "\n".join(f'{{"name": "{name}"}}' for name in names).encode()
    ran = apart("publish", "sender:app", "Job", "-", cwd=folder, stdin=lines)
    assert ran.code == Exit.DONE, ran.err


def did(folder: Path, count: int) -> list[dict[str, Any]]:
    """Return what came of jobs, as soon as there is so much."""
    watching = ("tail", "--topic", "did", "--from", 0, "--limit", count, "--follow", "--jsonl")
    return [one["payload"] for one in apart(*watching, cwd=folder).lines]


def change(folder: Path, old: str, new: str) -> None:
    """Change the code as an editor does: another file in the place of the old one."""
    text = (folder / "factory.py").read_text()
    assert old in text
    draft = folder / "draft"
    draft.write_text(text.replace(old, new))
    draft.replace(folder / "factory.py")


def test_changed_code_takes_over(folder: Path) -> None:
    """A new process serves it and has the partitions; the old one stops in order; again and again."""
    with Running("dev", "factory:app", cwd=folder) as running:
        running.until("holds 16 partitions")
        publish(folder, "a")
        assert [one["code"] for one in did(folder, 1)] == [1]
        for code in (2, 3):
            change(folder, f"code={code - 1}", f"code={code}")
            assert "factory.py" in running.until("changed: ")
            running.until("serves the new code")
            publish(folder, f"b{code}")
            assert did(folder, code)[-1]["code"] == code
        ran = running.ended(signal.SIGINT)

    assert ran.code == Exit.INTERRUPTED
    assert ran.err.count("stopped: ") == 3
    assert ran.out == ""


def test_code_that_does_not_start_changes_nothing(folder: Path) -> None:
    """The user's traceback is shown, the old code serves, and what is mended takes over."""
    with Running("dev", "factory:app", cwd=folder) as running:
        running.until("holds 16 partitions")
        change(folder, "code=1", "code=(")
        running.until("the old code keeps serving")
        assert any("SyntaxError" in line for line in running.err)
        publish(folder, "a")
        assert [one["code"] for one in did(folder, 1)] == [1]
        change(folder, "code=(", "code=2")
        running.until("serves the new code")
        publish(folder, "b")
        assert did(folder, 2)[-1]["code"] == 2
        assert running.ended(signal.SIGTERM).code == Exit.DONE


def test_a_model_that_is_missing_changes_nothing(folder: Path) -> None:
    """The new process finds out before the old one is told to stop."""
    with Running("dev", "factory:app", cwd=folder) as running:
        running.until("holds 16 partitions")
        change(
            folder, "@app.handler", "from headrace import Model\n@app.handler(model=Model.onnx('no.onnx'))"
        )
        running.until("the old code keeps serving")
        assert any("HR-E301" in line for line in running.err)
        publish(folder, "a")
        assert len(did(folder, 1)) == 1


def test_code_that_is_broken_from_the_start_is_waited_for(folder: Path) -> None:
    """A module that is missing, then one that cannot be read, then one that runs."""
    (folder / "factory.py").rename(folder / "later.txt")
    with Running("dev", "factory:app", cwd=folder) as running:
        running.until("nothing is served; waiting for a change")
        (folder / "factory.py").write_text("1 +")
        running.until("nothing is served; waiting for a change")
        (folder / "later.txt").rename(folder / "factory.py")
        running.until("holds 16 partitions")
        running.ended(signal.SIGTERM)


def test_nothing_is_lost_while_code_changes(folder: Path) -> None:
    """Events that come all the while are each handled once, whatever is in hand when the code changes."""
    names = [f"job-{number}" for number in range(400)]
    with Running("dev", "factory:app", cwd=folder) as running:
        running.until("holds 16 partitions")
        for code in range(2, 6):
            publish(folder, *names[(code - 2) * 100 : (code - 1) * 100])
            change(folder, f"code={code - 1}", f"code={code}")
            running.until("serves the new code")
        found = did(folder, len(names))
        running.ended(signal.SIGTERM)

    assert sorted(one["name"] for one in found) == sorted(names)
    assert len({one["pid"] for one in found}) > 1, "else the test shows nothing"
    (progress,) = apart("status", "--json", "--verify", cwd=folder).document["subscriptions"]
    assert (progress["published"], progress["done"]) == (len(names), len(names))


def test_a_changed_model_takes_over_without_a_new_process(folder: Path) -> None:
    """The worker itself takes it up: the next event is handled by the next epoch."""
    change(
        folder, "@app.handler", "from headrace import Model\n@app.handler(model=Model.onnx('intent.onnx'))"
    )
    change(folder, "(job: Job)", "(job: Job, model)")
    change(folder, "await asyncio.sleep(0.02)", "await model(job.name)")
    (folder / "intent.onnx").write_bytes(MODEL.read_bytes())
    with Running("dev", "factory:app", cwd=folder) as running:
        running.until("holds 16 partitions")
        publish(folder, "a")
        (folder / "new.onnx").write_bytes(MODEL.read_bytes() + b"\x1a\x012")
        (folder / "new.onnx").replace(folder / "intent.onnx")
        running.until("serves version 1+intent@2")
        publish(folder, "b")
        pids = {one["pid"] for one in did(folder, 2)}
        ran = running.ended(signal.SIGTERM)

    assert len(pids) == 1
    assert "changed: " not in ran.err


def test_a_worker_that_dies_is_replaced(folder: Path) -> None:
    """How it died is told; another one takes over once the lease is over, which is short here."""
    with Running("dev", "factory:app", cwd=folder) as running:
        running.until("holds 16 partitions")
        publish(folder, "a")
        os.kill(did(folder, 1)[0]["pid"], signal.SIGKILL)
        running.until("was killed by SIGKILL; another one starts")
        running.until("holds 16 partitions")
        publish(folder, "b")
        assert len(did(folder, 2)) == 2
        running.ended(signal.SIGTERM)


def test_no_process_is_left(folder: Path) -> None:
    """Killed outright, it cannot tell its workers, nor the one that stands by; they notice."""
    with Running("dev", "factory:app", cwd=folder) as running:
        running.until("holds 16 partitions")
        ran = running.ended(signal.SIGKILL)  # reads until the last of them has closed its end

    assert ran.code == -signal.SIGKILL
    assert "stopped: " in ran.err


def test_a_folder_that_is_not_there_is_told(folder: Path) -> None:
    """Nothing is started."""
    ran = apart("dev", "factory:app", "--watch", "nowhere", cwd=folder)

    assert ran.code == Exit.UNUSABLE
    assert "there is no folder nowhere" in ran.err


# --- sources ----------------------------------------------------------------------------------


def test_a_change_is_told_once_it_rests(tmp_path: Path) -> None:
    """Changed, new and gone files are told once; one that changes from look to look is not told yet."""
    one, two = tmp_path / "one.py", tmp_path / "two.py"
    one.write_text("1")
    two.write_text("2")
    found = Sources([tmp_path])
    assert found.changed() == []

    for text in ("12", "123"):
        one.write_text(text)
        assert found.changed() == []
    assert found.changed() == [str(one)]
    assert found.changed() == []
    two.unlink()
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "three.py").write_text("3")
    found.changed()
    assert found.changed() == [str(tmp_path / "deep" / "three.py"), str(two)]


def test_what_is_put_back_is_no_change(tmp_path: Path) -> None:
    """A file that was touched by turns, and is again what was taken, starts nothing."""
    one = tmp_path / "one.py"
    one.write_text("1")
    about = one.stat()
    found = Sources([tmp_path])
    one.write_text("12")
    found.changed()
    one.write_text("1")
    os.utime(one, ns=(about.st_atime_ns, about.st_mtime_ns))
    found.changed()
    assert found.changed() == []


def test_only_sources_are_looked_at(tmp_path: Path) -> None:
    """Python files and settings; no hidden folders, virtual environments, caches or data."""
    for name in ("a.py", "headrace.toml", "data.json", ".git/b.py", "__pycache__/c.py", "node_modules/d.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "env" / "lib").mkdir(parents=True)
    (tmp_path / "env" / "pyvenv.cfg").touch()
    (tmp_path / "env" / "lib" / "e.py").touch()

    assert sorted(Path(path).name for path in Sources([tmp_path])._seen) == ["a.py", "headrace.toml"]


def test_there_is_a_bound_on_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the rest is not looked at, and that can be told."""
    monkeypatch.setattr(sources, "FILES_MAX", 3)
    for number in range(5):
        (tmp_path / f"m{number}.py").touch()
    found = Sources([tmp_path])

    assert found.full()
    assert len(found._seen) == 3


def test_compiled_code_does_not_outlive_its_source(tmp_path: Path) -> None:
    """Python itself would take it for right: same size, same second."""
    file = tmp_path / "quick.py"
    run = [sys.executable, "-c", "import quick; print(quick.x)"]

    def printed() -> str:
        return subprocess.run(
            run, cwd=tmp_path, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        ).stdout.strip()

    seen = []
    for value in ("1", "2"):
        file.write_text(f"x = {value}")
        os.utime(file, (1_000_000_000, 1_000_000_000))
        forget_byte_code([str(file)])
        seen.append(printed())
    assert seen == ["1", "2"]
