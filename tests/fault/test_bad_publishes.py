"""Publishing what contradicts itself or others: only the unit that is wrong fails, and it leaves no trace."""

# ruff: noqa: ASYNC110 - a test waits for other processes, and looks at their files

from __future__ import annotations

import asyncio
import itertools
from typing import Any
from uuid import UUID

import pytest
from tests.fault.conftest import Stage
from tests.fault.test_bad_events import Note, Other, app_of, handled, reading

from headrace import App, Event, Options, errors
from headrace.app import World
from headrace.runtime import publish
from headrace.settings import Settings
from headrace.testing import FailAt, until_idle

A, B, C, D = (UUID(int=n) for n in range(1, 5))


class Elsewhere(Event, topic="elsewhere", key="key", type="fault.elsewhere"):
    """On another topic, with a key."""

    key: str


def one(text: str, event_id: UUID | str | None = None, *parents: UUID | str) -> tuple[Note, Options]:
    """Return a note as a member of a unit."""
    return Note(text=text), Options(event_id=event_id, parents=parents)


def texts(stage: Stage) -> list[str]:
    """Return what is in the journal, in commit order."""
    return [body["text"] for body in stage.look.emitted("notes")]


# --- parents ------------------------------------------------------------------------------------


async def test_a_parent_that_is_missing_refuses_the_unit(stage: Stage) -> None:
    """Nobody may see an event before its causes: nothing of the unit is written, whatever its place in it."""
    async with app_of(stage) as app:
        with pytest.raises(errors.ParentMissing) as caught:
            await app.publish(Note(text="x"), parents=[D])
        assert str(D) in str(caught.value)
        for unit in itertools.permutations([one("a", A), one("b", B, A), one("x", C, D)]):
            with pytest.raises(errors.ParentMissing):
                await app.publish(unit)
        assert texts(stage) == []
        await app.publish([one("a", A), one("b", B, A)])
    assert texts(stage) == ["a", "b"]


async def test_an_event_that_causes_itself_is_refused(stage: Stage) -> None:
    """Alone, in a circle of three, or once it is there already: a coded refusal that names the circle."""
    async with app_of(stage) as app:
        with pytest.raises(errors.ParentCycle) as caught:
            await app.publish(Note(text="x"), event_id=A, parents=[A])
        assert str(A) in str(caught.value)
        with pytest.raises(errors.ParentCycle):
            await app.publish([one("a", A, C), one("b", B, A), one("c", C, B), one("d", D)])
        assert texts(stage) == []
        await app.publish(Note(text="a"), event_id=A)
        with pytest.raises(errors.ParentCycle):
            await app.publish(Note(text="a"), event_id=A, parents=[A])
    assert texts(stage) == ["a"]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
async def test_parents_and_children_come_in_any_order(stage: Stage, order: tuple[int, ...]) -> None:
    """One publish may hold a chain in any order: causes are stored first, depth and root are right."""
    chain = [one("a", A), one("b", B, A), one("c", C, B), one("d", D, A, C)]
    async with app_of(stage) as app:
        receipts = await app.publish([chain[at] for at in order])
        assert [receipt.event_id for receipt in receipts] == [(A, B, C, D)[at] for at in order]
        reader = app.journal.reader()  # type: ignore[attr-defined]  # of the embedded journal
        stored = [event.envelope for event in reader.events()]
        reader.close()
    assert [envelope.event_id for envelope in stored] == [A, B, C, D]
    assert [envelope.depth for envelope in stored] == [0, 1, 2, 3]
    assert {envelope.causality_id for envelope in stored} == {A}
    assert stored[3].parent_ids == (A, C)


async def test_a_long_chain_in_one_unit_needs_no_deep_stack(stage: Stage) -> None:
    """2,000 events, each the parent of the next, published backwards: written whole."""
    ids = [UUID(int=n + 1) for n in range(2_000)]
    chain = [one(str(n), ids[n], *ids[n - 1 : n]) for n in range(len(ids))]
    async with app_of(stage) as app:
        await app.publish(chain[::-1])
    assert texts(stage) == [str(n) for n in range(len(ids))]


# --- too much -----------------------------------------------------------------------------------


async def test_a_unit_of_too_many_events_is_refused(stage: Stage) -> None:
    """Before anything is encoded; count, limit, journal and a way out are told. One less is fine."""
    async with app_of(stage) as app:
        with pytest.raises(errors.UnitTooLarge) as caught:
            await app.publish([Note(text="a")] * (publish.UNIT_EVENTS_MAX + 1))
        assert f"One publish into {stage.journal} holds 10,001 events, the limit is 10,000." in str(
            caught.value
        )
        assert "several calls" in caught.value.hint
        assert texts(stage) == []
        await app.publish([Note(text="a")] * publish.UNIT_EVENTS_MAX)
    assert len(texts(stage)) == publish.UNIT_EVENTS_MAX


async def test_a_unit_of_too_many_bytes_is_refused(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """Payloads and headers count; the event that passes the limit is named; one event has its own bound."""
    monkeypatch.setattr(publish, "UNIT_BYTES_MAX", 1_000)
    large = Note(text="x" * 600)
    async with app_of(stage) as app:
        with pytest.raises(errors.UnitTooLarge, match=r"Event \[2\] \(fault\.note\) passes it\."):
            await app.publish([Note(text="a"), large, large, large])
        with pytest.raises(errors.UnitTooLarge):
            await app.publish([Note(text="a"), (Note(text="b"), Options(headers={"h": b"x" * 1_000}))])
        assert texts(stage) == []
        await app.publish(Note(text="y" * 2_000))
        await app.publish([Note(text="a"), large])
    assert len(texts(stage)) == 3


# --- the same id --------------------------------------------------------------------------------


async def test_the_same_event_again_is_a_success_without_effect(stage: Stage) -> None:
    """Time, trace and headers do not count: same id, type, key and payload is the same event."""
    async with app_of(stage) as app:
        assert not (await app.publish(Note(text="a"), event_id=A)).duplicate
        assert (await app.publish(Note(text="a"), event_id=A, headers={"x": b"y"})).duplicate
        first, second = await app.publish([one("b", B), one("b", B)])
        assert (first.duplicate, second.duplicate) == (False, True)
    assert texts(stage) == ["a", "b"]


@pytest.mark.parametrize("other", [Note(text="x"), Other(text="a")], ids=["payload", "type"])
async def test_the_same_id_with_other_content_fails_alone(stage: Stage, other: Event) -> None:
    """Alone, in a batch, beside others: only the unit with the conflict fails, nothing of it is written."""
    async with app_of(stage) as app:
        await app.publish(Note(text="a"), event_id=A)
        with pytest.raises(errors.EventConflict) as caught:
            await app.publish(other, event_id=A)
        assert str(A) in str(caught.value)
        with pytest.raises(errors.EventConflict):
            await app.publish([one("b", B), (other, Options(event_id=A)), one("c", C)])
        with pytest.raises(errors.EventConflict):  # twice in one unit
            await app.publish([one("a", D), (other, Options(event_id=D))])
        results = await asyncio.gather(
            app.publish(Note(text="one")),
            app.publish([one("b", B), (other, Options(event_id=A))]),
            app.publish([one("two"), one("three")]),
            app.publish(Note(text="a"), event_id=A),
            app.publish(other, event_id=A),
            app.publish([one("four", C, A)]),
            return_exceptions=True,
        )
    assert [isinstance(result, errors.EventConflict) for result in results] == [0, 1, 0, 0, 1, 0]
    assert sorted(texts(stage)) == ["a", "four", "one", "three", "two"]


async def test_the_same_id_on_another_topic_is_another_event(stage: Stage) -> None:
    """Ids are unique per topic: one unit may hold the same id for two topics."""
    async with app_of(stage) as app:
        receipts = await app.publish([one("a", A), (Elsewhere(key="k"), Options(event_id=A))])
        assert [receipt.duplicate for receipt in receipts] == [False, False]
    assert stage.look.one("SELECT count(*) FROM event") == 2


class Counted(Event, topic="counted", key="number", type="fault.counted"):
    """With a key that is not text."""

    number: int


@pytest.mark.parametrize("given", [{"event_id": A}, {"headers": {"a": b"1"}}, {"traceparent": "00-1"}])
async def test_what_belongs_to_one_event_is_not_passed_over_for_several(
    stage: Stage, given: dict[str, Any]
) -> None:
    """An id that was ignored would make a repeated call publish twice."""
    async with app_of(stage) as app:
        with pytest.raises(errors.EnvelopeInvalid, match=next(iter(given))):
            await app.publish([Note(text="a")], **given)
    assert texts(stage) == []


async def test_what_is_no_event_is_refused(stage: Stage) -> None:
    """Also among events, and nothing of the unit is written."""
    async with app_of(stage) as app:
        for wrong in ("text", None, {"text": "a"}):
            with pytest.raises(errors.ContractInvalid):
                await app.publish([Note(text="a"), wrong])  # type: ignore[list-item]  # that is the test
        with pytest.raises(errors.KeyInvalid):
            await app.publish(Counted(number=10**5_000))
    assert texts(stage) == []


async def test_two_with_the_same_id_at_once_are_one_event(stage: Stage) -> None:
    """Eight callers publish the same event in one tick: one row, seven duplicates."""
    async with app_of(stage) as app:
        receipts = await asyncio.gather(*[app.publish(Note(text="a"), event_id=A) for _ in range(8)])
    assert sorted(receipt.duplicate for receipt in receipts) == [False] + [True] * 7
    assert texts(stage) == ["a"]


# --- what is no text ----------------------------------------------------------------------------

BAD: dict[str, dict[str, Any]] = {
    "header name": {"headers": {"\ud800": b"x"}},
    "tracestate": {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "\ud800"},
    "event id": {"event_id": "\ud800"},
    "parent": {"parents": ["\ud800"]},
    "id of three bytes": {"event_id": b"abc"},
    "empty id": {"event_id": ""},
    "parents without end": {"parents": [UUID(int=n) for n in range(1_000)]},
    "key that is empty": {"event": Elsewhere(key="")},
    "key that is long": {"event": Elsewhere(key="k" * 1_025)},
}


@pytest.mark.parametrize("given", BAD.values(), ids=BAD)
async def test_what_is_no_text_fails_alone(stage: Stage, given: dict[str, Any]) -> None:
    """A lone surrogate or a malformed id gets a coded error, or does no harm; neighbours never notice."""
    more = dict(given)
    event = more.pop("event", Note(text="bad"))
    async with app_of(stage) as app:
        results = await asyncio.gather(
            app.publish(Note(text="a")), app.publish(event, **more), app.publish(Note(text="b")),
            return_exceptions=True,
        )  # fmt: skip
    assert not isinstance(results[1], BaseException) or isinstance(results[1], errors.EventError)
    assert not [result for result in results[::2] if isinstance(result, BaseException)]
    assert sorted(text for text in texts(stage) if text != "bad") == ["a", "b"]


@pytest.mark.parametrize(
    "traceparent", ["", "00", "x" * 10_000, f"00-{'0' * 32}-{'b' * 16}-01", "\ud800", "00-é-é-01"]
)
async def test_a_broken_trace_starts_a_new_one(stage: Stage, traceparent: str) -> None:
    """An event with a broken traceparent is published all the same, under a trace of its own."""
    async with app_of(stage) as app:
        await app.publish(Note(text="a"), traceparent=traceparent, tracestate="v=1")
        reader = app.journal.reader()  # type: ignore[attr-defined]  # of the embedded journal
        (stored,) = reader.events()
        reader.close()
    assert stored.envelope.traceparent[3:35] not in ("0" * 32, "")
    assert stored.envelope.tracestate == ""


# --- order of calls, and cancellation -----------------------------------------------------------


async def test_calls_in_the_wrong_order_are_refused_or_harmless(stage: Stage) -> None:
    """Before open, after close, twice: a coded error, or exactly what one would hope for; nothing is lost.

    An app that somebody has closed does not open by itself again: nobody would close it.
    """
    app = app_of(stage)
    with pytest.raises(errors.JournalClosed):
        _ = app.journal
    with pytest.raises(errors.JournalClosed):
        app.worker()
    await app.close()  # closing what is not open is harmless
    await app.publish(Note(text="opens by itself"))
    await app.open()
    await app.open()
    await app.close()
    await app.close()
    with pytest.raises(errors.JournalClosed):
        _ = app.journal
    for publishing in (app.publish(Note(text="x")), app.publish([Note(text="y"), Note(text="z")])):
        with pytest.raises(errors.JournalClosed, match="closed before") as refused:
            await publishing
        assert "async with app" in refused.value.hint
    async with app:
        await app.publish(Note(text="opened again"))
    with pytest.raises(errors.JournalClosed):
        await app.publish(Note(text="x"))
    stop = asyncio.Event()
    stop.set()
    await app.run(stop)
    await app.publish(Note(text="opened to run"))
    await app.close()
    assert texts(stage) == ["opens by itself", "opened again", "opened to run"]


async def test_a_test_of_an_app_changes_nothing_of_its_life(stage: Stage) -> None:
    """`until_idle` opens and closes the app in a world of its own: closed or not, it is as before."""
    app = app_of(stage)
    await until_idle(app, [Note(text="in memory")])
    await app.publish(Note(text="opens by itself"))
    await app.close()
    await until_idle(app, [Note(text="in memory")])
    with pytest.raises(errors.JournalClosed):
        await app.publish(Note(text="x"))
    assert texts(stage) == ["opens by itself"]


async def test_an_app_that_runs_twice_in_one_process_handles_each_event_once(stage: Stage) -> None:
    """Two `run` at the same time share the partitions like two workers; both end when they are told."""
    seen: list[str] = []
    app = reading(stage, seen)
    app.place_in(World())
    stop = asyncio.Event()
    async with app:
        runs = [asyncio.create_task(app.run(stop)) for _ in range(2)]
        await app.publish([Note(text=str(n)) for n in range(100)])
        while len(seen) < 100:
            await asyncio.sleep(0.005)
        stop.set()
        assert await asyncio.gather(*runs) == [0, 0]
    assert sorted(seen, key=int) == [str(n) for n in range(100)]
    stage.until_idle(100)


async def test_a_close_under_a_running_worker_is_a_coded_error(stage: Stage) -> None:
    """Closing the journal under a worker ends the worker with an error that says so; a new one goes on."""
    seen: list[str] = []
    app = reading(stage, seen)
    app.place_in(World())
    await app.open()
    run = asyncio.create_task(app.run())
    await app.publish(Note(text="a"))
    while not seen:
        await asyncio.sleep(0.005)
    await app.close()
    with pytest.raises(errors.JournalClosed):
        await asyncio.wait_for(run, 20)
    async with app:
        await app.publish(Note(text="b"))
        rest = asyncio.create_task(app.run())
        while "b" not in seen:
            await asyncio.sleep(0.005)
        rest.cancel()
        await asyncio.gather(rest, return_exceptions=True)
    stage.until_idle(2)


def test_an_app_belongs_to_one_event_loop(stage: Stage) -> None:
    """A second loop is refused while the first has the app open; after a close it is welcome."""
    app = app_of(stage)
    with asyncio.Runner() as first, asyncio.Runner() as second:
        first.run(app.publish(Note(text="a")))
        with pytest.raises(errors.JournalLoopBound):
            second.run(app.publish(Note(text="b")))
        with pytest.raises(errors.JournalLoopBound):
            second.run(app.publish(Elsewhere(key="k")))  # a topic and a type that are new
        first.run(app.close())
        second.run(app.open())
        second.run(app.publish(Note(text="c")))
        second.run(app.close())
    assert texts(stage) == ["a", "c"]


async def test_a_publish_that_is_cancelled_is_whole_or_absent(stage: Stage) -> None:
    """Callers give up in the tick in which their units are written: no half unit, and the others succeed."""
    async with app_of(stage) as app:
        await app.publish(Note(text="warm"))
        tasks: list[asyncio.Task[Any]] = []
        for n in range(60):
            tasks.append(asyncio.create_task(app.publish([one(f"{n}-first"), one(f"{n}-last")])))
            for _ in range(n % 4):
                await asyncio.sleep(0)
            if n % 3 == 0:
                tasks[-1].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        await app.publish(Note(text="after"))
    cancelled = {n for n, result in enumerate(results) if isinstance(result, asyncio.CancelledError)}
    assert cancelled
    assert all(isinstance(result, list) for n, result in enumerate(results) if n not in cancelled)
    there = texts(stage)
    for n in range(60):
        pair = [f"{n}-first" in there, f"{n}-last" in there]
        assert pair[0] == pair[1]
        assert pair[0] or n in cancelled
    assert "after" in there


async def test_a_store_that_fails_once_fails_those_of_that_commit(stage: Stage) -> None:
    """A failing commit is told to each caller in it, nothing is written, the next publish goes through."""
    app = App("fault", settings=Settings(journal=str(stage.journal)))
    fails = FailAt("publish.inserted", errors.JournalUnavailable("It blinks.", path="x"), hit=2)
    app.place_in(World(faults=fails))
    async with app:
        await app.publish(Note(text="warm"))  # from here on what is published in one tick is one commit
        results = await asyncio.gather(
            *[app.publish(Note(text="a")) for _ in range(3)], return_exceptions=True
        )
        assert all(isinstance(result, errors.JournalUnavailable) for result in results)
        assert texts(stage) == ["warm"]
        await app.publish(Note(text="b"))
    assert texts(stage) == ["warm", "b"]


async def test_what_was_published_by_all_of_these_is_handled(stage: Stage) -> None:
    """After refusals in between, accounting still adds up and every accepted event is handled."""
    seen: list[str] = []
    async with reading(stage, seen) as app:
        await app.publish([one("a", A), one("b", B, A)])
        for refused in ([one("x", A)], [one("y", C, D)], [one("z", D, D)]):
            with pytest.raises(errors.EventError):
                await app.publish(refused)
        await handled(app)
    assert sorted(seen) == ["a", "b"]
    assert stage.look.idle(2)
