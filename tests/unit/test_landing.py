"""Which outcomes are committed together, while threads go on handling."""

from __future__ import annotations

import asyncio
from collections import deque
from types import SimpleNamespace
from typing import Any, cast

from headrace.gate.rate import Rate
from headrace.ports import Batch, Row, VersionInfo
from headrace.runtime.flight import Flight, Landing
from headrace.runtime.rhythm import Rhythm
from headrace.runtime.server import IDLE_S, Server
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
    server._land = land  # type: ignore[method-assign]
    server._settle_after_ms = 10.0
    second.begin(clock.boot_ns)
    finish(second)
    clock.advance(1)

    assert asyncio.run(server._land_ripe())
    assert landed == [[1, 2, 3]]
