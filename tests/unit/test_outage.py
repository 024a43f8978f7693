"""Outages of the journal as a worker sees them: told once, and over when all that work needs answers."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from tests.unit import shop

from headrace import errors
from headrace.runtime.server import Server
from headrace.runtime.serving import Quiet, Shared
from headrace.testing import ManualClock


class Halved:
    """A consumer whose steps need brokers only, beside an index that stays away for a while."""

    claims_apart, settle_after_ms, rebalances = True, 1.0, 0

    def __init__(self, away: int) -> None:
        self.away = away
        self.asked = 0

    async def answers(self) -> None:
        """Ask the index."""
        self.asked += 1
        if self.asked <= self.away:
            raise errors.JournalUnavailable(path="postgresql://index")

    async def wait(self, seconds: float) -> None:
        """Let others run."""
        await asyncio.sleep(0)

    def more(self) -> bool:
        """There is nothing."""
        return False

    def wake(self) -> None:
        """Nobody sleeps."""

    def hurry(self, within_s: float) -> None:
        """Nobody waits."""

    def held(self) -> int:
        """Return a partition."""
        return 1


class Stepped(Server):
    """A server whose first step meets the outage; the others find nothing to do."""

    steps = 0
    #: What it says of itself after each step.
    told: tuple[bool, ...] = ()

    async def step(self) -> bool:
        """Fail once, and end after twelve."""
        self.steps += 1
        if self.steps == 1:
            raise errors.JournalUnavailable(path="postgresql://index")
        self.told += (bool(self._outage),)
        if self.steps == 12:
            self.stop()
        return False


def test_recovery_is_told_when_all_of_the_journal_answers(caplog: pytest.LogCaptureFixture) -> None:
    """A step that needed only brokers says nothing of an index that is away; then it is told once."""
    caplog.set_level(logging.WARNING, "headrace.worker")
    consumer: Any = Halved(away=4)
    nothing: Any = object()
    handler = shop.made_app(":memory:").handlers["shop.send"]
    shared = Shared(Quiet(), None, 1.0, str)
    server = Stepped(handler, consumer, nothing, nothing, ManualClock(), shared)

    asyncio.run(server.run())

    lines = [record.message.partition(": ")[2] for record in caplog.records]
    assert [line.endswith("Trying again until it answers.") for line in lines] == [True, False]
    assert lines[1] == "the journal answers again"
    # Asked after each step until it answers, never before an outage or after it.
    assert consumer.asked == 5
    assert server.told == (True,) * 5 + (False,) * 6
