"""Rates: no more events begin in a second than somebody has said, and none is forgotten."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import App, Event, RetryPolicy, errors
from headrace.gate.rate import BURST_S, Rate
from headrace.testing import ManualClock, run_until_idle

SECOND_NS = 1_000_000_000


class Call(Event, topic="rate-calls", key="who"):
    """What begins."""

    who: str
    n: int


@given(
    per_s=st.floats(0.1, 5_000, allow_nan=False),
    steps=st.lists(st.tuples(st.integers(0, 2 * SECOND_NS), st.integers(0, 600)), max_size=60),
)
def test_no_stretch_of_time_has_more(per_s: float, steps: list[tuple[int, int]]) -> None:
    """In any stretch at most rate times length, and one burst."""
    rate, now = Rate(per_s), 0
    begun: list[tuple[int, int]] = []
    for pause, wanted in steps:
        now += pause
        count = min(wanted, rate.room(now, 0))
        rate.take(count)
        begun.append((now, count))
    for first, (start, _) in enumerate(begun):
        for last in range(first, len(begun)):
            length_s = (begun[last][0] - start) / SECOND_NS
            burst = max(1.0, per_s * BURST_S)
            assert sum(count for _, count in begun[first : last + 1]) <= per_s * length_s + burst + 1e-6


@given(per_s=st.floats(0.1, 5_000, allow_nan=False))
def test_after_the_wait_there_is_room(per_s: float) -> None:
    """What it says to wait is enough, so nobody looks in vain, and the rate is used up."""
    rate, now, begun = Rate(per_s), 0, 0
    for _ in range(50):
        count = rate.room(now, 0)
        assert count >= 1
        rate.take(count)
        begun += count
        now += math.ceil(rate.wait_s(now) * SECOND_NS)
    assert begun >= per_s * now / SECOND_NS * 0.99


def test_what_is_in_hand_is_bounded() -> None:
    """Behind a handler that hangs no more pile up than may begin in a second."""
    rate = Rate(10)
    assert rate.room(0, 10) == 0
    assert rate.room(0, 0) == 1
    assert Rate(None).room(0, 10_000) > 10_000
    assert Rate(None).wait_s(0) == 0


@pytest.mark.parametrize("plain", [False, True])
def test_a_handler_keeps_its_rate(plain: bool) -> None:
    """60 events at 20 a second take three seconds of its clock; retries count; others are not held up."""
    app, clock = App("rate"), ManualClock()
    times: list[int] = []
    free: list[int] = []
    failed: set[int] = set()

    def work(call: Call) -> None:
        times.append(clock.boot_ns())
        if call.n % 10 == 0 and call.n not in failed:
            failed.add(call.n)
            raise ValueError("once")

    async def awaited(call: Call) -> None:
        work(call)

    retry = RetryPolicy(backoff_first_ms=1, backoff_max_ms=1)
    app.handler(name="slow", rate_per_s=20, retry=retry)(work if plain else awaited)

    @app.handler
    async def quick(call: Call) -> None:
        free.append(clock.boot_ns())

    result = run_until_idle(app, *(Call(who=f"w{n % 7}", n=n) for n in range(60)), clock=clock)

    assert (len(times), len(free), result.dead) == (66, 60, [])
    assert times[-1] - times[0] >= (66 - 2 - 1) / 20 * SECOND_NS * 0.99
    assert free[-1] - free[0] < SECOND_NS
    for at, time in enumerate(times):
        within = sum(time <= other < time + SECOND_NS for other in times[at:])
        assert within <= 20 + 2 + 1


@pytest.mark.parametrize("rate", [0, -1, float("nan"), float("inf"), 2e6])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    """When it is declared."""

    async def look(call: Call) -> None: ...

    with pytest.raises(errors.SignatureInvalid, match="rate_per_s is above 0"):
        App("rate").handler(rate_per_s=rate)(look)
