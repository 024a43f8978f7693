"""What handling costs in memory, against the least it could cost.

Floor: JSON bytes -> pydantic -> handler -> JSON bytes, with two plain pydantic models and their public API.
Ours: a claimed batch -> `Pipeline.start` -> the collected outcome: envelopes decoded and made, input hash,
derived id, key and partition included, with the codec of the SQLite journal. No disk on either side.

A handler that suspends (``asyncio.sleep(0)``) is measured too. `ratio_suspending` sets it against the floor
of a handler that does not suspend; `ratio_suspending_alike` against one that gathers handlers that do.

The sides take turns batch by batch.  Neither side ever waits, so what is measured is the processor time of
the thread: a neighbour that takes the core for a while is not charged to the side that ran then.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable

from _measure import Side, calm_collector, in_turns, median, options, ratio, report
from pydantic import BaseModel

from headrace import App, Event
from headrace.demo.messages import messages
from headrace.ports import Batch, Outcome
from headrace.runtime.server import Server
from headrace.runtime.window import CLAIM_MAX
from headrace.settings import Settings

TARGETS = {"ratio": "<= 2.0", "ratio_suspending": "<= 3.0", "ratio_suspending_alike": "<= 3.0"}
PATIENCE_S = 10.0


class Ticket(Event, topic="tickets", key="customer"):
    """What is stored."""

    customer: str
    text: str


class Routed(Event, topic="routed", key="customer"):
    """What follows from it."""

    customer: str
    intent: str


app = App("support", settings=Settings(journal=":memory:"))


@app.handler
async def route(ticket: Ticket) -> Routed:
    """Return one event."""
    return Routed(customer=ticket.customer, intent="translate")


@app.handler
async def route_later(ticket: Ticket) -> Routed:
    """Suspend, and return one event."""
    await asyncio.sleep(0)
    return Routed(customer=ticket.customer, intent="translate")


class PlainTicket(BaseModel):
    """The same without Headrace."""

    customer: str
    text: str


class PlainRouted(BaseModel):
    """The same without Headrace."""

    customer: str
    intent: str


async def plain(ticket: PlainTicket) -> PlainRouted:
    """Do the same."""
    return PlainRouted(customer=ticket.customer, intent="translate")


async def plain_later(ticket: PlainTicket) -> PlainRouted:
    """Suspend, and do the same."""
    await asyncio.sleep(0)
    return PlainRouted(customer=ticket.customer, intent="translate")


class Ours:
    """One handler of the app as its worker would run it, with the batches that it claims."""

    def __init__(self, server: Server) -> None:
        self._consumer, self._pipeline = server.consumer, server.pipeline
        assert server.versions.serving is not None
        self._plan = server.versions.serving.plan
        self.batches: list[Batch] = []

    async def claim_all(self) -> None:
        """Claim and settle the backlog, and keep the batches."""
        await self._consumer.balance()
        while batch := await self._consumer.take(CLAIM_MAX, self._plan.version):
            self.batches.append(batch)
            await self._consumer.settle([(batch, await self._handle(batch))])

    async def _handle(self, batch: Batch) -> Outcome:
        flight = await self._pipeline.start(self._plan, batch, None)
        while flight.left:
            await self._consumer.wait(PATIENCE_S)
        (landing,) = self._pipeline.collect([flight])
        return landing.outcome

    async def run(self, number: int) -> None:
        """Handle a batch; what comes of it is complete, and then dropped."""
        batch = self.batches[number]
        outcome = await self._handle(batch)
        assert len(outcome.done) == len(outcome.emitted) == len(batch.rows)


async def floor(bodies: list[bytes]) -> None:
    """Do the least that could be done, one event after the other."""
    out = []
    for body in bodies:
        made = await plain(PlainTicket.model_validate_json(body))
        out.append(made.model_dump_json().encode())
    assert len(out) == len(bodies)


async def floor_later(bodies: list[bytes]) -> None:
    """The same for a handler that suspends: those of a batch wait together."""

    async def one(body: bytes) -> bytes:
        return (await plain_later(PlainTicket.model_validate_json(body))).model_dump_json().encode()

    assert len(await asyncio.gather(*[one(body) for body in bodies])) == len(bodies)


def timed(run: Callable[[int], Awaitable[None]], sizes: list[int]) -> Side:
    """Return a side that handles one batch after the other, and tells the microseconds of one event."""
    numbers = itertools.cycle(range(len(sizes)))

    async def side() -> float:
        number = next(numbers)
        begin = time.thread_time()
        await run(number)
        return (time.thread_time() - begin) / sizes[number] * 1e6

    return side


async def warm_then_measured(ways: dict[str, Side], rounds: int, sizes: list[int]) -> dict[str, list[float]]:
    """Run the sides in turns, batch by batch; what the first round comes to is dropped."""
    await in_turns(ways, len(sizes), quiet=True)
    return await in_turns(ways, rounds * len(sizes), quiet=True)


async def measure(rounds: int, events: int) -> dict[str, object]:
    """Return the result."""
    async with app:
        told = messages(events)
        await app.publish([Ticket(customer=customer, text=text) for customer, text in told])
        worker = app.worker()
        await worker.start(keep=False)
        sides = [Ours(server) for server in worker.servers]
        for ours in sides:
            await ours.claim_all()
        bodies = [[row[6] for row in batch.rows] for batch in sides[0].batches]
        sizes = [len(batch) for batch in bodies]
        assert sizes == [len(batch.rows) for batch in sides[1].batches]
        assert sum(sizes) == events
        calm_collector()
        plain_floor = timed(lambda number: floor(bodies[number]), sizes)
        later_floor = timed(lambda number: floor_later(bodies[number]), sizes)
        # One handler after the other, each beside its floor: the interpreter adapts its code to what runs.
        at_once = {"floor": plain_floor, "ours": timed(sides[0].run, sizes)}
        later = {"floor": plain_floor, "floor_later": later_floor, "ours": timed(sides[1].run, sizes)}
        found = await warm_then_measured(at_once, rounds, sizes)
        found_later = await warm_then_measured(later, rounds, sizes)
        await worker.finish()
    return {
        "floor_us": median(found["floor"]),
        "headrace_us": median(found["ours"]),
        "ratio": ratio(found["ours"], found["floor"]),
        "ratio_suspending": ratio(found_later["ours"], found_later["floor"]),
        "ratio_suspending_alike": ratio(found_later["ours"], found_later["floor_later"]),
        "floor_suspending_us": median(found_later["floor_later"]),
        "headrace_suspending_us": median(found_later["ours"]),
        "events": events,
        "batch": CLAIM_MAX,
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    given = options(__doc__, rounds=21, events=8_192)
    report(asyncio.run(measure(given.rounds, given.events)), TARGETS, as_json=given.json)


if __name__ == "__main__":
    main()
