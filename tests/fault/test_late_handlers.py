"""Handlers that take too long, or leave something behind: given up in time, and nobody else notices."""

# ruff: noqa: ASYNC251 - a test waits for other processes, and looks at their files

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Self

import pytest
from tests.fault.test_bad_handlers import ONCE, RAISED, Given, Made, given

from headrace import App
from headrace.app import World
from headrace.settings import Settings
from headrace.testing import ManualClock, run_until_idle


class Moved:
    """An app whose worker a test steps by hand, in memory; time moves a millisecond a step."""

    def __init__(self, app: App) -> None:
        self.app, self.clock = app, ManualClock()
        app.place_in(World(clock=self.clock))

    async def __aenter__(self) -> Self:
        await self.app.open()
        self.worker = self.app.worker()
        await self.worker.start(keep=False)
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.worker.finish()
        await self.app.close()

    def rows(self, sql: str) -> list[Any]:
        """Return rows of the journal."""
        return self.app.journal._connection.rows(sql)  # type: ignore[attr-defined]  # in memory there is one

    def counts(self) -> tuple[int, int, int]:
        """Return how many run, are done, are dead."""
        return self.rows("SELECT sum(running), sum(done), sum(dead) FROM position")[0]

    async def until(self, holds: Callable[[], Any], steps_max: int = 20_000) -> None:
        """Step until something holds; beyond so many steps it never will."""
        for _ in range(steps_max):
            if holds():
                return
            self.clock.advance(0.001)
            for server in self.worker.servers:
                await server.step()
            await asyncio.sleep(0)
        pytest.fail(f"never came about; running, done, dead = {self.counts()}")


def app_of(**settings: Any) -> App:
    """Return an app in memory."""
    return App("fault", settings=Settings(journal=":memory:", stop_grace_ms=0, **settings))


# --- time ---------------------------------------------------------------------------------------


async def test_a_plain_handler_that_never_returns_is_left_behind() -> None:
    """Its event ends in the dead letters with the stack; later events of the key and others are handled."""
    app, gate, seen = app_of(), threading.Event(), list[int]()

    @app.handler(deadline_ms=200, concurrency=2, retry=ONCE)
    def work(event: Given) -> None:
        if event.n == 0:
            gate.wait(30)
        seen.append(event.n)

    async with Moved(app) as moved:
        await app.publish([*given(3, "a"), Given(n=9, key="b")])
        await moved.until(lambda: moved.counts() == (0, 3, 1))
        assert sorted(seen) == [1, 2, 9]
        ((reason, error),) = moved.rows("SELECT reason, error FROM dead")
        assert reason == "deadline"
        assert "gate.wait" in error
        gate.set()
        while 0 not in seen:
            time.sleep(0.001)
        await moved.until(lambda: not moved.worker.servers[0].pipeline.abandoned)
        assert moved.counts() == (0, 3, 1)  # what it came to in the end is dropped
        assert len(moved.rows("SELECT seq FROM event")) == 4


async def test_a_handler_that_swallows_its_cancellation_is_left_behind() -> None:
    """It goes on for ever: given up after its deadline and a grace; its late result is dropped."""
    app, gate, seen = app_of(), asyncio.Event(), list[int]()

    @app.handler(deadline_ms=200, concurrency=2, retry=ONCE)
    async def work(event: Given) -> Made | None:
        while event.n == 0 and not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                seen.append(-1)
        seen.append(event.n)
        return Made(n=event.n)

    async with Moved(app) as moved:
        await app.publish([*given(3, "a"), Given(n=9, key="b")])
        await moved.until(lambda: moved.counts() == (0, 3, 1))
        assert [row[0] for row in moved.rows("SELECT reason FROM dead")] == ["deadline"]
        gate.set()
        await moved.until(lambda: 0 in seen)
        await moved.until(lambda: not moved.worker.servers[0].pipeline.abandoned)
        assert moved.counts() == (0, 3, 1)
        assert seen.count(-1) >= 1
        made = "SELECT seq FROM event WHERE tp >> 10 = (SELECT id FROM topic WHERE name = 'made')"
        assert len(moved.rows(made)) == 3


async def test_a_stop_after_a_swallowed_deadline_is_no_failure() -> None:
    """One event swallows its deadline's cancellation; the next one is handed back at the stop, not blamed."""
    app, begun = app_of(), list[int]()

    @app.handler(deadline_ms=200, concurrency=1, retry=ONCE)
    async def work(event: Given) -> None:
        begun.append(event.n)
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            if event.n:
                raise

    async with Moved(app) as moved:
        await app.publish(given(2, "a"))
        await moved.until(lambda: begun == [0, 1])
        assert await moved.worker.finish() == 1
        assert moved.counts() == (0, 1, 0)
        assert moved.rows("SELECT state, attempts FROM open") == [("returned", 0)]


async def test_the_grace_of_a_stop_is_that_of_the_process() -> None:
    """Handlers that do not end are waited for side by side, not one after the other."""
    app, begun = App("fault", settings=Settings(journal=":memory:", stop_grace_ms=1_000)), list[str]()

    async def hangs(event: Given) -> None:
        begun.append("")
        await asyncio.get_running_loop().create_future()

    for name in "abc":
        app.handler(name=name)(hangs)
    async with Moved(app) as moved:
        await app.publish(given(1))
        await moved.until(lambda: len(begun) == 3)
        before_ns = moved.clock.boot_ns()
        assert await moved.worker.finish() == 3
        assert 1.0 <= (moved.clock.boot_ns() - before_ns) / 1e9 < 1.5


@pytest.mark.parametrize("plain", [False, True], ids=["async", "def"])
async def test_a_deadline_holds_while_a_stop_waits(plain: bool) -> None:
    """A handler that hangs ends a stop after its own deadline, not after the grace; its attempt counts."""
    app, begun = App("fault", settings=Settings(journal=":memory:", stop_grace_ms=600_000)), list[int]()
    gate = threading.Event()

    def hangs(event: Given) -> None:
        begun.append(event.n)
        gate.wait(30)

    async def hangs_too(event: Given) -> None:
        begun.append(event.n)
        await asyncio.get_running_loop().create_future()

    app.handler(name="work", deadline_ms=200, retry=ONCE)(hangs if plain else hangs_too)
    async with Moved(app) as moved:
        await app.publish(given(2, "a"))
        await moved.until(lambda: begun == [0])
        before_ns = moved.clock.boot_ns()
        assert await moved.worker.finish() == 1  # the second of the key had not begun
        gate.set()
        assert (moved.clock.boot_ns() - before_ns) / 1e9 < 1
        assert moved.rows("SELECT seq, reason FROM dead") == [(1, "deadline")]
        assert moved.rows("SELECT seq, state FROM open") == [(2, "returned")]


async def test_a_stop_hands_back_what_nobody_can_read() -> None:
    """A suspect that waits to run alone has not been looked at yet; its broken envelope stops no stop."""
    app, begun = app_of(), list[int]()

    @app.handler
    async def hangs(event: Given) -> None:
        begun.append(event.n)
        await asyncio.get_running_loop().create_future()

    @app.handler
    async def reads(event: Made) -> None:
        begun.append(-1)

    async with Moved(app) as moved:
        await app.publish([Given(n=1), Made(n=2)])
        reader = moved.worker.servers[1]
        await reader.consumer.balance()
        assert reader.versions.serving is not None
        assert await reader.consumer.take(9, reader.versions.serving.plan.version)
        moved.rows("UPDATE event SET head = x'c1' WHERE seq = 2")
        moved.rows("UPDATE position SET owner = 99")  # as if who has taken it were dead
        await moved.until(lambda: begun == [1] and reader._claimed)
        assert await moved.worker.finish() == 2
        assert moved.rows("SELECT seq, state FROM open") == [(1, "returned"), (2, "returned")]
        assert moved.rows("SELECT 1 FROM position WHERE owner IS NOT NULL") == []


async def test_a_suspect_is_alone_also_with_what_was_just_being_claimed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another server's claim may be on its way when a suspect starts: what it brings waits for its end."""
    app, seen, ends, claims = app_of(), list[int](), asyncio.Event(), asyncio.Event()

    @app.handler
    async def others(event: Given) -> None:
        seen.append(event.n)

    @app.handler
    async def suspected(event: Made) -> None:
        seen.append(event.n)
        await ends.wait()

    async with Moved(app) as moved:
        await app.publish([Given(n=1), Made(n=2)])
        other, server = moved.worker.servers
        await server.consumer.balance()
        assert server.versions.serving is not None
        assert await server.consumer.take(9, server.versions.serving.plan.version)
        moved.rows("UPDATE position SET owner = 99")  # as if who has taken it were dead

        async def slow(*args: Any) -> Any:
            await claims.wait()
            return await take(*args)

        take = other.consumer.take
        monkeypatch.setattr(other.consumer, "take", slow)
        claiming = asyncio.create_task(other.step())
        await asyncio.sleep(0)
        await server.step()
        claims.set()
        await claiming
        for _ in range(9):
            await asyncio.sleep(0)
        assert seen == [2]
        ends.set()
        await moved.until(lambda: moved.counts() == (0, 2, 0))
        assert seen == [2, 1]


async def test_the_lease_is_kept_while_a_stop_waits(caplog: pytest.LogCaptureFixture) -> None:
    """A grace longer than deadline and lease: the loop still counts as alive, nobody takes over."""
    settings = Settings(journal=":memory:", stop_grace_ms=60_000, lease_ms=300)
    app, stop, seen = App("fault", settings=settings), asyncio.Event(), list[int]()

    @app.handler(deadline_ms=100)
    async def work(event: Given) -> None:
        stop.set()
        ends = asyncio.create_task(asyncio.sleep(0.6))
        while not ends.done():  # its deadline cancels it; it goes on, not for so long that it is given up
            with suppress(asyncio.CancelledError):
                await asyncio.shield(ends)
        seen.append(event.n)

    async with app:
        await app.publish(given(1))
        assert await app.run(stop) == 0
    assert seen == [0]
    assert "event loop is blocked" not in caplog.text


async def test_as_many_that_hang_as_may_run_do_not_pile_up_threads() -> None:
    """When every slot hangs nothing new is taken: what waits is not lost, and other handlers go on."""
    app, gate = app_of(), threading.Event()

    @app.handler(deadline_ms=100, concurrency=2, retry=ONCE)
    def work(event: Given) -> None:
        gate.wait(30)

    @app.handler
    async def other(event: Given) -> None:
        return None

    before = threading.active_count()
    async with Moved(app) as moved:
        await app.publish(given(50))
        other_done = "SELECT sum(done) FROM position WHERE sub = (SELECT max(id) FROM subscription)"
        await moved.until(lambda: moved.rows(other_done) == [(50,)])
        for _ in range(2_000):
            await moved.until(lambda: True)
            moved.clock.advance(0.001)
            for server in moved.worker.servers:
                await server.step()
        assert threading.active_count() - before <= 2 * 2 + 2
        gate.set()
        await moved.until(lambda: moved.rows("SELECT sum(running) FROM position") == [(0,)])


# --- context variables --------------------------------------------------------------------------

COLOUR: contextvars.ContextVar[int | None] = contextvars.ContextVar("colour", default=None)


@pytest.mark.parametrize("plain", [False, True], ids=["async", "def"])
@pytest.mark.parametrize("key", ["one key", None])
def test_context_variables_do_not_leak_into_the_next_event(plain: bool, key: str | None) -> None:
    """A handler sets a context variable: no later event sees it, whatever its key, after failures too."""
    app, seen = App("fault"), dict[int, int | None]()

    def work(event: Given) -> None:
        seen[event.n] = COLOUR.get()
        COLOUR.set(event.n)
        if event.n % 3 == 0:
            raise ValueError

    async def work_later(event: Given) -> None:
        work(event)
        await asyncio.sleep(0)

    app.handler(name="work", retry=ONCE)(work if plain else work_later)
    run_until_idle(app, *given(12, key))
    assert seen == dict.fromkeys(range(12))
    assert COLOUR.get() is None


class Odd:
    """As an array: two of them are neither equal nor different."""

    __hash__ = None  # type: ignore[assignment]  # as theirs

    def __eq__(self, other: object) -> bool:
        raise ValueError("the truth of this is ambiguous")


ODD: contextvars.ContextVar[Odd] = contextvars.ContextVar("odd")


@pytest.mark.parametrize("plain", [False, True], ids=["async", "def"])
def test_a_context_variable_that_cannot_be_compared_harms_nobody(plain: bool) -> None:
    """It counts as set anew; the event that was just done is not failed as well."""
    app, seen = App("fault"), list[int]()

    def work(event: Given) -> None:
        seen.append(event.n)
        ODD.set(Odd())

    async def work_later(event: Given) -> None:
        work(event)

    app.handler(name="work", retry=ONCE)(work if plain else work_later)
    before = ODD.set(Odd())
    result = run_until_idle(app, *given(4, "one key"))
    ODD.reset(before)
    assert seen == [0, 1, 2, 3]
    assert not result.dead


def test_a_handler_behind_bad_ones_is_served() -> None:
    """One app with all of these handlers on one topic: a good one handles every event."""
    app, seen = App("fault"), list[int]()
    for fails in RAISED:

        async def bad(event: Given, fails: Any = fails) -> None:
            fails()

        app.handler(name=fails.__name__, retry=ONCE)(bad)

    @app.handler
    async def good(event: Given) -> None:
        seen.append(event.n)

    result = run_until_idle(app, *given(20))
    assert sorted(seen) == list(range(20))
    assert len(result.dead) == 20 * len(RAISED)
