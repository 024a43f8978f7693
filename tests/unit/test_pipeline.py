"""The way of one event: what is done ahead for a batch, and how many walkers a handler gets."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextvars import copy_context
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import field_validator

from headrace import App, Event
from headrace.runtime import admission, gather
from headrace.runtime.pipeline import WALKERS_ENOUGH, Pipeline
from headrace.testing import EchoModel, Result, run_until_idle

decoded: Counter[int] = Counter()


class Step(Event, topic="steps"):
    """Has a validator that counts, and raises for some numbers when they come from the journal."""

    n: int
    text: str = ""

    @field_validator("n")
    @classmethod
    def counted(cls, value: int) -> int:
        """Count."""
        decoded[value] += 1
        if refused and value in refused:
            raise raised("a validator that fails by itself")
        return value


class Plain(Event, topic="made", key="who"):
    """Is derived later, with all others of its batch."""

    who: str
    n: int


class Deep(Event, topic="made", key="who"):
    """Is derived at once."""

    who: str
    n: int
    tags: tuple[str, ...] = ()


class Asked(Event, topic="asked", key="who"):
    """Asks a model."""

    who: str


refused: set[int] = set()
raised: type[BaseException] = ZeroDivisionError


def handled(app: App, count: int, *, text: str = "", refuse: tuple[int, ...] = ()) -> Result:
    """Publish steps as one unit and handle them."""
    refused.clear()
    steps = [Step(n=n, text=text) for n in range(count)]
    refused.update(refuse)
    decoded.clear()
    return run_until_idle(app, *steps)


def test_an_event_is_decoded_once() -> None:
    """What was decoded ahead is what the handler gets."""
    seen: list[int] = []
    steps = App("steps")

    @steps.handler
    async def see(step: Step) -> None:
        seen.append(step.n)

    handled(steps, 50)
    assert sorted(seen) == list(range(50))
    assert set(decoded.values()) == {1}


@pytest.mark.parametrize("fault", [ZeroDivisionError, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_one_that_cannot_be_decoded_is_alone_with_it(
    fault: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A validator that raises takes only its own event with it, not those that were claimed with it."""
    monkeypatch.setattr(sys.modules[__name__], "raised", fault)
    seen: list[int] = []
    steps = App("steps")

    @steps.handler
    async def see(step: Step) -> None:
        seen.append(step.n)

    result = handled(steps, 20, refuse=(3, 7))
    assert sorted(seen) == [n for n in range(20) if n not in (3, 7)]
    assert len(result.dead) == 2
    assert {decoded[n] for n in seen} == {1}


def test_large_payloads_wait_for_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events take more room than their payloads: of many bytes only one at a time is decoded."""
    monkeypatch.setattr(admission, "AHEAD_BYTES_MAX", 1_000)
    most = 0
    steps = App("steps")

    @steps.handler
    async def see(step: Step) -> None:
        nonlocal most
        most = max(most, len(decoded) - step.n)

    handled(steps, 20, text="x" * 100)
    assert most == 1


@pytest.mark.parametrize(("turns", "expected"), [(1, WALKERS_ENOUGH), (200, 64)], ids=["loop", "world"])
def test_walkers_are_added_while_something_is_waited_for(turns: int, expected: int) -> None:
    """A handler that only gives the loop a turn needs few; one that waits gets all of its concurrency."""
    running, most = 0, 0
    steps = App("steps")

    @steps.handler(concurrency=64)
    async def see(step: Step) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(turns):
            await asyncio.sleep(0)
        running -= 1

    handled(steps, 500)
    assert most == expected


def test_walkers_in_the_middle_of_their_lines_ask_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """When nobody is left to begin, those that are at it still share each call of the model."""
    sizes: list[int] = []
    infer = gather._infer
    monkeypatch.setattr(
        gather, "_infer", lambda model, inputs: sizes.append(len(inputs)) or infer(model, inputs)
    )
    asking = App("asking")

    @asking.handler(model=EchoModel(str.upper))
    async def ask(asked: Asked, model: Any) -> None:
        await model(asked.who)

    run_until_idle(asking, *[Asked(who=f"c{n % 8}") for n in range(80)])
    assert sum(sizes) == 80
    assert min(sizes) > 1


class Full(Executor):
    """A pool whose threads are all taken, until it is closed."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Keep the job."""
        self.asked.append(args)
        return Future()


def test_a_walker_that_never_gets_a_thread_leaves_nothing_to_be_awaited() -> None:
    """Its coroutine is made in the thread: one made before would be dropped with a warning at a stop."""
    pool, walkers = Full(), 2

    async def add() -> None:
        pipeline: Any = Pipeline.__new__(Pipeline)
        pipeline._lines, pipeline._concurrency = SimpleNamespace(ready=[[]] * walkers), walkers
        pipeline._threads, pipeline._loop = pool, asyncio.get_running_loop()
        pipeline._context, pipeline.slots, pipeline._ramping = copy_context(), set(), True
        pipeline._add_walkers(walkers)

    asyncio.run(add())
    assert len(pool.asked) == walkers
    assert not any(inspect.iscoroutine(one) for job in pool.asked for one in job)


def test_what_follows_keeps_the_order_of_its_causes() -> None:
    """Of one key, whatever the handler returns: one event or a list, of plain fields or not."""
    mixed = App("mixed")
    ways: list[Callable[[int], Any]] = [
        lambda n: Plain(who="a", n=n),
        lambda n: [Plain(who="a", n=n)],
        lambda n: Deep(who="a", n=n),
        lambda n: [Plain(who="a", n=n), Deep(who="a", n=n)],
    ]

    @mixed.handler
    async def make(step: Step) -> list[Plain | Deep]:
        made: list[Plain | Deep] = ways[step.n % len(ways)](step.n)
        return made

    # One key: the steps have none, and one walker takes them in order.
    result = handled(mixed, 40)
    numbers = [json.loads(one.payload)["n"] for one in result.events[40:]]
    assert numbers == sorted(numbers)
    assert len(numbers) == 50


def test_slow_validators_are_not_run_ahead_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody watches a deadline meanwhile: after a while the rest waits for its turn."""
    monkeypatch.setattr(admission, "AHEAD_NS_MAX", -1)
    most = 0
    steps = App("steps")

    @steps.handler
    async def see(step: Step) -> None:
        nonlocal most
        most = max(most, len(decoded) - step.n)

    handled(steps, 100)
    assert most == admission.AHEAD_LOOK
