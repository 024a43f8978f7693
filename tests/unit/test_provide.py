"""Lifespan and provided things: made once, before the first event, given by type, closed in order."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.terminal import apart

from headrace import App, Event, errors
from headrace.cli.output import Exit
from headrace.lens.logs import JsonLines, TextLines
from headrace.runtime import provide
from headrace.testing import run_until_idle


class Ask(Event, topic="provide-asks"):
    """What comes."""

    n: int = 0


class Seen(Event, topic="provide-seen"):
    """What is made of it."""

    told: str


class Pool:
    """Something that many share."""

    def __init__(self, name: str = "pool") -> None:
        self.name = name


class Client:
    """Something that needs the other."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool


said: list[str] = []


def made_app() -> App:
    """Return an app with a lifespan and providers of three forms; ``said`` tells what has happened."""
    said.clear()

    @asynccontextmanager
    async def lifespan(app: App) -> AsyncIterator[None]:
        said.append(f"enter {app.name}")
        yield
        said.append("leave")

    app = App("provide", lifespan=lifespan)

    @app.provide
    async def pool() -> AsyncIterator[Pool]:
        said.append("pool")
        yield Pool()
        said.append("pool closed")

    @app.provide
    def client(pool: Pool) -> Iterator[Client]:
        said.append(f"client of {pool.name}")
        yield Client(pool)
        said.append("client closed")

    @app.provide
    def unused() -> bytes:
        raise AssertionError("nobody asks for it")

    @app.handler
    async def look(ask: Ask, client: Client, pool: Pool) -> Seen:
        said.append("handled")
        return Seen(told=f"{client.pool.name} {client.pool is pool}")

    @app.handler
    def plain(ask: Ask, pool: Pool, times: int = 2) -> None:
        assert (pool.name, times) == ("pool", 2)

    return app


def test_things_are_made_once_and_closed_in_order() -> None:
    """Lifespan, what is asked for and what that needs; closed the newest first, after the last event."""
    result = run_until_idle(made_app(), Ask(n=1), Ask(n=2))

    assert [one.told for one in result.emitted(Seen)] == ["pool True"] * 2
    assert result.dead == []
    assert said == [
        "enter provide", "pool", "client of pool", "handled", "handled", "client closed", "pool closed",
        "leave",
    ]  # fmt: skip


def test_a_test_puts_its_own_in_place() -> None:
    """By type; the provider is not called, and what needs it gets the same."""
    app = made_app()

    @app.handler
    async def other(ask: Ask, pool: Pool) -> Seen:
        return Seen(told=pool.name)

    del app.handlers["provide.plain"]
    result = run_until_idle(app, Ask(), provide={Pool: Pool("fake")})

    assert sorted(one.told for one in result.emitted(Seen)) == ["fake", "fake True"]
    assert "pool" not in said


def test_a_handler_stays_a_function() -> None:
    """Called with what it asks for, without an app."""
    app = App("provide")
    app.provide(Pool_of)

    @app.handler
    async def look(ask: Ask, pool: Pool) -> Seen:
        return Seen(told=pool.name)

    assert asyncio.run(look(Ask(), pool=Pool("mine"))).told == "mine"


def Pool_of() -> Pool:  # noqa: N802 - named for what it gives
    """Return a pool."""
    return Pool()


def test_what_cannot_be_made_is_told_and_the_rest_closed() -> None:
    """The worker has taken nothing; what was open before is closed."""
    app = made_app()

    @app.provide
    async def broken(pool: Pool) -> int:
        raise OSError("no such host")

    @app.handler
    async def needs(ask: Ask, pool: Pool, number: int) -> None: ...

    del app.handlers["provide.look"]
    with pytest.raises(
        errors.ProviderFailed, match=r"broken could not be made.*OSError: no such host"
    ) as fault:
        run_until_idle(app, Ask())
    assert isinstance(fault.value.__cause__, OSError)
    assert said == ["enter provide", "pool", "pool closed", "leave"]


def test_one_that_does_not_close_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One that raises and one that hangs are told; the others are closed, and the worker ends."""
    monkeypatch.setattr(provide, "CLOSE_S_MAX", 0.05)
    app = App("provide")
    said.clear()

    @app.provide
    async def first() -> AsyncIterator[Pool]:
        yield Pool()
        said.append("first closed")

    @app.provide
    async def hangs(pool: Pool) -> AsyncIterator[Client]:
        yield Client(pool)
        await asyncio.Event().wait()

    @app.provide
    async def raises(client: Client) -> AsyncIterator[str]:
        yield client.pool.name
        raise ValueError("not today")

    @app.handler
    async def look(ask: Ask, name: str) -> None: ...

    run_until_idle(app, Ask())

    assert said == ["first closed"]
    assert "hangs did not close within" in caplog.text
    assert "raises failed while it closed" in caplog.text
    assert "not today" in caplog.text


def no_annotation():
    """Say nothing."""


def any_thing() -> Any:
    """Say too little."""


def bare_stream() -> Iterator:  # type: ignore[type-arg]
    """Say half of it."""
    yield 1


def not_a_stream() -> int:  # type: ignore[misc]
    """Say the wrong thing."""
    yield 1  # pyright: ignore[reportReturnType]


def unknown(pool: Pool) -> str:
    """Ask for what is not there."""
    return pool.name


def unhashable() -> list[int] | dict[str, Any]:
    """Give what can be looked up all the same."""
    return []


@pytest.mark.parametrize(
    ("fn", "said"),
    [
        (no_annotation, "does not say what it gives"),
        (any_thing, "does not say what it gives"),
        (bare_stream, "it yields"),
        (not_a_stream, "it yields"),
        (unknown, "nothing is known to pass as 'pool'"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_provider_that_cannot_work_is_refused(fn: Any, said: str) -> None:
    """When it is declared, with what is wrong."""
    with pytest.raises(errors.ProviderInvalid, match=said):
        App("provide").provide(fn)


def test_a_type_has_one_provider() -> None:
    """A second one is refused, and names the first; a type that has none is no parameter."""
    app = App("provide")
    app.provide(Pool_of)
    app.provide(unhashable)
    with pytest.raises(errors.ProviderInvalid, match=r"test_provide.py:\d+ provides the same type"):
        app.provide(Pool_of)

    async def look(ask: Ask, client: Client) -> None: ...

    with pytest.raises(errors.SignatureInvalid, match=r"'client'.*and Pool by its type"):
        app.handler(look)

    def away(ask: Ask, pool: Pool) -> None: ...

    with pytest.raises(errors.SignatureInvalid, match=r"nor what @app.provide gives"):
        app.handler(offload="process")(away)


def test_the_command_shows_where_a_provider_failed(tmp_path: Path) -> None:
    """The user's frames, then the coded error; exit code 2; no partition has an owner."""
    (tmp_path / "pools.py").write_text(
        """
from headrace import App, Event

class Ask(Event, topic="asks"):
    pass

app = App("pools")

@app.provide
async def pool() -> dict[str, int]:
    raise ConnectionError("the database is away")
    yield {}

@app.handler
async def look(ask: Ask, pool: dict[str, int]) -> None: ...
""".replace("-> dict[str, int]:\n    raise", "-> AsyncIterator[dict[str, int]]:\n    raise").replace(
            "from headrace", "from collections.abc import AsyncIterator\nfrom headrace"
        )
    )
    ran = apart("run", "pools:app", cwd=tmp_path)

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert "error[HR-E414]: pool could not be made" in ran.err
    assert 'raise ConnectionError("the database is away")' in ran.err
    assert "contextlib.py" not in ran.err


# --- logs -------------------------------------------------------------------------------------


def test_a_log_says_which_event_it_speaks_of(caplog: pytest.LogCaptureFixture) -> None:
    """As JSON with event, trace, handler and what the call gives; as text at the end of the line."""
    caplog.set_level(logging.INFO)
    app = App("provide")

    @app.handler
    async def look(ask: Ask, ctx: Any) -> None:
        ctx.log.info("asked for %d", ask.n, extra={"n": ask.n})

    (event,) = run_until_idle(app, Ask(n=5)).events
    (record,) = [one for one in caplog.records if one.name == "headrace.handler"]
    line = json.loads(JsonLines().format(record))
    trace = event.envelope.traceparent.split("-")[1]
    about = {"event_id": str(event.envelope.event_id), "trace_id": trace, "handler": "provide.look"}

    assert {name: line[name] for name in about} == about
    assert (line["message"], line["level"], line["n"]) == ("asked for 5", "info", 5)
    assert line["time"].endswith("Z")
    assert (
        TextLines("[7] ")
        .format(record)
        .endswith(f"asked for 5 (event_id={about['event_id']}, trace_id={trace}, handler=provide.look)")
    )


def test_a_traceback_is_one_field() -> None:
    """One record, one line, whatever is in it."""
    fault = ValueError("a\nb")
    about = (ValueError, fault, None)
    record = logging.LogRecord("x", logging.ERROR, "", 0, "it %s", ("failed",), about)
    line = JsonLines().format(record)

    assert "\n" not in line
    assert "ValueError: a\nb" in json.loads(line)["traceback"]
    assert "event_id" not in json.loads(line)


def test_dead_letters_are_logged_with_their_event(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reads the log finds the event, and the trace."""
    app = App("provide")

    @app.handler
    async def look(ask: Ask) -> None:
        raise errors.ContentTypeRefused

    (event,) = run_until_idle(app, Ask()).events
    record = next(one for one in caplog.records if "dead letters" in one.message)
    assert record.__dict__["event_id"] == str(event.envelope.event_id)
    assert record.__dict__["trace_id"] == event.envelope.traceparent.split("-")[1]
