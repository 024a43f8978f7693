"""Which outcomes are committed together, while threads go on handling."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from headrace import errors
from headrace.gate.rate import Rate
from headrace.ports import Batch, Row, VersionInfo
from headrace.runtime.flight import Flight, Landing
from headrace.runtime.rhythm import Rhythm
from headrace.runtime.server import IDLE_S, Server
from headrace.runtime.window import LITTLE
from headrace.testing import ManualClock


def flight_of(*offsets: int) -> Flight:
    """Return a batch whose events are being handled."""
    rows: list[Row] = [(offset, 1, b"", offset, 0, b"", b"") for offset in offsets]
    batch = Batch(1, cast("VersionInfo", None), rows, token=None)
    return Flight(cast("Any", None), batch, None, lambda: 0.5, left=len(rows))


def finish(flight: Flight) -> None:
    """Note the next event of a flight as done."""
    flight.outcome.done.append(flight.unfinished()[0])
    flight.left -= 1


class Threaded:
    """In place of the pipeline: threads finish one event of each flight just before it is asked."""

    def collect(self, flights: list[Flight]) -> list[Landing]:
        for flight in [first, second]:
            finish(flight)
        return [Landing(one, one.collect({}), complete=not one.left) for one in flights]


first, second = flight_of(1), flight_of(2, 3, 4)


def test_a_server_whose_last_flight_has_ended_sleeps() -> None:
    """The look at deadlines, which is overdue by then, does not wake it again and again."""
    clock, looks = ManualClock(), list[int]()
    server = Server.__new__(Server)
    server._clock, server._flights, server._rhythm = clock, [flight_of(1)], Rhythm(clock)
    nothing = SimpleNamespace(claims_apart=False, more=lambda: False)
    server._claimed, server.consumer, server._rate = deque(), cast("Any", nothing), Rate(None)
    server._writing = None
    server._deadline = cast("Any", SimpleNamespace(interval_s=0.5, look=lambda: looks.append(1)))
    server._watch_deadlines()
    server._flights.clear()
    clock.advance(10)

    server._watch_deadlines()

    assert (len(looks), server._patience_s()) == (1, IDLE_S)


def test_what_ends_while_flights_are_chosen_keeps_its_order() -> None:
    """An event that ends in an older batch is committed no later than those of its key behind it."""
    clock, landed = ManualClock(), list[list[int]]()

    async def land(landings: list[Landing]) -> None:
        landed.append(sorted(offset for one in landings for offset in one.outcome.offsets()))

    server = Server.__new__(Server)
    server._clock, server._flights, server.pipeline = clock, [first, second], cast("Any", Threaded())
    server._writing, server.consumer = None, cast("Any", SimpleNamespace(claims_apart=False))
    server._land = land  # type: ignore[method-assign]
    server._settle_after_ms = 10.0
    second.begin(clock.boot_ns)
    finish(second)
    clock.advance(1)

    assert asyncio.run(server._land_ripe())
    assert landed == [[1, 2, 3]]


class Finished:
    """In place of the pipeline: all that is in hand has come to its end."""

    def collect(self, flights: list[Flight]) -> list[Landing]:
        for one in flights:
            one.outcome.done += one.unfinished()
        return [Landing(one, one.collect({}), complete=True) for one in flights]


def test_a_large_outcome_is_written_while_more_is_claimed() -> None:
    """Where claims are no part of a transaction; the next is written after it, and a fault of it is heard."""

    async def landing(count: int, *, apart: bool) -> tuple[bool, bool, str]:
        server, over = Server.__new__(Server), asyncio.Event()

        async def land(_landings: list[Landing]) -> None:
            await over.wait()
            raise errors.JournalUnavailable("no broker", path="")

        server._land = land  # type: ignore[method-assign]
        server._clock, server.pipeline, server._writing = ManualClock(), cast("Any", Finished()), None
        server._flights, server._settle_after_ms = [flight_of(*range(count))], 10.0
        server._flights[0].left = 0
        told = SimpleNamespace(claims_apart=apart, wake=lambda: None)
        server.consumer = cast("Any", told)
        begun = asyncio.create_task(server._land_ripe())
        await asyncio.sleep(0.01)
        at_once, again = begun.done(), False
        if at_once:
            again = await server._land_ripe()
        over.set()
        try:
            await begun
            await asyncio.sleep(0)
            await server._land_ripe()
        except errors.JournalUnavailable:
            return at_once, again, "heard"
        return at_once, again, ""

    assert asyncio.run(landing(LITTLE + 1, apart=True)) == (True, False, "heard")
    assert asyncio.run(landing(LITTLE, apart=True)) == (False, False, "heard"), "little is soon written"
    assert asyncio.run(landing(LITTLE + 1, apart=False)) == (False, False, "heard")


def test_what_is_written_no_longer_lets_claims_go_first() -> None:
    """Whether anybody has asked what became of it or not: little that is finished is written before more."""

    async def lands_first() -> list[bool]:
        server, clock = Server.__new__(Server), ManualClock()
        server._clock, server._flights, server._launched_ns = clock, [flight_of(1)], 0
        server.consumer = cast("Any", SimpleNamespace(claims_apart=True))
        server._flights[0].left = 0
        over = asyncio.Event()

        async def write() -> None:
            await over.wait()

        server._writing = asyncio.create_task(write())
        found = [server._lands_first()]
        over.set()
        await server._writing
        return [*found, server._lands_first()]

    assert asyncio.run(lands_first()) == [False, True]
