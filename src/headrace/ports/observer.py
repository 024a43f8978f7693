"""What the runtime tells those who watch it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

Call = Callable[..., Awaitable[Any]]


class BatchReport(NamedTuple):
    """What an observer is told after each commit."""

    handler: str
    version: str
    #: Envelope time to commit, one number per finished event.
    latencies_us: list[int]
    emitted: int
    waiting: int
    dead: int
    #: Of those that wait: the attempt was begun, and failed.
    retried: int = 0
    #: Why events died, one reason for each.
    reasons: tuple[str, ...] = ()
    #: How long the transaction took; ``None`` where an outcome shared it with one that was told before.
    commit_s: float | None = None


class Observer(Protocol):
    """Sees what workers do; must not raise."""

    def committed(self, report: BatchReport) -> None:
        """Look at one committed outcome."""
        ...


@runtime_checkable
class Timing(Observer, Protocol):
    """An observer that also measures how long handlers take: two looks at the clock per event."""

    def timed(self, handler: str, call: Call) -> Call:
        """Return a handler's function that is measured."""
        ...


class Survey(NamedTuple):
    """How far behind a consumer is, as its journal knows it."""

    #: Events not taken yet, for each partition held.  On Kafka markers count too.
    lag: Mapping[int, int]
    #: Partitions that nobody alive holds.
    unowned: int


class ServerState(NamedTuple):
    """How the serving of one handler goes."""

    handler: str
    topic: str
    #: The version served; empty while this process has not got the active one.
    version: str
    in_flight: int
    held: int
    #: How often the partitions held were found to be others than before.
    rebalances: int
    #: Why the journal cannot be worked with at present; empty when it can.
    outage: str
