"""Runs the example app on a stream of messages that keeps pace with its worker, and measures."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count as count_from
from itertools import islice

from headrace import App
from headrace.demo import messages
from headrace.demo.app import Ticket, app
from headrace.journal.progress import progress, topics
from headrace.journal.reader import Reader
from headrace.journal.verify import verify
from headrace.ports import BatchReport
from headrace.ports.look import Progress, Violation
from headrace.world import SystemClock

#: Messages of one publish, and messages under way: few enough that none waits in a line before the model,
#: enough that the model gets its batches and commits are shared.
CHUNK, WINDOW = 16, 32
#: A look at the journal when nothing was heard for so long: another worker may share it.
SILENCE_S = 0.25

ROUTE = f"{app.name}.route"


@dataclass(slots=True)
class Report:
    """What a run came to."""

    journal: str
    seconds: float
    #: Publish to commit of the model's answer, one number per message, in microseconds.
    latencies_us: list[int]
    published: int = 0
    handled: int = 0
    emitted: int = 0
    dead: int = 0
    escalated: int = 0
    model_version: str = ""
    intents: Counter[str] = field(default_factory=Counter[str])
    #: The id of a message that went through the whole chain.
    example: str = ""
    violations: list[Violation] = field(default_factory=list[Violation])

    def percentile_ms(self, share: float) -> float:
        """Return the latency that a share of the messages did not exceed."""
        if not self.latencies_us:
            return 0.0
        ordered = sorted(self.latencies_us)
        return round(ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1000, 3)


class Watcher:
    """Counts what the worker of this process commits."""

    def __init__(self) -> None:
        self.finished: Counter[str] = Counter()
        self.latencies_us: list[int] = []
        self.changed = asyncio.Event()

    def committed(self, report: BatchReport) -> None:
        """Take note of one committed outcome."""
        self.finished[report.handler] += len(report.latencies_us) + report.dead
        if report.handler == ROUTE:
            self.latencies_us += report.latencies_us
        self.changed.set()

    async def heard(self) -> None:
        """Return on the next commit, or after a silence."""
        self.changed.clear()
        with suppress(TimeoutError):
            await asyncio.wait_for(self.changed.wait(), SILENCE_S)


async def run(journal: str, count: int, progressed: Callable[[int], None]) -> Report:
    """Publish so many messages while a worker in this process handles them; returns when all are handled.

    ``progressed`` is told how many are.  However this ends, the journal is left whole: what was published
    and not handled is handled by the next run.
    """
    app.configure({"journal": journal})
    watcher, stop = Watcher(), asyncio.Event()
    async with app:
        serving = asyncio.create_task(app.run(stop, observer=watcher))
        streaming = asyncio.create_task(_stream(journal, count, watcher, progressed))
        try:
            await asyncio.wait({serving, streaming}, return_when=asyncio.FIRST_COMPLETED)
            if serving.done():  # it ends by itself only with an error
                serving.result()
            report = await streaming
        finally:
            streaming.cancel()
            stop.set()
            await asyncio.wait({serving})
        serving.result()
    reader = Reader(journal)
    try:
        report.violations = verify(reader)
    finally:
        reader.close()
    return report


async def _stream(journal: str, count: int, watcher: Watcher, progressed: Callable[[int], None]) -> Report:
    clock = SystemClock()
    reader = Reader(journal)
    try:
        await _settled(reader, watcher)  # an earlier run on this journal may have been interrupted
        before, last = _counts(reader), reader.last_offset()
        watcher.finished.clear()
        watcher.latencies_us.clear()
        started_ns = clock.boot_ns()
        await _publish(app, count, watcher, progressed)
        await _settled(reader, watcher)
        seconds = (clock.boot_ns() - started_ns) / 1e9
        after = _counts(reader)
        counts = {name: count - before[name] for name, count in after.items()}
        report = Report(
            journal, seconds, watcher.latencies_us, counts["published"], counts["handled"],
            counts["emitted"], counts["dead"], counts["escalated"],
        )  # fmt: skip
        _read_results(reader, last, report)
        return report
    finally:
        reader.close()


async def _publish(app: App, count: int, watcher: Watcher, progressed: Callable[[int], None]) -> None:
    """Publish in chunks, so many ahead of the worker and no more."""
    source, published = _messages(), 0
    while published < count:
        some = islice(source, min(CHUNK, count - published))
        chunk = [Ticket(customer=customer, text=text) for customer, text in some]
        await app.publish(chunk)
        published += len(chunk)
        if published - watcher.finished[ROUTE] > WINDOW - CHUNK:
            await watcher.heard()
        progressed(watcher.finished[ROUTE])


def _messages() -> Iterator[tuple[str, str]]:
    """Yield messages without end."""
    for seed in count_from(1):
        yield from messages.messages(messages.COUNT_MAX, seed)


async def _settled(reader: Reader, watcher: Watcher) -> None:
    """Return when every handler of the app has finished what there is."""
    while True:
        found = _subscriptions(reader)
        if len(found) == len(app.handlers) and not any(one.waiting or one.running for one in found):
            return
        await watcher.heard()


def _subscriptions(reader: Reader) -> list[Progress]:
    return [one for one in progress(reader, SystemClock()) if one.handler in app.handlers]


def _counts(reader: Reader) -> dict[str, int]:
    """Return the journal's own accounting, of all runs."""
    held = {topic.name: topic.events for topic in topics(reader)}
    found = {one.handler: one for one in _subscriptions(reader)}
    route = found[ROUTE]
    escalated = held.get("escalated", 0)
    return {
        "published": route.published,
        "handled": route.done + route.dead,
        "emitted": held.get("routed", 0) + escalated,
        "dead": sum(one.dead for one in found.values()),
        "escalated": escalated,
    }


def _read_results(reader: Reader, last: int, report: Report) -> None:
    """Look through what was emitted: intents, the model, an example of a whole chain."""
    while page := reader.events(after=last):
        for event in page:
            if event.envelope.type == "Routed":
                report.intents[json.loads(event.payload)["intent"]] += 1
                report.model_version = event.envelope.model or ""
            elif event.envelope.type == "Escalated":
                report.example = str(event.envelope.causality_id)
        last = page[-1].envelope.offset
