"""Threads of plain handlers: results, bounds, and an end that waits for nobody."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from headrace.runtime.threads import Threads

PATIENCE_S = 20


@pytest.fixture
def threads() -> Iterator[Threads]:
    """Two threads at most."""
    found = Threads(2, "unit")
    yield found
    found.shutdown()


def test_a_call_gives_its_result_or_its_error(threads: Threads) -> None:
    """Positional and named arguments go in; what is raised comes out, even what ends an interpreter."""
    assert threads.submit(divmod, 7, 2).result(PATIENCE_S) == (3, 1)
    assert threads.submit(int, "ff", base=16).result(PATIENCE_S) == 255
    for kind in (ValueError, SystemExit, KeyboardInterrupt):

        def fail(kind: type[BaseException] = kind) -> None:
            raise kind("here")

        assert isinstance(threads.submit(fail).exception(PATIENCE_S), kind)
    assert threads.submit(str, 5).result(PATIENCE_S) == "5"


def test_threads_start_when_they_are_needed_and_no_more_than_allowed(threads: Threads) -> None:
    """One call after the other uses one thread; many at once use all of them, each with its name."""

    def name() -> str:
        return threading.current_thread().name

    assert threads._started == 0
    first = threads.submit(name).result(PATIENCE_S)
    assert first == "unit-1"

    gate, met = threading.Event(), threading.Barrier(3)

    def hold() -> str:
        met.wait(PATIENCE_S)
        gate.wait(PATIENCE_S)
        return name()

    held = [threads.submit(hold) for _ in range(2)]
    met.wait(PATIENCE_S)  # both run at once, and this one watches
    waiting = [threads.submit(name) for _ in range(20)]
    assert not any(one.running() or one.done() for one in waiting)
    gate.set()
    names = {one.result(PATIENCE_S) for one in held + waiting}
    assert names == {"unit-1", "unit-2"}


def test_a_cancelled_call_does_not_run(threads: Threads) -> None:
    """What waits for a thread can be taken back; the thread goes on with the next."""
    gate, ran = threading.Event(), list[int]()
    held = [threads.submit(gate.wait, PATIENCE_S) for _ in range(2)]
    first, second = threads.submit(ran.append, 1), threads.submit(ran.append, 2)
    assert first.cancel()
    gate.set()
    second.result(PATIENCE_S)
    assert all(one.result(PATIENCE_S) for one in held)
    assert ran == [2]


def test_an_end_takes_no_more_calls(threads: Threads) -> None:
    """Calls that were accepted still run; a second end is harmless."""
    accepted = threads.submit(str, 1)
    threads.shutdown()
    threads.shutdown(wait=True)
    assert accepted.result(PATIENCE_S) == "1"
    with pytest.raises(RuntimeError, match="after shutdown"):
        threads.submit(str, 2)


def test_an_end_may_take_back_what_waits(threads: Threads) -> None:
    """With `cancel_futures` only what runs is finished."""
    gate, met = threading.Event(), threading.Barrier(3)

    def hold() -> bool:
        met.wait(PATIENCE_S)
        return gate.wait(PATIENCE_S)

    held = [threads.submit(hold) for _ in range(2)]
    met.wait(PATIENCE_S)
    waiting = [threads.submit(str, n) for n in range(5)]
    threads.shutdown(cancel_futures=True)
    assert all(one.cancelled() for one in waiting)
    gate.set()
    assert all(one.result(PATIENCE_S) for one in held)


def test_threads_end_when_they_are_told() -> None:
    """Idle threads do not outlive the pool."""
    before = set(threading.enumerate())
    threads = Threads(3, "ending")
    met = threading.Barrier(3)
    for one in [threads.submit(met.wait, PATIENCE_S) for _ in range(3)]:
        one.result(PATIENCE_S)
    mine = [one for one in threading.enumerate() if one not in before and one.name.startswith("ending")]
    assert len(mine) == 3
    assert all(one.daemon for one in mine)
    threads.shutdown()
    for one in mine:
        one.join(PATIENCE_S)
        assert not one.is_alive()


def test_a_call_that_does_not_return_does_not_hold_up_the_process() -> None:
    """The interpreter ends while a thread still waits, as a stopped worker must."""
    script = (
        "import threading\n"
        "from headrace.runtime.threads import Threads\n"
        "began = threading.Event()\n"
        "def hang():\n"
        "    began.set()\n"
        "    threading.Event().wait()\n"
        "Threads(1, 'x').submit(hang)\n"
        "began.wait()\n"
        "print('end')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "end\n"
