"""The tools for tests of apps: a clock moved by hand, a model that echoes, failpoints, run until idle."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace import App, Context, Event, Label, RetryPolicy, errors
from headrace.journal.reader import Reader
from headrace.ports import FAILPOINTS
from headrace.runtime.rhythm import OUTAGE_S_MIN
from headrace.testing import CrashAt, EchoModel, FailAt, ManualClock, run_until_idle, until_idle

LONG = RetryPolicy(attempts_max=3, backoff_first_ms=3_600_000, backoff_max_ms=36_000_000)


class AskedUnit(Event, topic="testing.ask", key="who"):
    who: str
    text: str = ""


class ToldUnit(Event, topic="testing.told", key="who"):
    who: str
    text: str


class EndedUnit(Event, topic="testing.end"):
    text: str


def made_app(path: Path) -> App:
    """Return an app of two steps; its own journal is at a path."""
    app = App("unit", journal=str(path))

    @app.handler(model=EchoModel("unused"))
    async def tell(event: AskedUnit, model: Any) -> ToldUnit | None:
        if not event.text:
            return None
        label = await model(event.text)
        return ToldUnit(who=event.who, text=label.name)

    @app.handler
    def end(event: ToldUnit) -> list[EndedUnit]:
        return [EndedUnit(text=event.text), EndedUnit(text=event.text[::-1])]

    return app


# --------------------------------------------------------------------------------------- run until idle


def test_an_app_runs_until_nothing_is_left(tmp_path: Path) -> None:
    """All that follows is handled, told by class, in commit order; the app's own journal is not touched."""
    app = made_app(tmp_path / "own.db")
    asked = [AskedUnit(who="a", text="x"), AskedUnit(who="b"), AskedUnit(who="c", text="yz")]

    result = run_until_idle(app, *asked, models={"tell": EchoModel(lambda text: Label(text.upper(), 0.5))})

    assert [one.text for one in result.emitted(ToldUnit)] == ["X", "YZ"]
    assert sorted(one.text for one in result.emitted(EndedUnit)) == ["X", "X", "YZ", "ZY"]
    assert result.emitted(AskedUnit) == []
    assert len(result.events) == 3 + 2 + 4
    assert result.dead == []
    assert not list(tmp_path.iterdir())


def test_an_app_can_be_run_again(tmp_path: Path) -> None:
    """Every run begins with an empty journal, and leaves the handlers as they were declared."""
    app = made_app(tmp_path / "own.db")
    before = dict(app.handlers)
    for word in ("one", "two"):
        result = run_until_idle(app, AskedUnit(who="a", text="x"), models={"unit.tell": EchoModel(word)})
        assert [one.text for one in result.emitted(ToldUnit)] == [word]
    assert app.handlers == before
    assert run_until_idle(app).events == []


def test_a_model_for_no_handler_is_refused(tmp_path: Path) -> None:
    """A wrong name would leave the real model in place."""
    with pytest.raises(errors.SignatureInvalid, match="no such handler"):
        run_until_idle(made_app(tmp_path / "own.db"), models={"tel": EchoModel("x")})


def test_retries_need_no_sleep() -> None:
    """Hours of backoff pass on the clock of the test; each attempt is counted."""
    app, seen, clock = App("unit"), list[int](), ManualClock()

    @app.handler(retry=LONG)
    async def shaky(event: AskedUnit, ctx: Context) -> None:
        seen.append(ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")

    began = clock.boot_ns()
    result = run_until_idle(app, AskedUnit(who="a"), clock=clock)
    assert (seen, result.dead) == ([1, 2, 3], [])
    assert clock.boot_ns() > began


def test_what_fails_for_good_is_a_dead_letter() -> None:
    """Reason, code, error and payload are told, and the others are handled."""
    app = App("unit")

    @app.handler(retry=LONG)
    async def shaky(event: AskedUnit) -> ToldUnit:
        if event.who == "bad":
            raise ValueError("never")
        return ToldUnit(who=event.who, text="")

    result = run_until_idle(app, AskedUnit(who="bad"), AskedUnit(who="good"))
    ((reason, code, error, payload),) = result.dead
    assert (reason, code) == ("failed", "HR-E407")
    assert "never" in error
    assert b'"bad"' in payload
    assert [one.who for one in result.emitted(ToldUnit)] == ["good"]


def test_there_is_a_form_for_an_event_loop(tmp_path: Path) -> None:
    """`until_idle` does the same where a loop runs already."""

    async def main() -> list[str]:
        result = await until_idle(made_app(tmp_path / "own.db"), [AskedUnit(who="a", text="x")])
        return [one.text for one in result.emitted(ToldUnit)]

    assert asyncio.run(main()) == ["unused"]


def test_an_open_app_is_not_borrowed(tmp_path: Path) -> None:
    """Its journal would be changed under its feet."""

    async def main() -> None:
        async with made_app(tmp_path / "own.db") as app:
            with pytest.raises(errors.JournalLoopBound):
                await until_idle(app)

    asyncio.run(main())


# ------------------------------------------------------------------------------------------------ clock


def test_a_manual_clock_moves_only_when_told() -> None:
    """`advance`, `sleep` and `nap` move both clocks; `set_wall` the wall alone, also backwards."""
    clock = ManualClock()
    wall, boot = clock.wall_us(), clock.boot_ns()
    assert (clock.wall_us(), clock.boot_ns(), clock.wall_ns()) == (wall, boot, wall * 1000)

    clock.advance(1.5)
    asyncio.run(clock.sleep(3600))
    clock.nap(0.5)
    assert (clock.wall_us() - wall, clock.boot_ns() - boot) == (3_602_000_000, 3_602_000_000_000)

    clock.set_wall(-7200)
    assert (clock.wall_us() - wall, clock.boot_ns() - boot) == (-3_598_000_000, 3_602_000_000_000)
    assert clock.boot_id() == ManualClock().boot_id()


# ------------------------------------------------------------------------------------------------ model


def test_a_model_echoes() -> None:
    """One label for all, or what a function makes of each; one answer per input."""
    assert EchoModel("hi", confidence=0.3).load().infer([1, 2]) == [Label("hi", 0.3)] * 2
    assert EchoModel(lambda one: one + 1).infer([1, 2]) == [2, 3]
    assert EchoModel("hi").infer([]) == []


def test_another_answer_is_another_model() -> None:
    """Digests tell answers, confidences and versions apart, and are the same again."""
    models = [EchoModel("a"), EchoModel("b"), EchoModel("a", confidence=0.5), EchoModel("a", version="2")]
    assert len({one.digest for one in models}) == len(models)
    assert EchoModel("a").fingerprint() == EchoModel("a").fingerprint()


# ------------------------------------------------------------------------------------------- failpoints


@pytest.mark.parametrize("point", ["", "settle", "settle.Begin", "nowhere.else"])
def test_a_failpoint_that_does_not_exist_is_refused(point: str) -> None:
    """A typing error would be a test that tests nothing."""
    with pytest.raises(errors.SettingInvalid, match="is not one of them"):
        FailAt(point, ValueError())
    with pytest.raises(errors.SettingInvalid, match="is not one of them"):
        CrashAt(point)


def test_a_failpoint_fails_as_often_as_told() -> None:
    """From the hit that was named, so many times in a row; other points pass."""
    faults = FailAt("settle.begin", OSError("disk"), hit=2, times=2)
    told = []
    for _ in range(5):
        faults.at("claim.begin")
        try:
            faults.at("settle.begin")
            told.append("passed")
        except OSError:
            told.append("failed")
    assert told == ["passed", "failed", "failed", "passed", "passed"]


@pytest.mark.parametrize(
    "point", ["balance.taken", "claim.begin", "claim.written", "settle.begin", "settle.events"]
)
def test_an_outage_is_waited_out_as_by_a_worker(point: str, tmp_path: Path) -> None:
    """The journal fails three times in a row: what follows is the same, each once; the clock has moved on."""
    app, clock = made_app(tmp_path / "journal.db"), ManualClock()
    events = [AskedUnit(who="a", text=str(number)) for number in range(3)]
    began_ns = clock.boot_ns()

    outage = FailAt(point, errors.JournalBusy(path=":memory:", waited_s=30), times=3)
    result = run_until_idle(app, *events, clock=clock, faults=outage)

    assert len(result.emitted(ToldUnit)) == 3
    assert not result.dead
    assert clock.boot_ns() - began_ns >= 3 * OUTAGE_S_MIN * 1e9


@pytest.mark.parametrize(
    ("error", "times"),
    [
        (errors.JournalBusy(path=":memory:", waited_s=30), 1_000_000),
        (errors.JournalCorrupt(path=":memory:", problem="x"), 1),
        (RuntimeError("x"), 1),
    ],
)
def test_what_is_no_outage_or_does_not_end_is_raised(error: Exception, times: int, tmp_path: Path) -> None:
    """After a minute of the test's clock, or at once."""
    app, clock = made_app(tmp_path / "journal.db"), ManualClock()

    with pytest.raises(type(error)):
        run_until_idle(
            app, AskedUnit(who="a", text="x"), clock=clock, faults=FailAt("settle.begin", error, times=times)
        )


@pytest.mark.parametrize("point", FAILPOINTS)
def test_every_failpoint_can_be_named(point: str) -> None:
    """The names are `part.moment`, and both kinds of fault take them."""
    CrashAt(point, hit=2).at(point)
    with pytest.raises(ValueError, match="here"):
        FailAt(point, ValueError("here")).at(point)


def test_a_crash_is_a_kill() -> None:
    """The process dies of SIGKILL: no handler, no `finally`."""
    script = (
        "from headrace.testing import CrashAt\n"
        "crash = CrashAt('handle.before', 2)\n"
        "try:\n"
        "    crash.at('handle.before'); print('once', flush=True)\n"
        "    crash.at('handle.before'); print('twice', flush=True)\n"
        "finally:\n"
        "    print('finally', flush=True)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (-9, "once\n")


def test_headers_travel_along_a_chain(tmp_path: Path) -> None:
    """What a publisher says beside the payload (a tenant, for one) stands in all that follows."""
    app = made_app(tmp_path / "journal.db")

    async def main() -> None:
        async with app:
            await app.publish(AskedUnit(who="a", text="x"), headers={"tenant": b"blue"})
            worker = app.worker()
            await worker.start(keep=False)
            for _ in range(200):
                if not any([await server.step() for server in worker.servers]):
                    await asyncio.sleep(0.001)
            await worker.finish()

    asyncio.run(main())
    reader = Reader(str(tmp_path / "journal.db"))
    found = [(one.envelope.type, one.envelope.headers) for one in reader.events()]
    reader.close()
    assert found == [
        (name, {"tenant": b"blue"}) for name in ("AskedUnit", "ToldUnit", "EndedUnit", "EndedUnit")
    ]
