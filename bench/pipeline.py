"""What handling costs in memory, against the least it could cost.

Floor: JSON bytes -> pydantic -> handler -> JSON bytes, with two plain pydantic models and their public API.
Ours: a claimed batch -> `Pipeline.start` -> the collected outcome: envelopes decoded and made, input hash,
derived id, key and partition included, with the codec of the SQLite journal. No disk on either side.

A handler that suspends (``asyncio.sleep(0)``) is measured too. `ratio_suspending` sets it against the floor
of a handler that does not suspend; `ratio_suspending_alike` against one that gathers handlers that do.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from _measure import Side, calm_collector, in_turns, median, options, ratio, report
from pydantic import BaseModel

from headrace import App, Event
from headrace.demo.messages import messages
from headrace.ports import Batch, Outcome
from headrace.runtime.server import CLAIM_MAX, Server
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
            await self._consumer.settle(batch, await self._handle(batch))

    async def _handle(self, batch: Batch) -> Outcome:
        flight = await self._pipeline.start(self._plan, batch, None)
        while flight.left:
            await self._consumer.wait(PATIENCE_S)
        outcome, complete = self._pipeline.collect(flight)
        assert complete
        return outcome

    async def run(self) -> None:
        """Handle every batch; what comes of it is complete, and then dropped."""
        for batch in self.batches:
            outcome = await self._handle(batch)
            assert len(outcome.done) == len(outcome.emitted) == len(batch.rows)


async def floor(bodies: list[list[bytes]]) -> None:
    """Do the least that could be done, one event after the other."""
    for batch in bodies:
        out = []
        for body in batch:
            made = await plain(PlainTicket.model_validate_json(body))
            out.append(made.model_dump_json().encode())
        assert len(out) == len(batch)


async def floor_later(bodies: list[list[bytes]]) -> None:
    """The same for a handler that suspends: those of a batch wait together."""

    async def one(body: bytes) -> bytes:
        return (await plain_later(PlainTicket.model_validate_json(body))).model_dump_json().encode()

    for batch in bodies:
        assert len(await asyncio.gather(*[one(body) for body in batch])) == len(batch)


def timed(run: Callable[[], Awaitable[None]], events: int) -> Side:
    """Return a side that tells the microseconds of one event."""

    async def side() -> float:
        begin = time.perf_counter()
        await run()
        return (time.perf_counter() - begin) / events * 1e6

    return side


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
        assert sum(map(len, bodies)) == events
        calm_collector()
        ways: dict[str, Side] = {
            "floor": timed(lambda: floor(bodies), events),
            "ours": timed(sides[0].run, events),
            "floor_later": timed(lambda: floor_later(bodies), events),
            "ours_later": timed(sides[1].run, events),
        }
        await in_turns(ways, 1)  # warm
        found = await in_turns(ways, rounds)
        await worker.finish()
    return {
        "floor_us": median(found["floor"]),
        "headrace_us": median(found["ours"]),
        "ratio": ratio(found["ours"], found["floor"]),
        "ratio_suspending": ratio(found["ours_later"], found["floor"]),
        "ratio_suspending_alike": ratio(found["ours_later"], found["floor_later"]),
        "floor_suspending_us": median(found["floor_later"]),
        "headrace_suspending_us": median(found["ours_later"]),
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
