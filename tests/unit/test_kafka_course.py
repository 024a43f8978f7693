"""How far a replay is, of an allotment and a ledger that were read one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.codec.allotment import Allotment
from headrace.codec.ledger import OpenEntry, Position
from headrace.journal.kafka.course import Course

ALLOTMENT = Allotment(
    replay="0" * 16, version="2", topic="", side="trial", again=None, wanted="{}", at_us=1,
    parts={0: [(0, 10)], 1: [(0, 10)]}, allotted=20, skipped={}, follow=True,
)  # fmt: skip


@pytest.mark.parametrize(("done", "allotted"), [(3, 20), (24, 27)])
def test_what_has_ended_was_allotted(monkeypatch: pytest.MonkeyPatch, done: int, allotted: int) -> None:
    """Another process of a shadow was given more meanwhile, and has handled it: nothing is less than none."""

    async def read(_: Course) -> Mapping[int, Position]:
        entry = OpenEntry(1, "retry", 1, 0, 0, (), 0)
        return {0: Position(high=30, start=0, open=[entry], done=done, dead=1, expired=1)}

    monkeypatch.setattr(Course, "read", read)
    survey: Any = SimpleNamespace(log=None)
    state = asyncio.run(Course(survey, "app.handler", ALLOTMENT.replay).state(ALLOTMENT))
    assert state.allotted == allotted
    assert (state.done, state.dead, state.expired, state.complete) == (done, 1, 1, False)
