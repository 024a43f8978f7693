"""Faults that other systems had, tried on real processes: leases, shutdown, order of commits, start methods.

The numbers are those of the collection of known failures; each test tells its scenario, and asserts each
clause of what was found right, or says why it does not.
"""

# ruff: noqa: ASYNC221, ASYNC251 - a test waits for other processes, and looks at their files

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path

import apsw
import onnxruntime
import pytest
from onnx import TensorProto, helper
from tests.fault._apps import LEASE_MS, Job, Number
from tests.fault.conftest import Stage, Started

from headrace import App, Model, errors
from headrace.settings import Settings
from headrace.world import SystemClock

LEASE_S = LEASE_MS / 1000
ROUNDS_MAX = 3


def app_of(stage: Stage) -> App:
    """Return an app that publishes into the journal of the stage."""
    return App("fault", settings=Settings(journal=str(stage.journal)))


def shared_out(stage: Stage, workers: int = 2) -> bool:
    """Return whether that many workers own partitions, and all have an owner."""
    (found,) = stage.look.rows("SELECT count(DISTINCT owner), count(*) - count(owner) FROM position") or [
        (0, 0)
    ]
    return found == (workers, 0)


def owner_of(stage: Stage, pids: Collection[int]) -> int:
    """Return the pid of the worker that has an event in hand."""
    sql = "SELECT pid FROM worker JOIN position ON owner = worker.id WHERE running > 0"
    pid = stage.until(lambda: stage.look.one(sql), "somebody has it in hand")
    assert pid in pids
    return pid


async def test_s01_a_handler_that_outlasts_its_lease_keeps_it(stage: Stage) -> None:
    """A handler takes four leases: it starts once, its lease is renewed meanwhile, and its finish counts."""
    for _ in range(2):
        stage.worker()
    async with app_of(stage) as app:
        await app.publish(Job(name="warm"))  # so that both are up and have their share before the long one
        stage.until(lambda: shared_out(stage), "two workers share the partitions")
        stage.until_idle(1)
        parent = await app.publish(Job(name="long", ms=4 * LEASE_MS))
    renewals: set[int] = set()
    lease = "SELECT lease_until_ns FROM worker JOIN position ON owner = worker.id WHERE running > 0"

    def sampled() -> bool:
        renewals.add(stage.look.one(lease) or 0)
        return stage.look.idle(2)

    stage.until(sampled, "the long one is finished")
    assert [one.name for one in stage.calls()].count("long") == 1
    assert len(renewals - {0}) >= 3
    children = [one for one in stage.look.emitted() if one["name"] == "long"]
    assert len(children) == 1
    seq, tp = stage.look.rows("SELECT seq, tp FROM event WHERE eid = ?", parent.event_id.bytes)[0]
    assert stage.look.one("SELECT high FROM position WHERE tp = ?", tp) >= seq
    assert not stage.look.rows("SELECT seq FROM open")


async def test_s01_the_event_of_a_killed_worker_is_taken_over(stage: Stage) -> None:
    """Killed in the middle, the other worker starts the event once the lease has run out; one result."""
    pids = {one.pid: one for one in (stage.worker(), stage.worker())}
    async with app_of(stage) as app:
        await app.publish(Job(name="warm"))
        stage.until(lambda: shared_out(stage), "two workers share the partitions")
        stage.until_idle(1)
        await app.publish(Job(name="long", ms=2 * LEASE_MS))
    victim = owner_of(stage, pids)
    stage.until(lambda: len(stage.calls()) == 2, "it has begun")
    killed_s = SystemClock().boot_ns() / 1e9
    pids[victim].end(signal.SIGKILL)
    stage.until_idle(2)
    first, second = [one for one in stage.calls() if one.name == "long"]
    assert (first.process, second.process) == (victim, *(pids.keys() - {victim}))
    # Right is: the lease, and one poll (a quarter of it).  In leases, with room for a machine that is busy.
    assert second.at_s - killed_s <= 6 * LEASE_S
    assert [one["name"] for one in stage.look.emitted()] == ["warm", "long"]


async def test_s02_a_stop_gives_back_what_no_handler_has_finished(stage: Stage) -> None:
    """SIGTERM with events in hand: exit 0, the rest is handed back, a second worker handles just that."""
    async with app_of(stage) as app:
        await app.publish([Job(name=str(n), ms=5) for n in range(200)])
    first = stage.worker(concurrency=4)
    stage.until(lambda: len(stage.calls()) >= 20, "20 are begun")
    assert first.end(signal.SIGTERM) == 0
    finished = [one.name for one in stage.calls("end")]
    counts = stage.look.counts()
    # Nothing is marked before its handler has finished; what a handler finished is not thrown away.
    assert counts["done"] == len(finished) < 200
    assert counts["running"] == 0
    assert first.said()["handed_back"] == counts["waiting"] > 0
    second = stage.worker()
    stage.until_idle(200)
    assert second.end(signal.SIGTERM) == 0
    assert sorted(int(one.name) for one in stage.calls("end")) == list(range(200))


async def test_s03_quick_events_do_not_carry_the_position_over_a_slow_one(stage: Stage) -> None:
    """One partition: killed while the first event runs and later ones are done, only the first runs again."""
    async with app_of(stage) as app:
        await app.journal.topic("jobs", 1)
        unit = [Job(name="slow", deed="hang"), *[Job(name=f"q{n}", ms=10) for n in (1, 2, 3)]]
        receipts = await app.publish(unit)
    first = stage.worker(concurrency=4)
    stage.until(lambda: stage.look.counts()["done"] == 3, "the quick ones are done")
    first.end(signal.SIGKILL)
    # The gap as `status` shows it: one running, three done ahead of the line.
    command = [sys.executable, "-m", "headrace", "status", "--journal", str(stage.journal), "--json"]
    told = json.loads(subprocess.run(command, capture_output=True, check=False).stdout)["subscriptions"][0]
    assert {name: told[name] for name in ("published", "waiting", "running", "done")} == {
        "published": 4, "waiting": 0, "running": 1, "done": 3,
    }  # fmt: skip
    assert stage.look.counts()["running"] == 1
    slow = stage.look.one("SELECT seq FROM event WHERE eid = ?", receipts[0].event_id.bytes)
    assert stage.look.rows("SELECT seq, state FROM open") == [(slow, "running")]
    stage.start("worker", app="jobs", hasty=True)
    stage.until_idle(4)
    names = [one.name for one in stage.calls()]
    assert sorted(names) == ["q1", "q2", "q3", "slow", "slow"]


def plus_one(path: Path) -> None:
    """Write a model: Y = X + 1."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N"]) for name in "XY")
    one = helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])
    graph = helper.make_graph([helper.make_node("Add", ["X", "one"], ["Y"])], "plus", [x], [y], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())


async def two_processes(stage: Stage, start: str) -> Started:
    """Have 20 numbers answered by two processes of a start method; return their parent, at its end."""
    plus_one(stage.folder / "plus.onnx")
    parent = stage.start(
        "pair", app="numbers", model=str(stage.folder / "plus.onnx"), start=start, lease_ms=2_000
    )
    stage.until(lambda: shared_out(stage), "two workers share the partitions")
    async with app_of(stage) as app:
        await app.publish([Number(x=x) for x in range(20)])
    stage.until_idle(20)
    assert parent.end(signal.SIGTERM) == 0
    return parent


@pytest.mark.parametrize("start", ["fork", "spawn"])
async def test_s06_a_model_declared_before_the_start_of_workers_answers(stage: Stage, start: str) -> None:
    """Two processes, forked or spawned after the app was made: each answers with a session of its own."""
    parent = await two_processes(stage, start)
    answers = stage.look.emitted("numbers-seen")
    assert sorted((one["x"], one["y"]) for one in answers) == [(x, x + 1) for x in range(20)]
    processes = {one["process"] for one in answers}
    assert len(processes) == 2
    assert parent.pid not in processes
    assert parent.said()["loaded"] is False  # declaring a model loads nothing that a fork would share


async def test_s06_each_process_tells_of_the_session_it_made(stage: Stage) -> None:
    """One line in the log of each process: digest of the model, provider, threads."""
    parent = await two_processes(stage, "fork")
    digest = stage.look.one("SELECT digest FROM model")
    sessions = [line for line in parent.log().splitlines() if "session" in line]
    assert len(sessions) == 2
    for line in sessions:
        assert all(word in line for word in (digest[:12], "CPUExecutionProvider", "thread"))


def test_s06_a_live_session_is_refused(tmp_path: Path) -> None:
    """A session made at import is refused, and the error says how to pass the path instead."""
    path = tmp_path / "plus.onnx"
    plus_one(path)
    with pytest.raises(errors.ModelLive) as caught:
        Model.onnx(onnxruntime.InferenceSession(path))  # pyright: ignore[reportArgumentType]
    assert "path" in caught.value.hint


async def test_s11_recovery_goes_on_after_an_outage(stage: Stage) -> None:
    """A worker dies with 25 events in hand, and the store blinks while another recovers: all end done."""
    async with app_of(stage) as app:
        await app.journal.topic("jobs", 1)
        await app.publish([Job(name=str(n), deed="hang") for n in range(25)])
        dead = stage.worker(concurrency=25)
        stage.until(lambda: len(stage.calls()) == 25, "25 are in hand")
        await app.publish([Job(name=str(n)) for n in range(25, 250)])
    dead.end(signal.SIGKILL)
    alive = stage.start("worker", app="jobs", hasty=True, outage_s=[0.005, 1.0])
    stage.until_idle(250)
    time.sleep(2 * LEASE_S)
    assert stage.look.rows(
        "SELECT pid, count(*) FROM position JOIN worker ON worker.id = owner GROUP BY 1"
    ) == [(alive.pid, 1)]
    assert stage.look.counts()["done"] == 250
    warnings = [line for line in alive.log().splitlines() if line.startswith("WARNING headrace.worker")]
    assert [("Trying again" in line, "answers again" in line) for line in warnings] == [
        (True, False), (False, True),
    ]  # fmt: skip
    assert "Traceback" not in alive.log()


async def test_s15_a_reader_never_skips_what_was_given_a_number_early(stage: Stage) -> None:
    """Eight writers dawdle inside transactions, some undo them: a reader sees each event once, in order."""
    async with app_of(stage) as app:
        reader = app.journal.reader()  # type: ignore[attr-defined]  # of the embedded journal
        writers = [stage.start("publisher", prefix=f"w{n}", seed=n, count=63) for n in range(8)]
        seen: list[tuple[int, str]] = []
        ended = False
        while not ended:
            ended = all(one.process.poll() is not None for one in writers)  # then look once more
            page = reader.events(after=seen[-1][0] if seen else 0)
            seen += [(one.envelope.offset, str(one.envelope.event_id)) for one in page]
            time.sleep(0.02)
        accepted = {name for one in writers for name in one.said()["accepted"]}
        again = [(one.envelope.offset, str(one.envelope.event_id)) for one in reader.events()]
        reader.close()
    assert 300 < len(accepted) < 8 * 63  # some were undone
    assert {one["name"] for one in stage.look.emitted("jobs")} == accepted
    assert seen == sorted(seen) == again
    assert len(seen) == len(accepted)
    # "Does not stall": there is one writer at a time, so an undone number is never waited for.


def test_s16_eight_processes_on_one_file_never_meet_a_lock(tmp_path: Path) -> None:
    """3 publishers, 4 workers and a dashboard on one file: no lock error, each event once, no collapse."""
    ratios: list[float] = []
    for n in range(ROUNDS_MAX):  # two times on a machine that others use: the best round counts
        ratios.append(crowd(tmp_path / f"{n}-crowd", 3, 4) / crowd(tmp_path / f"{n}-pair", 1, 1))
        if ratios[-1] <= 3:
            break
    assert min(ratios) <= 3
    # The pragmas in force are shown by `headrace doctor`, a later command; a file on a network
    # disk is refused: test_bad_files.py.


def crowd(folder: Path, publishers: int, workers: int) -> float:
    """Have 6,000 events published and handled; return how long that took, the start of processes left out."""
    folder.mkdir()
    stage = Stage(folder)
    try:
        return timed(stage, publishers, workers)
    finally:
        stage.close()


def timed(stage: Stage, publishers: int, workers: int) -> float:
    """Do so, and look for locks, and for events that are handled twice."""
    for _ in range(workers):
        stage.worker(lease_ms=2_000)
    stage.until(lambda: shared_out(stage, workers), "the workers are up")
    go = stage.folder / "go"
    for n in range(publishers):
        stage.start("publisher", prefix=f"p{n}", count=6_000 // publishers, at_once=20, go=str(go))
    time.sleep(1)
    dashboard = apsw.Connection(str(stage.journal), flags=apsw.SQLITE_OPEN_READONLY)
    go.touch()
    began = time.monotonic()
    while not stage.look.idle(6_000):
        dashboard.execute("SELECT count(*) FROM event").fetchall()
        time.sleep(0.05)
    spent_s = time.monotonic() - began
    dashboard.close()
    names = [one.name for one in stage.calls()]
    assert len(names) == len(set(names)) == 6_000
    assert "locked" not in stage.logs().lower()
    assert "busy" not in stage.logs().lower()
    return spent_s
