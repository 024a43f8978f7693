"""``headrace doctor``: what is fit, what is not, and who is in the way; told by level, with hints."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.unit.shop import change, made_journal
from tests.unit.terminal import Ran, apart

from headrace.cli import doctor
from headrace.cli.doctor import Check
from headrace.cli.output import Exit
from headrace.journal import notify
from headrace.lens import machine

#: A process that keeps the write lock, or an old snapshot, until it is told to end.
HOLDER = """
import sys, apsw
db = apsw.Connection(sys.argv[1])
db.execute(sys.argv[2]).fetchall()
db.execute("SELECT count(*) FROM event").fetchall()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(path: str, begin: str) -> Iterator[int]:
    """A process that has begun a transaction; its pid."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, path, begin],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "held\n"
        yield process.pid
    finally:
        process.send_signal(signal.SIGCONT)
        process.stdin.close()
        process.wait()
        process.stdout.close()


def checks(ran: Ran) -> dict[str, Any]:
    """Return the checks by name; of two the last."""
    return {one["name"]: one for one in ran.document["checks"]}


def doctor_of(path: str, *more: str) -> Ran:
    """Look at a journal."""
    return apart("doctor", *more, "--journal", path, "--json", cwd=Path(path).parent)


def test_a_sound_journal_is_told_line_by_line(tmp_path: Path) -> None:
    """Every line has a level; nothing fails, so the exit code is 0; the journal is not changed."""
    path = made_journal(tmp_path)
    before = Path(path).read_bytes()
    ran = apart("doctor", "--journal", path, cwd=tmp_path)

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert {line[:4].strip() for line in ran.out.splitlines()} <= {"ok", "warn", ""}
    assert "it opens, and holds 2 topics" in ran.out
    assert Path(path).read_bytes() == before


def test_a_journal_that_is_not_there_is_no_fault(tmp_path: Path) -> None:
    """The folder is looked at all the same; nothing is made."""
    ran = doctor_of(str(tmp_path / "headrace.db"))

    assert ran.code == Exit.DONE
    assert "not there yet" in checks(ran)["journal"]["told"]
    assert not list(tmp_path.iterdir())


def test_what_is_not_fit_is_told_with_its_code(tmp_path: Path) -> None:
    """A foreign file, a folder that is missing, a setting that is wrong: exit code 1, with a hint each."""
    (tmp_path / "foreign.db").write_bytes(b"SQLite" * 1_000)
    for path, name, told in (
        ("foreign.db", "journal", "HR-E20"),
        ("nowhere/headrace.db", "file system", "does not exist"),
    ):
        ran = doctor_of(str(tmp_path / path)) if path == "foreign.db" else apart(
            "doctor", "--journal", path, "--json", cwd=tmp_path
        )  # fmt: skip
        found = checks(ran)[name]
        assert (ran.code, found["level"], ran.document["fit"]) == (Exit.NO, "fail", False)
        assert told in found["told"]
        assert found["hint"]
    wrong = apart("doctor", "--json", cwd=tmp_path, env={"HEADRACE_LEASE_MS": "x", "HEADRACE_JURNAL": "y"})
    assert wrong.code == Exit.NO
    assert [one["level"] for one in wrong.document["checks"] if one["name"] == "settings"] == ["warn", "fail"]


def test_a_stopped_writer_is_named(tmp_path: Path) -> None:
    """A process that was stopped inside a write blocks all others: its pid, and how to let it go on."""
    path = made_journal(tmp_path)
    with holding(path, "BEGIN IMMEDIATE") as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        ran = doctor_of(path)
    found = checks(ran)["write lock"]

    assert (ran.code, found["level"]) == (Exit.NO, "fail")
    assert f"process {pid} (" in found["told"]
    assert f"kill -CONT {pid}" in found["hint"]
    assert checks(doctor_of(path))["write lock"]["level"] == "ok"


def test_a_long_writer_is_named_as_a_warning(tmp_path: Path) -> None:
    """It may end; but a second is two thousand times as long as a commit takes."""
    path = made_journal(tmp_path)
    with holding(path, "BEGIN IMMEDIATE") as pid:
        ran = doctor_of(path)

    assert ran.code == Exit.DONE
    assert checks(ran)["write lock"]["level"] == "warn"
    assert f"process {pid} (" in checks(ran)["write lock"]["told"]


def test_a_large_wal_is_told_with_who_holds_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its size, and the reader that keeps it from starting again."""
    path = made_journal(tmp_path)
    change(path, "PRAGMA journal_mode=WAL")
    with holding(path, "BEGIN") as pid:
        script = (
            "import sys; from headrace.cli import doctor; doctor.WAL_BYTES_WARN = -1;"
            "from headrace.cli.invoke import invoke; sys.exit(invoke(sys.argv[1:]))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, "doctor", "--journal", path],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    assert f"held open by {pid}" in done.stdout
    assert done.returncode == Exit.DONE


def test_a_clock_that_was_set_back_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest event lies ahead of the clock."""
    path = made_journal(tmp_path)
    script = (
        "import sys; from headrace.world import SystemClock; SystemClock.wall_us = lambda self: 1_000_000;"
        "from headrace.cli.invoke import invoke; sys.exit(invoke(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "doctor", "--journal", path],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "ahead of this clock" in done.stdout


def test_models_of_an_app_are_loaded(tmp_path: Path) -> None:
    """One that loads is named with its digest, one that does not with the code of its error."""
    (tmp_path / "asks.py").write_text(
        """
from headrace import App, Event, Model
from headrace.demo.app import MODEL

class Ask(Event, topic="asks"):
    text: str

app = App("asks")

@app.handler(model=Model.onnx(MODEL))
async def good(ask: Ask, model) -> None: ...

@app.handler(model=Model.onnx("nowhere.onnx"))
async def bad(ask: Ask, model) -> None: ...
"""
    )
    ran = apart("doctor", "asks:app", "--json", cwd=tmp_path)

    assert ran.code == Exit.NO
    assert "digest " in checks(ran)["model of asks.good"]["told"]
    assert checks(ran)["model of asks.bad"]["told"].startswith("[HR-E301]")


def test_what_the_kernel_does_not_give_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    """No inotify, no rights for probes, a clock that nobody keeps: it works, and could be better."""
    monkeypatch.setattr(notify, "_inotify", lambda: -1)
    monkeypatch.setattr(machine, "_capabilities", set)
    monkeypatch.setattr(machine, "_paranoid", lambda: 4)
    monkeypatch.setattr(machine, "clock_is_kept", lambda: False)

    for check in (doctor._wake_up(), doctor._kernel(), doctor._clock()):
        assert check.level == "warn"
        assert check.hint
    assert not machine.kernel_rights().bpf


def test_network_and_fleeting_disks_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a network: not fit. In memory: a warning. On a disk: fit. Without room: not fit."""
    from headrace.journal import file

    for kind, level in (("nfs4", "fail"), ("tmpfs", "warn"), ("xfs", "ok"), ("", "ok")):
        monkeypatch.setattr(file, "filesystem_of", lambda folder, kind=kind: kind)
        assert next(doctor._place(tmp_path)).level == level
    monkeypatch.setattr(doctor, "FREE_BYTES_MIN", 1 << 62)
    assert [one.level for one in doctor._place(tmp_path)] == ["ok", "fail"]


def test_a_lock_of_another_container_has_no_pid() -> None:
    """It is told so, instead of naming process 0."""
    from headrace.journal.holders import Hold

    check: Check = doctor._write_lock(Hold("write", 0, stopped=False, command=""))
    assert "another container" in check.told


def test_apsw_and_the_locks_agree(tmp_path: Path) -> None:
    """The bytes that are asked about are those that SQLite locks: a version that moves them is noticed."""
    path = made_journal(tmp_path)
    change(path, "PRAGMA journal_mode=WAL")
    with holding(path, "BEGIN IMMEDIATE") as pid:
        script = (
            "import sys; from headrace.journal.holders import holders;"
            "print(*((one.lock, one.pid) for one in holders(sys.argv[1])))"
        )
        done = subprocess.run(
            [sys.executable, "-c", script, path], capture_output=True, text=True, check=True
        )
    assert f"('write', {pid})" in done.stdout
    assert f"('read', {pid})" in done.stdout
    assert apsw.sqlite_lib_version() >= "3.44"
