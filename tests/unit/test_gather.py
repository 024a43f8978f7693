"""Dynamic batching: how calls of a model are gathered, and what each caller gets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import pytest

from headrace import Label, errors
from headrace.runtime.gather import Ask, AskFromThread, Gather
from headrace.runtime.threads import Threads


class Recorder:
    """A model that notes its batches and answers twice the input; `gate` holds it until it is set."""

    name, digest = "recorder", "00"
    declared: str | None = None

    def __init__(self, answer: Callable[[list[Any]], list[Any]] | None = None) -> None:
        self.batches: list[list[Any]] = []
        self.gate = threading.Event()
        self.gate.set()
        self._answer = answer or (lambda inputs: [2 * one for one in inputs])

    def infer(self, inputs: Sequence[object]) -> list[object]:
        self.batches.append(list(inputs))
        assert self.gate.wait(20)
        return self._answer(list(inputs))

    def close(self) -> None:
        """Do nothing."""


def run(main: Callable[[Executor], Awaitable[None]]) -> None:
    """Run a test on a loop of its own, with one thread for the model."""

    async def whole() -> None:
        threads = Threads(1, "gather")
        try:
            await main(threads)
        finally:
            threads.shutdown()

    asyncio.run(whole())


def refuse(*poison: int) -> Callable[[list[Any]], list[Any]]:
    """Return a model's answer that fails for batches with one of these in them."""

    def answer(inputs: list[Any]) -> list[Any]:
        if bad := [one for one in inputs if one in poison]:
            raise errors.InputRefused(problem=f"{bad}")
        return [2 * one for one in inputs]

    return answer


def test_one_call_of_an_idle_model_does_not_wait() -> None:
    """It goes out alone, at once."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        gather = Gather(model, threads)
        assert await gather(4) == 8
        assert await gather(5) == 10
        assert model.batches == [[4], [5]]
        assert gather.sizes == {1: 2}

    run(main)


def test_calls_of_one_tick_go_together() -> None:
    """Handlers that ask side by side share a batch, and each gets its own answer."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        gather = Gather(model, threads)
        assert await asyncio.gather(*(gather(n) for n in range(10))) == [2 * n for n in range(10)]
        assert model.batches == [list(range(10))]

    run(main)


def test_calls_of_following_ticks_go_together() -> None:
    """While every tick brings another input the batch is not sent yet."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        gather = Gather(model, threads)
        calls = []
        for n in range(5):
            calls.append(gather(n))
            await asyncio.sleep(0)
        assert await asyncio.gather(*calls) == [0, 2, 4, 6, 8]
        assert model.batches == [[0, 1, 2, 3, 4]]

    run(main)


def test_a_busy_model_gathers() -> None:
    """What comes while a batch is in the model is the next batch."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        model.gate.clear()
        gather = Gather(model, threads)
        first = gather(0)
        while not model.batches:  # noqa: ASYNC110 - the thread is the judge
            await asyncio.sleep(0.001)
        later = []
        for n in range(1, 8):
            later.append(gather(n))
            await asyncio.sleep(0)
        assert len(model.batches) == 1
        model.gate.set()
        assert await asyncio.gather(first, *later) == [2 * n for n in range(8)]
        assert model.batches == [[0], list(range(1, 8))]

    run(main)


@pytest.mark.parametrize(("count", "sizes"), [(4, [4]), (5, [4, 1]), (12, [4, 4, 4])])
def test_a_full_batch_is_sent_and_the_rest_follows(count: int, sizes: list[int]) -> None:
    """No batch is larger than `batch_max`; order is kept and nothing is left behind."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        gather = Gather(model, threads, batch_max=4)
        found = await asyncio.gather(*(gather(n) for n in range(count)))
        assert found == [2 * n for n in range(count)]
        assert [len(batch) for batch in model.batches] == sizes

    run(main)


def test_with_a_wait_a_batch_that_is_not_full_waits() -> None:
    """Calls that come within `wait_ms` go together, though ticks without any lie between them."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        gather = Gather(model, threads, wait_ms=50.0)
        first = gather(1)
        for _ in range(5):
            await asyncio.sleep(0)
        assert await asyncio.gather(first, gather(2)) == [2, 4]
        assert model.batches == [[1, 2]]

    run(main)


def test_a_failing_batch_is_repeated_one_by_one() -> None:
    """Only the guilty fail, each with its own error; the neighbours get their answers."""

    async def main(threads: Executor) -> None:
        model = Recorder(refuse(1, 3))
        gather = Gather(model, threads)
        found = await asyncio.gather(*(gather(n) for n in range(5)), return_exceptions=True)
        assert [found[n] for n in (0, 2, 4)] == [0, 4, 8]
        assert all(isinstance(found[n], errors.InputRefused) and f"[{n}]" in str(found[n]) for n in (1, 3))
        assert model.batches == [[0, 1, 2, 3, 4], [0], [1], [2], [3], [4]]
        assert gather.sizes == {5: 1}

    run(main)


def test_a_model_that_raises_stop_iteration_fails_its_input_alone() -> None:
    """No future can carry it: the guilty would wait for its deadline, and all behind it in the batch."""

    def answer(inputs: list[Any]) -> list[Any]:
        if 1 in inputs:
            raise StopIteration
        return inputs

    async def main(threads: Executor) -> None:
        gather = Gather(Recorder(answer), threads)
        calls = asyncio.gather(*(gather(n) for n in range(3)), return_exceptions=True)
        found = await asyncio.wait_for(calls, 20)
        assert (found[0], found[2]) == (0, 2)
        assert "StopIteration" in str(found[1])

    run(main)


def test_a_single_call_that_fails_is_not_repeated() -> None:
    """Once is enough to know; the next call is served."""

    async def main(threads: Executor) -> None:
        model = Recorder(refuse(1))
        gather = Gather(model, threads)
        with pytest.raises(errors.InputRefused):
            await gather(1)
        assert await gather(2) == 4
        assert model.batches == [[1], [2]]

    run(main)


@pytest.mark.parametrize("many", [0, 1, 5])
def test_a_wrong_number_of_answers_is_no_answer(many: int) -> None:
    """Nobody gets a neighbour's result: `ModelOutput` names the model and both numbers."""

    async def main(threads: Executor) -> None:
        gather = Gather(Recorder(lambda inputs: [7] * (many if len(inputs) > 1 else 2)), threads)
        found = await asyncio.gather(*(gather(n) for n in range(3)), return_exceptions=True)
        assert [type(one) for one in found] == [errors.ModelOutput] * 3
        assert "2 results for 1 inputs" in str(found[0])
        assert "recorder" in str(found[0])

    run(main)


def test_a_cancelled_call_is_not_computed() -> None:
    """Who gave up while waiting costs no place in a batch; when all did, no batch is sent."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        gather = Gather(model, threads)
        calls = [gather(n) for n in range(3)]
        calls[1].cancel()
        assert await asyncio.gather(calls[0], calls[2]) == [0, 4]
        alone = gather(9)
        alone.cancel()
        await asyncio.sleep(0)
        assert await gather(5) == 10
        assert model.batches == [[0, 2], [5]]

    run(main)


def test_a_call_cancelled_in_the_model_does_not_disturb_the_others() -> None:
    """Its answer is dropped, theirs arrive."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        model.gate.clear()
        gather = Gather(model, threads)
        calls = [gather(n) for n in range(3)]
        while not model.batches:  # noqa: ASYNC110 - the thread is the judge
            await asyncio.sleep(0.001)
        calls[1].cancel()
        model.gate.set()
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert (found[0], found[2]) == (0, 4)
        assert isinstance(found[1], asyncio.CancelledError)

    run(main)


def test_the_model_of_a_handler_remembers_the_least_confidence() -> None:
    """The lowest of the answers so far; answers without one have no say."""

    async def main(threads: Executor) -> None:
        shares = {1: Label("a", 0.9), 2: Label("b", 0.4), 3: Label("c", 0.7), 4: "no label"}
        gather = Gather(Recorder(lambda inputs: [shares[one] for one in inputs]), threads)
        ask, other = Ask(gather), Ask(gather)
        assert ask.confidence is None
        assert await ask(4) == "no label"
        assert ask.confidence is None
        for n in (1, 2, 3):
            assert (await ask(n)) == shares[n]
        assert (ask.confidence, other.confidence) == (0.4, None)

    run(main)


def test_a_plain_handler_asks_from_its_thread() -> None:
    """Without `await`, with answers, errors and confidence as in the loop."""

    async def main(threads: Executor) -> None:
        model = Recorder(lambda inputs: [Label(f"{one}", 0.5) if one else 1 / 0 for one in inputs])
        ask = AskFromThread(Gather(model, threads), asyncio.get_running_loop())

        def handler() -> str:
            with pytest.raises(ZeroDivisionError):
                ask(0)
            return ask(1).name

        assert await asyncio.to_thread(handler) == "1"
        assert ask.confidence == 0.5

    run(main)


class Quick(Recorder):
    """A model that may be called on the loop; notes where it is called, and takes as long as it is told."""

    on_loop = True

    def __init__(self) -> None:
        super().__init__()
        self.threads: list[int] = []
        self.takes_s = self.now_s = 0.0

    def infer(self, inputs: Sequence[object]) -> list[object]:
        self.threads.append(threading.get_ident())
        self.now_s += self.takes_s
        return super().infer(inputs)

    def gather(self, threads: Executor) -> Gather:
        """Return a gatherer that measures by this model's own time."""
        found = Gather(self, threads)
        found._now = lambda: self.now_s
        return found


async def warm(gather: Gather) -> None:
    """Call a model until it is known to be quick."""
    for n in range(400):
        await gather(n)


def test_a_quick_model_is_called_on_the_loop() -> None:
    """Once it is known to take no longer than the way to a thread; a batch that would take longer is not."""

    async def main(threads: Executor) -> None:
        model, here = Quick(), threading.get_ident()
        gather = model.gather(threads)
        assert await gather(1) == 2
        assert model.threads[0] != here, "nothing is known of it yet"
        await warm(gather)
        assert model.threads[-1] == here
        model.takes_s = 0.02
        assert await gather(4) == 8
        assert model.threads[-1] == here
        assert await gather(5) == 10
        assert model.threads[-1] != here, "one slow batch is enough"

    run(main)


def test_a_model_that_does_not_allow_it_is_never_called_on_the_loop() -> None:
    """It may wait for something, or run a loop of its own."""

    async def main(threads: Executor) -> None:
        model = Quick()
        model.on_loop = False
        await warm(model.gather(threads))
        assert threading.get_ident() not in model.threads

    run(main)


def test_an_input_that_is_refused_on_the_loop_fails_alone() -> None:
    """As it does in a thread."""

    async def main(threads: Executor) -> None:
        model = Quick()
        gather = model.gather(threads)
        await warm(gather)
        model._answer = refuse(7)
        found = await asyncio.gather(*(gather(n) for n in (6, 7, 8)), return_exceptions=True)
        assert found[0] == 12
        assert isinstance(found[1], errors.InputRefused)
        assert found[2] == 16
        assert model.threads[-1] == threading.get_ident()

    run(main)


def test_a_call_that_nobody_can_join_is_sent_at_once() -> None:
    """Who runs the handlers knows that no other is about to call: no tick is waited for."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        gather = Gather(model, threads)
        gather.coming = lambda: False
        first, second = gather(1), gather(2)
        assert await asyncio.gather(first, second) == [2, 4]
        assert model.batches == [[1], [2]]

    run(main)


class Panic(BaseException):
    """What extensions written in Rust raise: no `Exception`."""


@pytest.mark.parametrize("coming", [True, False])
def test_what_a_model_raises_on_the_loop_reaches_who_has_asked(*, coming: bool) -> None:
    """Whatever it is, as from a thread: else a handler would wait for its deadline."""

    def answer(_inputs: list[Any]) -> list[Any]:
        raise Panic

    async def main(threads: Executor) -> None:
        model = Quick()
        gather = model.gather(threads)
        await warm(gather)
        gather.coming = lambda: coming
        normal, model._answer = model._answer, answer
        with pytest.raises(Panic):
            await asyncio.wait_for(gather(1), 20)
        model._answer = normal
        assert await asyncio.wait_for(gather(2), 20) == 4
        assert model.threads[-1] == threading.get_ident()

    run(main)


@pytest.mark.parametrize("fault", [Panic, asyncio.CancelledError, SystemExit])
def test_a_failure_of_any_kind_is_that_of_its_input_alone(fault: type[BaseException]) -> None:
    """What is no `Exception` fails no neighbour either."""

    def answer(inputs: list[Any]) -> list[Any]:
        if 1 in inputs:
            raise fault
        return inputs

    async def main(threads: Executor) -> None:
        gather = Gather(Recorder(answer), threads)
        calls = [gather(n) for n in range(3)]
        await asyncio.wait_for(asyncio.wait(calls), 20)
        assert (calls[0].result(), calls[2].result()) == (0, 2)
        with pytest.raises(fault):
            calls[1].result()

    run(main)


def test_a_batch_that_no_thread_can_take_fails() -> None:
    """Who asks a model that was put away is told so."""

    async def main(threads: Executor) -> None:
        gather = Gather(Recorder(), threads)
        threads.shutdown()
        for _ in range(2):
            with pytest.raises(RuntimeError):
                await asyncio.wait_for(gather(1), 20)

    run(main)


@pytest.mark.parametrize("together", [True, False])
def test_a_full_batch_does_not_wait(*, together: bool) -> None:
    """With a wait of a minute full batches go out at once, also those that stand behind another."""

    async def main(threads: Executor) -> None:
        model = Recorder()
        gather = Gather(model, threads, batch_max=4, wait_ms=60_000)
        calls = []
        for n in range(12):
            calls.append(gather(n))
            if not together:
                await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.gather(*calls), 20) == [2 * n for n in range(12)]
        assert [len(batch) for batch in model.batches] == [4, 4, 4]

    run(main)


def test_a_handler_that_asks_a_quick_model_again_and_again_lets_the_loop_turn() -> None:
    """A line of one key has nobody beside it: its calls, one after the other, must not hold the loop."""

    async def main(threads: Executor) -> None:
        model = Quick()
        gather = model.gather(threads)
        await warm(gather)
        gather.coming = lambda: False
        turns = 0

        async def turning() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        beside = asyncio.create_task(turning())
        for n in range(100):
            assert await gather(n) == 2 * n
        assert turns > 90
        beside.cancel()
        assert model.threads[-1] == threading.get_ident()

    run(main)
