"""Real processes on bad days: signals in the middle of a batch, poison, blocked loops, threads that hang."""

# ruff: noqa: ASYNC251 - a test waits for other processes, and looks at their files

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter

import pytest
from tests.fault._apps import LEASE_MS, Job
from tests.fault.conftest import Stage, Started

from headrace import App
from headrace.settings import Settings


async def given(stage: Stage, *jobs: Job) -> None:
    """Publish jobs as one unit."""
    async with App("fault", settings=Settings(journal=str(stage.journal))) as app:
        await app.publish(list(jobs))


def up(stage: Stage, worker: Started) -> None:
    """Return once a worker owns partitions: its signal handlers are in place then."""
    sql = "SELECT count(*) FROM position JOIN worker ON worker.id = owner WHERE pid = ?"
    stage.until(lambda: stage.look.one(sql, worker.pid), "the worker is up")


# --- signals ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
@pytest.mark.parametrize("app", ["jobs", "plain_jobs"])
async def test_a_signal_in_the_middle_of_a_batch(stage: Stage, number: signal.Signals, app: str) -> None:
    """Ctrl-C and SIGTERM: what ran is given back or done, nothing counts as failed, a successor goes on."""
    await given(stage, *[Job(name=str(n), key=str(n % 5), ms=20) for n in range(60)])
    first = stage.worker(app)
    stage.until(lambda: len(stage.calls()) >= 10, "some are begun")
    code = first.end(number)
    assert code == (130 if number is signal.SIGINT else 0)
    counts = stage.look.counts()
    assert counts["running"] == 0
    assert counts["done"] == len(stage.calls("end")) < 60
    assert stage.look.rows("SELECT count(*), max(crashes), max(length(errors)) FROM open") in (
        [(counts["waiting"], 0, len("[]"))],
        [(0, None, None)],
    )
    stage.worker(app)
    stage.until_idle(60)
    assert stage.look.counts()["dead"] == 0
    assert Counter(one["name"] for one in stage.look.emitted()) == Counter(str(n) for n in range(60))


async def test_a_second_ctrl_c_ends_at_once_and_loses_nothing(stage: Stage) -> None:
    """While the first is being heeded, the second one ends the process; a successor finishes everything."""
    await given(stage, *[Job(name=str(n), ms=3_000) for n in range(5)])
    first = stage.worker("plain_jobs", stop_grace_ms=60_000)
    stage.until(lambda: len(stage.calls()) == 5, "all are begun")
    first.send(signal.SIGINT)
    time.sleep(0.2)
    first.send(signal.SIGINT)
    time.sleep(0.2)
    first.close()  # threads of plain handlers may hold it up: as a supervisor would
    stage.start("worker", app="jobs", hasty=True)
    stage.until_idle(5)
    assert Counter(one["name"] for one in stage.look.emitted()) == Counter("01234")


async def test_a_keyboard_interrupt_inside_a_handler_ends_the_worker_in_order(stage: Stage) -> None:
    """On the loop it is Ctrl-C: the process ends, the event goes back uncounted, others are not lost."""
    await given(stage, Job(name="bad", deed="interrupt"), *[Job(name=str(n), ms=5) for n in range(10)])
    first = stage.worker()
    assert first.end() == 130
    assert stage.look.counts()["running"] == 0
    assert stage.look.counts()["dead"] == 0
    stage.start("worker", app="jobs", hasty=True)
    stage.until_idle(11)
    assert stage.look.counts()["done"] == 11


@pytest.mark.parametrize("app", ["jobs", "plain_jobs"])
async def test_a_stop_does_not_wait_longer_than_its_grace(stage: Stage, app: str) -> None:
    """A handler that takes a minute does not hold up a stop with a grace of 0.3 s: the process is gone."""
    await given(stage, Job(name="long", ms=50_000), Job(name="short"))
    worker = stage.worker(app, stop_grace_ms=300)
    stage.until(lambda: stage.look.counts()["done"] == 1 and len(stage.calls()) == 2, "one is done, one runs")
    worker.send(signal.SIGTERM)
    # Half a minute is the handler's time; in between lie the grace and a machine that is busy.
    assert worker.process.wait(10) == 0
    assert worker.said()["handed_back"] == 1
    assert stage.look.rows("SELECT state, attempts, crashes FROM open") == [("returned", 0, 0)]


async def test_a_stop_while_a_suspect_runs_keeps_to_its_grace(stage: Stage) -> None:
    """After a crash its events run alone; a stop in the meantime gives them back within the grace, too."""
    await given(stage, *[Job(name=str(n), ms=50_000) for n in range(3)])
    first = stage.worker()
    stage.until(lambda: len(stage.calls()) == 3, "all are begun")
    first.end(signal.SIGKILL)
    second = stage.worker(stop_grace_ms=300)
    stage.until(lambda: len(stage.calls()) == 4, "a suspect runs")
    second.send(signal.SIGTERM)
    assert second.process.wait(10) == 0
    assert stage.look.counts() | {"running": 0, "done": 0, "dead": 0} == stage.look.counts()
    stage.until(lambda: not stage.look.one("SELECT count(owner) FROM position"), "nothing is owned")


# --- poison -------------------------------------------------------------------------------------


@pytest.mark.parametrize("deed", ["leave", "fault"])
async def test_poison_that_kills_the_process_is_found(stage: Stage, deed: str) -> None:
    """os._exit or a segmentation fault: a dead letter after crash_attempts_max; neighbours are not blamed."""
    names = [str(n) for n in range(20)]
    await given(stage, *[Job(name=name, key=str(n % 3)) for n, name in enumerate(names)])
    await given(stage, Job(name="poison", deed=deed), *[Job(name=f"late-{n}") for n in range(5)])
    codes: list[int] = []
    while not stage.look.idle(26):
        worker = stage.worker(lease_ms=300)
        stage.until(
            lambda w=worker: w.process.poll() is not None or stage.look.idle(26), "it ends or is done"
        )
        if stage.look.idle(26):
            break
        codes.append(worker.end())
    assert codes == [9 if deed == "leave" else -signal.SIGSEGV] * 3
    assert stage.look.rows("SELECT reason, code, crashes FROM dead") == [("crash", "HR-E406", 3)]
    calls = Counter(one.name for one in stage.calls())
    assert calls["poison"] == 3
    assert stage.look.counts()["done"] == 25
    done = Counter(one["name"] for one in stage.look.emitted())
    assert done == Counter([*names, *[f"late-{n}" for n in range(5)]])


# --- blocked loops and threads ------------------------------------------------------------------


async def test_a_handler_that_blocks_the_loop_keeps_its_lease(stage: Stage) -> None:
    """time.sleep in ``async def`` for three leases, within the deadline: nobody takes over, no second run."""
    await given(stage, Job(name="warm"))
    workers = [stage.worker(), stage.worker()]
    for worker in workers:
        up(stage, worker)
    stage.until_idle(1)
    await given(
        stage, Job(name="block", deed="block", ms=3 * LEASE_MS), *[Job(name=str(n)) for n in range(40)]
    )
    stage.until_idle(42)
    calls = Counter(one.name for one in stage.calls())
    assert set(calls.values()) == {1}
    assert stage.look.counts()["done"] == 42


async def test_a_handler_that_blocks_beyond_its_deadline_is_taken_over(stage: Stage) -> None:
    """Blocked for longer than deadline and lease: others take over, what it comes to is refused."""
    await given(stage, Job(name="warm"))
    stuck = stage.worker(deadline_ms=200)
    up(stage, stuck)
    stage.until_idle(1)
    await given(stage, Job(name="block", deed="block", ms=200 + 8 * LEASE_MS), Job(name="beside"))
    stage.until(lambda: len(stage.calls()) >= 2, "it blocks")
    healthy = stage.start("worker", app="jobs", hasty=True)
    stage.until_idle(3)
    late = stage.until(
        lambda: [one for one in stage.calls("end") if one.process == stuck.pid and one.name == "block"],
        "it ends at last",
    )
    assert late
    time.sleep(2 * LEASE_MS / 1000)  # it has tried to commit, and been refused
    assert stage.look.idle(3)
    (block,) = [one for one in stage.look.emitted() if one["name"] == "block"]
    assert block["process"] == healthy.pid
    assert len(stage.look.emitted()) == 3
    assert "blocked beyond every deadline" in stuck.log()
    await given(stage, *[Job(name=f"after-{n}") for n in range(20)])
    stage.until_idle(23)  # the one that was stuck is of use again, or at least does no harm


async def test_a_process_that_is_stopped_past_its_lease_does_no_harm(stage: Stage) -> None:
    """SIGSTOP for longer than the lease: others handle its events; its own outcome is refused later."""
    await given(stage, *[Job(name=str(n), ms=300) for n in range(20)])
    stopped = stage.worker()
    stage.until(lambda: len(stage.calls()) == 20, "all are begun")
    # A process that is stopped inside a transaction would hold up all others until it goes on.
    opened = "SELECT count(*) FROM open WHERE state = 'running'"
    stage.until(lambda: stage.look.one(opened) == 20, "and noted one by one: nothing is to be written")
    stopped.send(signal.SIGSTOP)
    other = stage.start("worker", app="jobs", hasty=True)
    stage.until_idle(20)
    stopped.send(signal.SIGCONT)
    await asyncio.sleep(1)
    assert Counter(one["name"] for one in stage.look.emitted()) == Counter(str(n) for n in range(20))
    assert {one["process"] for one in stage.look.emitted()} == {other.pid}
    assert stopped.end(signal.SIGTERM) == 0
    stage.look.counts()
