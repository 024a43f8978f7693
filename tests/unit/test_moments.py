"""Times on the command line, and the offsets that they lead to."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.cli.moments import EVER, Bound, bound_of, stretch_of
from headrace.journal.reader import Reader
from headrace.ports.look import SKEW_US_MAX, moment, us_of

NOW_US = 1_777_885_200_000_000  # 2026-05-04T09:00Z


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, EVER),
        ("0", Bound(offset=0)),
        ("17", Bound(offset=17)),
        ("2026-05-04T09:00", Bound(us=NOW_US)),
        ("2026-05-04T09:00:00.000001Z", Bound(us=NOW_US + 1)),
        ("2026-05-04T11:00+02:00", Bound(us=NOW_US)),
        ("2026-05-04", Bound(us=NOW_US - 9 * 3_600_000_000)),
        ("15m", Bound(us=NOW_US - 15 * 60_000_000)),
        ("2h", Bound(us=NOW_US - 7_200_000_000)),
        ("3d", Bound(us=NOW_US - 259_200_000_000)),
        ("1s", Bound(us=NOW_US - 1_000_000)),
    ],
)
def test_an_end_is_an_offset_or_a_time(text: str | None, found: Bound) -> None:
    """Digits are an offset; a time without a zone is UTC; a number with a unit is so long ago."""
    assert bound_of("--from", text, NOW_US) == found


@pytest.mark.parametrize("text", [str(1 << 63), "9" * 5_000])
def test_an_offset_is_one_that_there_can_be(text: str) -> None:
    """A journal counts in 64 bits; Python itself refuses to read very long numbers."""
    with pytest.raises(errors.CommandInvalid, match="at most 9,223,372,036,854,775,807"):
        bound_of("--from", text, NOW_US)
    assert bound_of("--from", str((1 << 63) - 1), NOW_US).offset == (1 << 63) - 1


@pytest.mark.parametrize("text", ["", "-1", "1.5", "5w", "now", "2026-02-30", "٣", "9" * 10 + "d"])
def test_other_text_is_refused(text: str) -> None:
    """With the flag, the text, and how it is written."""
    with pytest.raises(errors.CommandInvalid, match="neither an offset nor a time") as fault:
        bound_of("--to", text, NOW_US)
    assert "2026-05-04T09:00" in fault.value.hint


@given(us=st.integers(0, 10**16))
def test_a_time_survives_the_way_there_and_back(us: int) -> None:
    """Microseconds since 1970 become a time and the same microseconds, to the last of them."""
    assert us_of(moment(us)) == us


class Timed(Reader):
    """A journal of which only the times of its events are known."""

    def __init__(self, times: dict[int, int]) -> None:
        self.times = times

    def last_offset(self) -> int:
        return max(self.times, default=0)

    def events(self, *, after: int = 0, topic: str | None = None, limit: int = 1) -> list[Any]:
        found = [offset for offset in sorted(self.times) if offset > after][:limit]
        return [_timed(offset, self.times[offset]) for offset in found]


def _timed(offset: int, us: int) -> Any:
    return SimpleNamespace(envelope=SimpleNamespace(offset=offset, time=moment(us)))


@given(
    steps=st.lists(
        st.tuples(st.integers(1, 3), st.integers(0, 10**9), st.integers(0, SKEW_US_MAX)), max_size=40
    ),
    at=st.integers(0, 40),
)
def test_no_event_of_a_time_is_passed_over(steps: list[tuple[int, int, int]], at: int) -> None:
    """Offsets have gaps, and each event is committed up to a minute after it was given its time."""
    times: dict[int, int] = {}
    offset = committed = 0
    for gap, pause, late in steps:
        offset, committed = offset + gap, committed + pause
        times[offset] = max(0, committed - late)
    us = sorted(times.values())[min(at, len(times) - 1)] if times else at

    before = Timed(times).before(us)

    assert all(time < us for number, time in times.items() if number <= before)


def test_a_time_is_found_without_reading_everything() -> None:
    """Of 100,000 events twenty are looked at, and what is much older is left out."""
    reader = Timed({offset: offset * 1_000_000 for offset in range(1, 100_001)})
    looked: list[int] = []
    plain = reader.events
    reader.events = lambda **asked: looked.append(asked["after"]) or plain(**asked)  # type: ignore[method-assign]

    assert reader.before(50_000_000_000) == 50_000 - SKEW_US_MAX // 1_000_000 - 1
    assert len(looked) <= 20


@pytest.mark.parametrize(("first", "last"), [("10", "5"), ("2026-05-05", "2026-05-04"), ("1h", "2h")])
def test_a_stretch_that_ends_before_it_begins_is_refused(first: str, last: str) -> None:
    """It is a slip, and no events would look like an answer; an offset and a time cannot be compared."""
    with pytest.raises(errors.CommandInvalid, match=f"--from {first} is beyond --to {last}"):
        stretch_of(first, last, NOW_US)
    assert stretch_of(last, first, NOW_US) == (bound_of("", last, NOW_US), bound_of("", first, NOW_US))
    assert stretch_of("5", "5", NOW_US) == (Bound(offset=5), Bound(offset=5))
    assert stretch_of("9999", "2h", NOW_US)[0] == Bound(offset=9_999)
