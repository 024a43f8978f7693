"""Handlers that do what they must not: every event ends done or in the dead letters, and others go on."""

# ruff: noqa: ASYNC110 - a test waits for other processes, and looks at their files

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Context, Event, RetryPolicy, errors
from headrace.settings import Settings
from headrace.testing import Result, run_until_idle

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
    """A dead letter that names both types, after one attempt; nothing is emitted, the next one is handled."""
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
    """Events emitted under names from concurrent tasks have the same ids in each run; without: refused."""
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


def cancels_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


RAISED = [leave, generator, cancelled, nobody]


@pytest.mark.parametrize("fails", [*RAISED, interrupt], ids=lambda fn: fn.__name__)
def test_whatever_a_plain_handler_raises_is_a_failure(fails: Callable[[], None]) -> None:
    """In a thread nothing that is raised ends the worker: attempts, a dead letter, others go on."""
    app, seen = App("fault"), list[int]()

    @app.handler(retry=RetryPolicy(attempts_max=2, backoff_first_ms=1))
    def work(event: Given) -> None:
        seen.append(event.n)
        if event.n == 1:
            fails()

    result = run_until_idle(app, *given(4, "one key"))
    assert reasons(result) == [("failed", "HR-E407")]
    assert seen == [0, 1, 1, 2, 3]


@pytest.mark.parametrize("fails", [*RAISED, cancels_itself], ids=lambda fn: fn.__name__)
def test_whatever_an_asynchronous_handler_raises_is_a_failure(fails: Callable[[], None]) -> None:
    """On the loop only Ctrl-C means the process; everything else is the event's own failure."""
    app, seen = App("fault"), list[int]()

    @app.handler(retry=RetryPolicy(attempts_max=2, backoff_first_ms=1))
    async def work(event: Given) -> None:
        seen.append(event.n)
        await asyncio.sleep(0)
        if event.n == 1:
            fails()
        await asyncio.sleep(0)

    result = run_until_idle(app, *given(4, "one key"))
    assert reasons(result) == [("failed", "HR-E407")]
    assert seen == [0, 1, 1, 2, 3]


def test_a_new_handler_under_the_former_name_of_another_is_refused(tmp_path: Path) -> None:
    """The journal would take both for one, and each event would be run by both."""
    settings = Settings(journal=str(tmp_path / "headrace.db"))

    def app_with(**names: str | None) -> App:
        app = App("desk", settings=settings, events=[Given])
        for name, was in names.items():

            async def handle(one: Given) -> None:
                del one

            app.handler(name=name, was=was)(handle)
        return app

    async def start(app: App) -> None:
        async with app:
            worker = app.worker()
            try:
                await worker.start()
            finally:
                await worker.finish()

    asyncio.run(start(app_with(route=None)))
    asyncio.run(start(app_with(assign="route")))
    for names in ({"assign": None, "route": None}, {"route": None, "assign": None}):
        with pytest.raises(errors.RenameRefused) as caught:
            asyncio.run(start(app_with(**names)))
        assert "a name that none had before" in str(caught.value.hint)
