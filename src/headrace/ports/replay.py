"""What is asked of a journal to run history through a version of a handler."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from headrace.ports.values import Subscription, VersionInfo, VersionOffer

#: Where results lie when nobody names a side.
SIDE_DEFAULT = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Which history is to go through which version, and where its results are to lie."""

    handler: str
    topic: str
    #: What a person calls the version that the process has, to be sure; empty for whatever it is.
    version: str = ""
    #: Beside the live results under this name; ``None`` = into the live topics.
    side: str | None = SIDE_DEFAULT
    #: A ledger of its own under this name: what the version has handled elsewhere does not count.
    again: str | None = None
    #: Events of these offsets, both included.
    from_offset: int | None = None
    to_offset: int | None = None
    #: Events of this time on, and before that, in microseconds since 1970.
    from_us: int | None = None
    to_us: int | None = None
    #: Events of the chain that this event belongs to.
    chain: bytes | None = None
    #: Go on with whatever live closes from now on.
    follow: bool = False


class ReplayPlan(NamedTuple):
    """What a replay would handle, and what it would pass over."""

    version: VersionInfo
    allotted: int
    #: Events of the history asked for that are not allotted, by the reason.
    skipped: Mapping[str, int]


class Replay(NamedTuple):
    """A replay that is under way."""

    subscription: Subscription
    plan: ReplayPlan
    #: Was it begun before, by the same order?
    resumed: bool


class ReplayState(NamedTuple):
    """How far a replay is: allotted = waiting + running + done + dead + expired."""

    allotted: int
    running: int
    done: int
    dead: int
    emitted: int
    #: Has everything that is allotted so far come to an end?
    complete: bool
    #: Closed unhandled: erased, given up, or on Kafka deleted by retention before their turn.
    expired: int = 0


class Replays(Protocol):
    """Replays of one journal."""

    async def plan(self, order: Order, offer: VersionOffer) -> ReplayPlan:
        """Return what `begin` would allot to the version offered; nothing is written.

        Raises `ReplayRefused`, `EventNotFound`.
        """
        ...

    async def begin(self, order: Order, offer: VersionOffer) -> Replay | ReplayPlan:
        """Allot version ranges in one transaction, or go on with an unfinished replay of the same order.

        Allotted are offsets that live has closed and that neither live nor another replay of the same ledger
        has given to this version.  Where there are none a plan comes back and nothing is written.
        """
        ...

    async def extend(self, replay: Subscription) -> int:
        """Allot to a replay that follows what live has closed since; return how many events."""
        ...

    async def state(self, replay: Subscription) -> ReplayState:
        """Return how far it is."""
        ...

    async def live_load(self) -> tuple[int, int]:
        """Return how many events live handlers have taken so far, and have in hand: a replay gives way."""
        ...
