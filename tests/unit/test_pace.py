"""A replay gives way: little at a time beside live work, a rest after each batch, never beyond its rate."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.ports import Attempt, Batch, DeadLetter, Outcome, Settled, VersionInfo
from headrace.runtime.replay import (
    BATCH_BESIDE_LIVE_MAX,
    BATCH_MAX,
    REST_MS_MAX,
    REST_TIMES,
    YIELD_MS_MAX,
    Pace,
)
from headrace.testing import ManualClock

VERSION = VersionInfo(1, "app.handler", "1", None, None, None)


class Endless:
    """A consumer that always has something; and the journal's word on live work."""

    claims_apart, settle_after_ms = False, 10.0

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.taken = self.running = 0
        #: Refused outcomes: their ids are taken.
        self.conflicts: dict[int, bytes] = {}

    async def take(self, limit: int, version: VersionInfo) -> Batch:
        """Give as much as is asked for."""
        self.asked.append(limit)
        row: Any = (1, 1, b"", None, 0, None, b"")
        return Batch(1, version, [row] * limit)

    async def settle(self, parts: Any, *, limit: int = 0) -> list[Settled]:
        """Take note of nothing."""
        assert limit == 0, "the next batch is claimed by itself"
        conflicts, self.conflicts = self.conflicts, {}
        return [Settled(frozenset(), conflicts, None) for _ in parts]

    async def live_load(self) -> tuple[int, int]:
        """Return what live has taken, and has in hand."""
        return self.taken, self.running

    def more(self) -> bool:
        """There is always more."""
        return True


def pace(rate: float | None = None) -> tuple[Pace, Endless, ManualClock]:
    """Return a pace over an endless history."""
    endless, clock = Endless(), ManualClock()
    given: Any = endless
    return Pace(given, given, clock, rate), endless, clock


async def handled_in(one: Pace, clock: ManualClock, seconds: float, batch_s: float) -> int:
    """Return how many events are handled in a time, when each batch takes so long."""
    end, count = clock.boot_ns() + int(seconds * 1e9), 0
    while clock.boot_ns() < end:
        batch = await one.take(512, VERSION)
        if batch is None:
            assert not one.more(), "it has to wait"
            clock.advance(0.001)
            continue
        count += len(batch.rows)
        clock.advance(batch_s)
        await one.settle([(batch, Outcome(done=batch.rows))])
    return count


async def beside_live() -> tuple[Pace, Endless, ManualClock]:
    """Return a pace that has seen that somebody is at work live."""
    one, endless, clock = pace()
    for endless.taken in (0, 7):
        batch = await one.take(1, VERSION)
        assert batch is not None
        await one.settle([(batch, Outcome(done=batch.rows))])
    clock.advance(0.3)
    endless.asked.clear()
    return one, endless, clock


@pytest.mark.parametrize("rate", [5.0, 50.0, 2_000.0])
def test_a_rate_is_kept(rate: float) -> None:
    """Over ten seconds, and in batches of no more than a tenth of a second's worth."""
    one, endless, clock = pace(rate)

    count = asyncio.run(handled_in(one, clock, 10.0, 0.001))

    assert 0.9 * 10 * rate <= count <= 10 * rate + endless.asked[0]
    assert max(endless.asked) <= max(1, rate / 10)


def test_alone_it_takes_batch_after_batch() -> None:
    """Nobody else is there to be given way to."""
    one, endless, clock = pace()
    assert asyncio.run(handled_in(one, clock, 1.0, 0.01)) == 100 * BATCH_MAX
    assert set(endless.asked) == {BATCH_MAX}


def test_beside_live_work_it_rests_after_each_batch() -> None:
    """Its share is a twentieth of the time; handlers that take long are rested from for a bounded time."""

    async def busy(batch_s: float) -> tuple[int, list[int]]:
        one, endless, clock = await beside_live()
        counted = 0
        for _ in range(100):
            endless.taken += 1
            counted += await handled_in(one, clock, 0.1, batch_s)
        return counted, endless.asked

    count, asked = asyncio.run(busy(0.01))
    assert set(asked) == {BATCH_BESIDE_LIVE_MAX}
    assert count / BATCH_BESIDE_LIVE_MAX <= 1.2 * 10 / (0.01 * (1 + REST_TIMES))
    count, asked = asyncio.run(busy(1.0))
    assert count >= BATCH_BESIDE_LIVE_MAX * 100 * 0.1 / (1.0 + REST_MS_MAX / 1000)


def test_beside_live_work_one_batch_is_in_hand() -> None:
    """Else they would follow on each other without a rest; handlers that wait for seconds get more to do."""

    async def in_hand() -> tuple[bool, bool, bool]:
        one, endless, clock = await beside_live()
        batch = await one.take(8, VERSION)
        assert batch is not None
        second = await one.take(8, VERSION)
        assert not one.more()
        await one.settle([(batch, Outcome(done=batch.rows))])
        looks_again = one.more()
        clock.advance(0.3)
        await one.take(8, VERSION)
        endless.taken += 1
        clock.advance(REST_MS_MAX / 1000)
        return second is not None, looks_again, await one.take(8, VERSION) is not None

    assert asyncio.run(in_hand()) == (False, True, True)


def test_an_outcome_that_is_refused_is_in_hand_until_it_is_a_dead_letter() -> None:
    """It is named twice, and counted once: else the next batch would wait for what nobody has in hand."""

    async def left() -> tuple[int, int]:
        one, endless, _ = pace()
        batch = await one.take(1, VERSION)
        assert batch is not None
        endless.conflicts = {batch.rows[0][0]: b""}
        await one.settle([(batch, Outcome(done=batch.rows))])
        refused = one._aloft
        await one.settle([(batch, Outcome(dead=[dead_letter(batch)]))])
        return refused, one._aloft

    assert asyncio.run(left()) == (1, 0)


def dead_letter(batch: Batch) -> DeadLetter:
    """Return what becomes of a refused outcome."""
    return DeadLetter(batch.rows[0], "failed", "", "", "", Attempt(1))


def test_what_is_in_hand_live_goes_first_for_a_while() -> None:
    """A batch waits for it, but not for ever: live work that never rests does not stop a replay."""

    async def yielding() -> tuple[float, bool]:
        one, endless, clock = pace()
        endless.running = 3
        began = clock.boot_ns()
        while await one.take(8, VERSION) is None:
            clock.advance(0.001)
        waited_ms = (clock.boot_ns() - began) / 1e6
        endless.running = 0
        clock.advance(10)
        return waited_ms, await one.take(8, VERSION) is not None

    waited_ms, at_once = asyncio.run(yielding())
    assert 0.9 * YIELD_MS_MAX <= waited_ms <= 1.2 * YIELD_MS_MAX
    assert at_once
