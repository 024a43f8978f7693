"""What the runtime tells those who watch it."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class BatchReport(NamedTuple):
    """What an observer is told after each commit."""

    handler: str
    version: str
    #: Envelope time to commit, one number per finished event.
    latencies_us: list[int]
    emitted: int
    waiting: int
    dead: int


class Observer(Protocol):
    """Sees what workers do; must not raise."""

    def committed(self, report: BatchReport) -> None:
        """Look at one committed outcome."""
        ...
