"""Whether live work keeps its latency while a replay runs beside it.

The live chain is that of `latency.py`: published in one process, classified in a second, seen in a third, 500
events a second.  A fourth process runs history through the same model; in every other window it rests.  The
ratio is that of the p95 with a replay to the p95 without, window by window in turns; how much history went
through is beside it.
"""

from __future__ import annotations

import asyncio
import multiprocessing
from argparse import Namespace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

from _hops import BATCH_MAX, MODEL, Window, calm_collector, texts
from _measure import median, options, ratio, report, say, scratch
from latency import SIDES, WARM_S, WINDOW_S, Routed, Ticket, answer, app_of, chain, quantiles

from headrace import App, Model
from headrace.ports.replay import Order, ReplayPlan
from headrace.runtime.replay import ReplayWorker

TARGETS = {"ratio": "<= 1.2"}
#: Events that are there before: more than a replay gets through in a window.
HISTORY = 30_000
UNIT = 500


def support(path: Path) -> App:
    """Return the app whose handler is live in one process and replays in another."""
    app = app_of("support", path)

    @app.handler(model=Model.onnx(MODEL, batch_max=BATCH_MAX))
    async def route(ticket: Ticket, model) -> Routed:
        label = await model(ticket.text)
        return Routed(customer=ticket.customer, intent=label.name, sent_ns=ticket.sent_ns)

    return app


def fill(path: Path, count: int) -> None:
    """Make a history, and handle it."""

    async def main() -> None:
        app = support(path)
        async with app:
            told = texts(count)
            for start in range(0, count, UNIT):
                unit = [
                    Ticket(customer=who, text=text, sent_ns=0) for who, text in told[start : start + UNIT]
                ]
                await app.publish(unit)
            worker, stop = app.worker(), asyncio.Event()
            await worker.start()
            serving = asyncio.create_task(worker.run(stop))
            while sum(server.finished for server in worker.servers) < count:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.05)
            stop.set()
            await serving

    asyncio.run(main())


def replay(path: Path, pipe: Connection) -> None:
    """Fourth process: from one word to the next it replays under a ledger of its own, then it rests."""

    async def main() -> None:
        loop, turn = asyncio.get_running_loop(), 0
        app = support(path)
        calm_collector()
        async with app:
            pipe.send(None)
            while await loop.run_in_executor(None, heard, pipe):
                turn += 1
                order = Order(handler="support.route", topic="tickets", side="trial", again=f"turn-{turn}")
                worker, stop = ReplayWorker(app.worker(), order), asyncio.Event()
                begun = await worker.begin()
                assert not isinstance(begun, ReplayPlan), "there is history"
                pipe.send(None)
                running = asyncio.create_task(worker.until_done(stop, lambda _: None))
                await loop.run_in_executor(None, heard, pipe)
                state = await worker.state()
                stop.set()
                await running
                pipe.send((state.done, state.complete))

    asyncio.run(main())


def heard(pipe: Connection) -> bool:
    """Wait for a word; ``False`` when the run is over."""
    try:
        pipe.recv()
    except (EOFError, OSError):
        return False
    return True


def measure(folder: Path, given: Namespace) -> dict[str, object]:
    """Return the result."""
    windows = max(1, round(given.seconds / WINDOW_S))
    window = Window(int((WARM_S + given.seconds / windows) * given.rate), given.rate)
    warm = int(WARM_S * given.rate)
    p95: dict[bool, list[float]] = {False: [], True: []}
    p50: dict[bool, list[float]] = {False: [], True: []}
    replayed: list[float] = []
    context = multiprocessing.get_context("spawn")
    _, parts = SIDES["ours"]
    with chain({"live": (partial(fill, count=given.events), parts)}, "live", folder, window, warm) as live:
        live.run(window)
        live.take()
        mine, theirs = context.Pipe()
        process = context.Process(target=replay, args=(folder / "live", theirs), daemon=True)
        process.start()
        theirs.close()
        answer(mine, window)
        for turn in range(given.rounds):
            took: dict[bool, list[float]] = {False: [], True: []}
            for number in range(windows):
                for beside in (False, True) if (turn + number) % 2 == 0 else (True, False):
                    if beside:
                        mine.send(None)
                        answer(mine, window)
                    live.run(window)
                    if beside:
                        mine.send(None)
                        done, complete = answer(mine, window)
                        assert not complete, "the history is too short: --events"
                        replayed.append(done * given.rate / window.events)
                    took[beside] += live.take()[0]
            for beside, figures in took.items():
                p95[beside].append(quantiles(figures)[95])
                p50[beside].append(quantiles(figures)[50])
            said = f"without {p95[False][-1]:.2f} ms, with {p95[True][-1]:.2f} ms"
            say(f"round {turn + 1} of {given.rounds}: p95 {said}, {replayed[-1]:,.0f} replayed a second")
        mine.close()
        process.join(20)
        process.kill()
    return {
        "p95_ms": median(p95[False]),
        "with_replay_p95_ms": median(p95[True]),
        "p50_ms": median(p50[False]),
        "with_replay_p50_ms": median(p50[True]),
        "ratio": ratio(p95[True], p95[False]),
        "replayed_per_s": median(replayed),
        "rate_per_s": given.rate,
        "rounds": given.rounds,
    }


def main() -> None:
    """Measure and print."""
    given = options(__doc__, rounds=5, seconds=8.0, rate=500, events=HISTORY)
    with scratch(given.folder) as folder:
        result = measure(folder, given)
    report(result, TARGETS, as_json=given.json)


if __name__ == "__main__":
    main()
