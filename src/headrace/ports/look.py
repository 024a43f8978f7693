"""What commands ask of a journal that they look into, and of one that they decide on.

Nothing here changes what workers do: whoever looks sees what was committed, at one moment for each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Protocol
from uuid import UUID

from headrace.event.envelope import Envelope
from headrace.ports.history import History, RetiredOne
from headrace.ports.values import OpenState, VersionInfo

#: Events of a chain that are shown: beyond it nobody reads on.
CHAIN_EVENTS_MAX = 1_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


#: An event is committed some time after it was given its time: the longest wait of a publisher, and a little.
SKEW_US_MAX = 60_000_000


def moment(us: int) -> datetime:
    """Return microseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=us)


def us_of(time: datetime) -> int:
    """Return a time as microseconds since 1970."""
    since = time - _EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


class StoredEvent(NamedTuple):
    """An event as it lies in the journal."""

    envelope: Envelope
    payload: bytes
    #: Why the envelope cannot be read, if it cannot; most of it is blank then.
    problem: str = ""
    #: Why the payload is gone, if it is: ``retention`` or ``erased``.
    removed: str = ""


class Owner(NamedTuple):
    """A worker that holds partitions of a subscription."""

    #: ``None`` for one that does not tell (a client of Kafka by another name).
    pid: int | None
    partitions: int
    #: False when its lease has run out: another worker will take over.
    alive: bool
    #: Where it runs, if it may be another host than this one.
    host: str = ""


class Progress(NamedTuple):
    """One subscription, counted from its start."""

    handler: str
    topic: str
    active: VersionInfo | None
    partitions: int
    published: int
    #: Not taken yet.
    untaken: int
    #: Taken before; by state: retry, blocked, returned, redriven, parked.
    open: dict[str, int]
    running: int
    done: int
    dead: int
    expired: int
    taken: int
    owners: tuple[Owner, ...]
    #: Live workers that serve it; and live workers of the journal, whatever they serve.
    serving: int
    workers: int
    oldest_waiting: datetime | None
    #: Closed in the last seconds; and how often partitions have changed hands; ``None`` where nobody counts.
    events_per_s: float | None = None
    rebalances: int | None = None

    @property
    def parked(self) -> int:
        """Events that wait for something else than time."""
        return self.open.get(OpenState.PARKED, 0)

    @property
    def waiting(self) -> int:
        """Events that wait for their turn: new ones, and those that were taken before."""
        return self.untaken + sum(self.open.values()) - self.parked

    @property
    def sound(self) -> bool:
        """Does the equation hold?"""
        closed = self.done + self.dead + self.expired
        taken = self.running + sum(self.open.values()) + closed
        return self.published == self.untaken + self.taken and self.taken == taken

    @property
    def trouble(self) -> str:
        """Why nothing moves although something waits, or an empty string."""
        if not self.waiting or any(owner.alive for owner in self.owners):
            return ""
        if not self.workers:
            return "no live worker"
        if self.serving:
            return "no partition has an owner yet"
        return "no live worker has the active version" if self.active else "no version is active yet"


class Replayed(NamedTuple):
    """One replay: allotted = waiting + running + done + dead + expired; ``skipped`` was not allotted."""

    handler: str
    topic: str
    version: VersionInfo | None
    side: str | None
    again: str | None
    follow: bool
    allotted: int
    waiting: int
    open: dict[str, int]
    running: int
    done: int
    dead: int
    emitted: int
    skipped: dict[str, int]
    complete: bool
    owners: tuple[Owner, ...]
    begun: datetime
    #: Closed unhandled: erased, given up, or on Kafka deleted by retention before their turn.
    expired: int = 0


class Topic(NamedTuple):
    """A topic and how much it holds."""

    name: str
    partitions: int
    events: int
    #: How long it keeps events, as an app has declared it, and what they take by the last count; ``None``
    #: without such a bound.
    age_us: int | None = None
    bytes_max: int | None = None
    bytes: int | None = None


class State(StrEnum):
    """What an event is to one subscription."""

    SKIPPED = "skipped"  # older than the start of the subscription
    WAITING = "waiting"  # not taken yet
    RUNNING = "running"
    RETRY = "retry"
    BLOCKED = "blocked"
    PARKED = "parked"
    RETURNED = "returned"
    REDRIVEN = "redriven"
    DONE = "done"
    DEAD = "dead"
    EXPIRED = "expired"  # closed unhandled: erased, or the handler was retired


class Standing(NamedTuple):
    """One event and one handler."""

    handler: str
    state: State
    active: VersionInfo | None
    #: Who holds the partition.
    owner: Owner | None
    #: Live workers that serve the handler; and of the journal, whatever they serve.
    serving: int
    workers: int
    #: The version that has handled it; the one that will is the active one.
    version: VersionInfo | None = None
    #: Events of the partition that come first, when it is not taken yet.
    ahead: int = 0
    #: The partition has so many open events that it takes no new ones.
    paused: bool = False
    due: datetime | None = None
    attempts: int = 0
    crashes: int = 0
    generation: int = 0
    errors: tuple[str, ...] = ()
    #: The event of the same key that comes first.
    blocked_by: UUID | None = None
    letter: Letter | None = None
    #: Where its results lie, when it is a replay that has the event: ``side NAME``, or ``live topics``.
    replay: str = ""


class Letter(NamedTuple):
    """One dead letter."""

    #: How commands name it: the same at every look.
    id: int
    handler: str
    type: str
    reason: str
    code: str
    error: str
    traceback: str
    attempts: int
    crashes: int
    #: Errors of the earlier attempts, oldest first.
    errors: tuple[str, ...]
    #: How often it was redriven before it died.
    generation: int
    version: str
    died: datetime
    #: ``None``, ``redriven`` or ``dropped``; ``expired`` where it only tells why an event was closed.
    fate: str | None
    #: It was redriven, and died again for the same reason.
    again: bool
    event: StoredEvent
    #: Why the last decision about it could not be carried out, where that is told only later.
    refused: str = ""
    #: Where its results would lie, when it died in a replay: ``side NAME``, or ``live topics``.
    replay: str = ""


class Filter(NamedTuple):
    """Which dead letters; ``None`` lets all pass."""

    handler: str | None = None
    reason: str | None = None
    type: str | None = None
    #: Also those that were redriven or dropped.
    decided: bool = False


UNDECIDED = Filter()


class Violation(NamedTuple):
    """A rule that does not hold, and where."""

    rule: str
    where: str


class Decided(NamedTuple):
    """What became of one dead letter."""

    id: int
    #: Why nothing was done, or an empty string.
    problem: str = ""


#: Which events are wanted.
Fits = Callable[[StoredEvent], bool]


def always(event: StoredEvent) -> bool:
    """Return that an event is wanted."""
    del event
    return True


class Feed(Protocol):
    """The events of a journal (or of one topic) in the order in which they were committed.

    On Kafka order holds within a partition only.
    """

    #: Commit order holds over all partitions.
    ordered: bool

    async def newest(self, count: int, fits: Fits = always) -> list[StoredEvent]:
        """Return the last events that fit, oldest first; `page` goes on behind them."""
        ...

    async def page(self) -> list[StoredEvent]:
        """Return the next events; an empty list at the end of what there is."""
        ...

    async def wait(self) -> None:
        """Return when there may be further events."""
        ...

    async def close(self) -> None:
        """Stop."""
        ...


class Look(Protocol):
    """A journal to be looked into; one that is not there is not made."""

    #: For people: the address without secrets.
    address: str

    async def open(self) -> None:
        """Connect; raises `JournalMissing` and the rest of the `JournalError` family."""
        ...

    async def close(self) -> None:
        """Disconnect; harmless when that is done."""
        ...

    async def topics(self) -> list[Topic]:
        """Return the topics, by name."""
        ...

    async def progress(self) -> list[Progress]:
        """Return the progress of every live subscription."""
        ...

    async def replays(self) -> list[Replayed]:
        """Return the replays, oldest first."""
        ...

    async def retired(self) -> list[RetiredOne]:
        """Return the subscriptions of handlers that were retired."""
        ...

    async def violations(self) -> list[Violation]:
        """Return every rule of the journal that does not hold; an empty list for a sound one."""
        ...

    async def histories(self, handler: str | None = None) -> list[History]:
        """Return which version has handled what, of a handler or of all; raises `HandlerUnknown`."""
        ...

    def feed(self, topic: str | None = None, from_offset: int = 0, from_us: int | None = None) -> Feed:
        """Return the events (of a topic) from an offset on, on Kafka from that of each partition.

        ``from_us``: what is surely older than this time (microseconds since 1970) may be left out.
        """
        ...

    async def find(self, text: str, *, topic: str | None = None) -> StoredEvent:
        """Return the event of an id, of the beginning of one, or of the name that its publisher gave it.

        An id is unique within a topic; without ``topic`` the first event of the id is returned.  Raises
        `EventNotFound`.
        """
        ...

    async def chain(self, event: StoredEvent) -> list[StoredEvent]:
        """Return the chain of an event, causes before effects, at most `CHAIN_EVENTS_MAX` events."""
        ...

    async def standings(self, event: StoredEvent) -> list[Standing]:
        """Return where an event stands, one entry per handler of its topic."""
        ...

    async def letters(self, wanted: Filter = UNDECIDED) -> list[Letter]:
        """Return dead letters, oldest first; raises `HandlerUnknown`."""
        ...

    async def named(self, text: str) -> list[Letter]:
        """Return the dead letters that a text names: one by its id, those of an event by the event's.

        Raises `EventNotFound` when there is none.
        """
        ...

    async def left(self) -> int:
        """Return how many dead letters nobody has decided on."""
        ...


class Desk(Protocol):
    """A journal that a person decides on."""

    async def open(self) -> None:
        """Connect; raises `JournalMissing` and the rest of the `JournalError` family."""
        ...

    async def close(self) -> None:
        """Disconnect; harmless when that is done."""
        ...

    async def activate(self, handler: str, version: str) -> VersionInfo:
        """Make a known version the active one; raises `HandlerUnknown`, `VersionUnknown`."""
        ...

    async def redrive(self, letters: Sequence[Letter]) -> list[Decided]:
        """Make dead events waiting again, each whole or not at all, for the active version."""
        ...

    async def drop(self, letters: Sequence[Letter]) -> list[Decided]:
        """Put dead letters away: they stay counted as dead, and in the list of all."""
        ...

    async def refusals(self, letters: Sequence[Letter], *, drop: bool = False) -> list[Decided]:
        """Return what `redrive` (or `drop`) would say of each letter, without doing it."""
        ...
