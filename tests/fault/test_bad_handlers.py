"""Handlers that do what they must not: every event ends done or in the dead letters, and others go on."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.fault.conftest import Stage

from headrace import App, Context, Event, RetryPolicy, errors
from headrace.app import World
from headrace.settings import Settings
from headrace.testing import ManualClock, Result, run_until_idle

ONCE = RetryPolicy(attempts_max=1)


class Given(Event, topic="given", key="key", type="fault.given"):
    n: int
    key: str | None = None


class Made(Event, topic="made", key="key", type="fault.made"):
    n: int
    key: str | None = None


class Wrong(Event, topic="wrong", type="fault.wrong"):
    n: int


class MadeLikewise(Made, topic="likewise", type="fault.made.likewise"):
    """A subclass of what may be emitted is another event."""


def given(count: int, key: str | None = None) -> list[Given]:
    """Return events, all of one key or without."""
    return [Given(n=n, key=key) for n in range(count)]


def reasons(result: Result) -> list[tuple[str, str]]:
    """Return reason and code of each dead letter."""
    return [(reason, code) for reason, code, _, _ in result.dead]


class Moved:
    """An app whose worker a test steps by hand, in memory; time moves a millisecond a step."""

    def __init__(self, app: App) -> None:
        self.app, self.clock = app, ManualClock()
        app.place_in(World(clock=self.clock))

    async def __aenter__(self) -> Moved:
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


# --- declarations -------------------------------------------------------------------------------


def test_two_handlers_of_one_name_are_refused() -> None:
    """The name is the identity of the progress: the second is refused, both places are named."""
    app = App("fault")

    @app.handler
    async def work(event: Given) -> None:
        return None

    async def other(event: Given) -> None:
        return None

    with pytest.raises(errors.HandlerTwice) as caught:
        app.handler(name="work")(other)
    assert str(caught.value).count("test_bad_handlers.py:") == 2
    assert len(app.handlers) == 1


def test_two_event_classes_of_one_type_are_refused() -> None:
    """A type name has one meaning: refused where the classes meet in an app, and among modules at import."""

    class Twin(Event, topic="given", type="fault.given"):
        n: int

    app = App("fault", events=[Given])
    with pytest.raises(errors.TypeTwice) as caught:
        App("other", events=[Given, Twin])
    assert "test_bad_handlers" in str(caught.value)

    async def read(event: Twin) -> None:
        return None

    with pytest.raises(errors.TypeTwice):
        app.handler(read)
    space = {"__annotations__": {"n": int}, "__module__": __name__, "__qualname__": "Twin"}
    with pytest.raises(errors.TypeTwice):
        type(Event)("Twin", (Event,), space, topic="given", type="fault.given")  # type: ignore[call-overload]


# --- what is returned and emitted ---------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        Wrong(n=1),
        "text",
        {"n": 1},
        [Made(n=1), None],
        [Made(n=1), Wrong(n=1)],
        MadeLikewise(n=1),
        Made,
        0,
        False,
        b"",
    ],
    ids=repr,
)
@pytest.mark.parametrize("plain", [False, True], ids=["async", "def"])
def test_a_handler_that_returns_the_wrong_type(value: object, plain: bool) -> None:
    """A dead letter that names both types, after one attempt; nothing is emitted, the next event is handled."""
    app, attempts = App("fault"), list[int]()

    def answer(event: Given) -> Any:
        attempts.append(event.n)
        return value if event.n == 0 else Made(n=event.n)

    async def answer_later(event: Given) -> Any:
        return answer(event)

    fn = answer if plain else answer_later
    fn.__annotations__["return"] = Made | None
    app.handler(name="work")(fn)
    result = run_until_idle(app, *given(2))
    assert reasons(result) == [("emit_refused", "HR-E403")]
    assert "fault.made" in result.dead[0][2]
    assert sorted(attempts) == [0, 1]
    assert [one.n for one in result.emitted(Made)] == [1]
    assert len(result.events) == 3


@pytest.mark.parametrize(("count", "dead"), [(10_000, 0), (10_001, 1)])
@pytest.mark.parametrize("how", ["returned", "emitted"])
def test_ten_thousand_events_for_one_are_the_limit(count: int, dead: int, how: str) -> None:
    """10,000 are written with their parent's outcome; one more is a dead letter, and none is written."""
    app = App("fault")

    @app.handler
    async def work(event: Given, ctx: Context) -> list[Made]:
        made = [Made(n=n) for n in range(count)]
        if how == "returned":
            return made
        for one in made:
            ctx.emit(one)
        return []

    result = run_until_idle(app, *given(1))
    assert len(result.emitted(Made)) == (0 if dead else count)
    assert reasons(result) == [("failed", "HR-E410")] * dead
    assert len({one.envelope.event_id for one in result.events}) == len(result.events)


def test_names_decide_ids_whatever_the_order() -> None:
    """Events emitted under names from concurrent tasks have the same ids in every run; without one: refused."""
    found: list[set[str]] = []
    for order in ([3, 1, 2], [2, 3, 1]):
        app = App("fault")

        @app.handler(retry=ONCE)
        async def work(event: Given, ctx: Context, order: Any = order) -> Made | None:
            async def task(n: int) -> None:
                await asyncio.sleep(0)
                ctx.emit(Made(n=n), name=f"part-{n}" if event.n == 0 else None)

            await asyncio.gather(*[task(n) for n in order])
            return None

        from uuid import UUID

        from headrace import Options

        parent = (Given(n=0), Options(event_id=UUID(int=9)))
        result = run_until_idle(app, parent, Given(n=1))  # type: ignore[arg-type]  # as `publish` takes them
        assert reasons(result) == [("failed", "HR-E404")]
        found.append(
            {f"{one.envelope.event_id} {one.payload}" for one in result.events if one.envelope.handler}
        )
    assert found[0] == found[1]
    assert len(found[0]) == 3


def test_one_name_twice_is_refused() -> None:
    """Two events under one name would have one id: a dead letter, and neither is written."""
    app = App("fault")

    @app.handler
    async def work(event: Given, ctx: Context) -> Made | None:
        ctx.emit(Made(n=1), name="a")
        ctx.emit(Made(n=2), name="a" if event.n == 0 else "b")
        return Made(n=3)

    result = run_until_idle(app, *given(2))
    assert reasons(result) == [("failed", "HR-E404")]
    assert sorted(one.n for one in result.emitted(Made)) == [1, 2, 3]


@pytest.mark.parametrize("plain", [False, True], ids=["async", "def"])
def test_an_emit_after_the_end_is_an_error(plain: bool) -> None:
    """What is left behind by a handler cannot emit any more, and is told so; nothing is lost in silence."""
    app, told = App("fault"), list[str]()
    gate = threading.Event()

    def late(ctx: Context) -> None:
        try:
            ctx.emit(Made(n=1), name="late")
        except errors.HandlerError as fault:
            told.append(fault.code)
        gate.set()

    if plain:

        @app.handler
        def work(event: Given, ctx: Context) -> Made | None:
            threading.Timer(0.05, late, [ctx]).start()
            return None
    else:

        @app.handler(name="work")
        async def work_later(event: Given, ctx: Context) -> Made | None:
            asyncio.get_running_loop().call_later(0, asyncio.get_running_loop().call_soon, late, ctx)
            return None

        @app.handler
        async def keeps_the_loop_alive(event: Given) -> None:
            while not gate.is_set():
                await asyncio.sleep(0)

    result = run_until_idle(app, *given(1))
    assert gate.wait(10)
    assert len(told) == 1
    assert result.emitted(Made) == []


def test_an_unnamed_emit_from_a_thread_of_the_handler_is_refused() -> None:
    """The order of a handler's own threads is nobody's: without a name such an emit is an error."""
    app, told = App("fault"), list[str]()

    @app.handler
    def work(event: Given, ctx: Context) -> Made | None:
        def emit(name: str | None) -> None:
            try:
                ctx.emit(Made(n=1), name=name)
            except errors.EmitUnnamed as fault:
                told.append(fault.code)

        threads = [threading.Thread(target=emit, args=[name]) for name in (None, "a")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return None

    result = run_until_idle(app, *given(1))
    assert told == ["HR-E404"]
    assert len(result.emitted(Made)) == 1


# --- what is raised -----------------------------------------------------------------------------


def leave() -> None:
    sys.exit(3)


def interrupt() -> None:
    raise KeyboardInterrupt


def generator() -> None:
    raise GeneratorExit


def cancelled() -> None:
    raise asyncio.CancelledError


def nobody() -> None:
    class Own(BaseException):
        def __str__(self) -> str:
            raise ValueError("even its text fails")

    raise Own


RAISED = [leave, generator, cancelled, nobody]


@pytest.mark.parametrize("fails", [*RAISED, interrupt], ids=lambda fn: fn.__name__)
def test_whatever_a_plain_handler_raises_is_a_failure(fails: Callable[[], None]) -> None:
    """In a thread of its own nothing that is raised ends the worker: attempts, a dead letter, others go on."""
    app, seen = App("fault"), list[int]()

    @app.handler(retry=RetryPolicy(attempts_max=2, backoff_first_ms=1))
    def work(event: Given) -> None:
        seen.append(event.n)
        if event.n == 1:
            fails()

    result = run_until_idle(app, *given(4, "one key"))
    assert reasons(result) == [("failed", "HR-E407")]
    assert seen == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("fails", RAISED, ids=lambda fn: fn.__name__)
def test_whatever_an_asynchronous_handler_raises_is_a_failure(fails: Callable[[], None]) -> None:
    """On the loop only Ctrl-C means the process; everything else is the event's own failure."""
    app, seen = App("fault"), list[int]()

    @app.handler(retry=RetryPolicy(attempts_max=2, backoff_first_ms=1))
    async def work(event: Given) -> None:
        seen.append(event.n)
        await asyncio.sleep(0)
        if event.n == 1:
            fails()

    result = run_until_idle(app, *given(4, "one key"))
    assert reasons(result) == [("failed", "HR-E407")]
    assert seen == [0, 1, 1, 2, 3]


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


async def test_as_many_that_hang_as_may_run_do_not_pile_up_threads() -> None:
    """When every slot hangs nothing new is taken: what waits is waiting, not lost; the others of the app go on."""
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
    """A handler sets a context variable: no later event sees it, of the same key or another, after failures too."""
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


def test_a_handler_behind_bad_ones_is_served(stage: Stage) -> None:
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
