"""The shapes between the parts: what the runtime asks of journals, models, clocks and chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple, Protocol

from headrace.event.envelope import Head, Stamp

# --- the world's small parts --------------------------------------------------------------------


class Clock(Protocol):
    """Time.  Wall time is for people and envelopes, boot time for leases and waits."""

    def wall_us(self) -> int:
        """Return microseconds since 1970, UTC; may jump."""
        ...

    def boot_ns(self) -> int:
        """Return nanoseconds since boot, suspended time included; never jumps within one `boot_id`."""
        ...

    def boot_id(self) -> str:
        """Return a name of this boot, the same in every process."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; other tasks go on."""
        ...

    def nap(self, seconds: float) -> None:
        """Block this thread for less than a turn of the event loop costs."""
        ...


class Chance(Protocol):
    """Randomness: ids, trace ids, jitter."""

    def bytes(self, size: int) -> bytes:
        """Return unpredictable bytes."""
        ...

    def unit(self) -> float:
        """Return a number in [0, 1)."""
        ...


class Faults(Protocol):
    """Named places where a test may let the process die or the store fail."""

    def at(self, point: str) -> None:
        """Pass a failpoint; may raise or not return."""
        ...


class World(Protocol):
    """The outside as the runtime sees it."""

    clock: Clock
    chance: Chance
    faults: Faults


class NoFaults:
    """Failpoints outside of tests: nothing happens."""

    def at(self, point: str) -> None:
        """Pass."""


#: Every failpoint of the product, in the order in which one event meets them.
FAILPOINTS = (
    "publish.begin",
    "publish.inserted",
    "publish.committed",
    "version.offered",
    "balance.taken",
    "balance.committed",
    "claim.begin",
    "claim.written",
    "claim.committed",
    "handle.before",
    "handle.after",
    "settle.begin",
    "settle.positions",
    "settle.events",
    "settle.open",
    "settle.dead",
    "settle.committed",
    "release.committed",
)

# --- publishing ---------------------------------------------------------------------------------


class NewEvent(NamedTuple):
    """One event on its way into the journal; chain and depth are the journal's to find."""

    topic: str
    #: The journal's number of topic and partition (`Journal.place`).
    place: int
    event_id: bytes
    head: Head
    body: bytes
    #: False when the id was just drawn, so that no look-up for a copy is needed.
    may_exist: bool


class Receipt(NamedTuple):
    """What became of one published event."""

    event_id: bytes
    #: True when the same event was there already, with the same content.
    duplicate: bool


class TopicInfo(NamedTuple):
    """A topic as the journal has it; the number of partitions is fixed at creation."""

    id: int
    name: str
    partitions: int


# --- versions -----------------------------------------------------------------------------------


class VersionOffer(NamedTuple):
    """What a worker can run: the declared version of a handler and the digest of its model."""

    handler: str
    declared: str
    model: str | None = None
    digest: str | None = None
    model_declared: str | None = None


class VersionInfo(NamedTuple):
    """A handler version known to the journal; its name is ``declared`` or ``declared+model@epoch:digest``."""

    id: int
    handler: str
    declared: str
    model: str | None
    digest: str | None
    #: ``name@epoch`` or ``name@declared``, then ``:`` and 12 digits of the digest; ``None`` without a model.
    model_name: str | None

    @property
    def name(self) -> str:
        """Return the text that stands in envelopes and in derived ids."""
        return self.declared if self.model_name is None else f"{self.declared}+{self.model_name}"


class Offered(NamedTuple):
    """The journal's answer: the version that was offered, and the one that is active."""

    mine: VersionInfo
    active: VersionInfo


# --- consuming ----------------------------------------------------------------------------------

#: offset, partition, event id, chain, depth, head, body.  A plain tuple: one per event on the hot path.
Row = tuple[int, int, bytes, Any, int, Any, bytes]


class OpenState(StrEnum):
    """Why an offset below the position is still open."""

    RUNNING = "running"
    RETRY = "retry"  # waits for its next attempt
    BLOCKED = "blocked"  # waits for an earlier event of its key
    PARKED = "parked"  # waits for something else than time
    RETURNED = "returned"  # handed back by a worker that stopped, not counted as an attempt
    REDRIVEN = "redriven"  # made waiting again from a dead letter


class Attempt(NamedTuple):
    """How often an event was tried; a first attempt has no record of its own."""

    number: int = 1
    crashes: int = 0
    generation: int = 0
    #: Errors of the earlier attempts, one line each, oldest first.
    errors: tuple[str, ...] = ()


FIRST_ATTEMPT = Attempt()


@dataclass(slots=True)
class Batch:
    """Events claimed together, by one worker, under one version."""

    subscription: int
    version: VersionInfo
    rows: list[Row]
    #: Attempts by offset; an offset that is not here has its first.
    attempts: Mapping[int, Attempt] = field(default_factory=dict[int, Attempt])
    #: True when the events are suspects of a crash: nothing else may run in the process meanwhile.
    alone: bool = False
    #: The journal's own notes (fencing epochs and ranges).
    token: Any = None


class Waiting(NamedTuple):
    """An offset that stays open, and until when."""

    row: Row
    state: OpenState
    attempt: Attempt
    after_ms: float = 0.0


class DeadLetter(NamedTuple):
    """An event put aside."""

    row: Row
    reason: str
    code: str
    error: str
    traceback: str
    attempt: Attempt
    trace: bytes = b""
    type: str = ""


@dataclass(slots=True)
class Outcome:
    """What the handling of (a part of) a batch came to; committed as one transaction."""

    #: Events that follow, each as `Journal.emitted` made it.
    emitted: list[Any] = field(default_factory=list[Any])
    #: Offset of the cause of each emitted event, side by side with `emitted`.
    causes: list[int] = field(default_factory=list[int])
    #: Rows that are finished.
    done: list[Row] = field(default_factory=list[Row])
    waiting: list[Waiting] = field(default_factory=list[Waiting])
    dead: list[DeadLetter] = field(default_factory=list[DeadLetter])
    #: Reserved for handlers with state and for remembered step results; no part fills them yet.
    state: Sequence[object] = ()
    steps: Sequence[object] = ()

    def __len__(self) -> int:
        return len(self.done) + len(self.waiting) + len(self.dead)

    def offsets(self) -> set[int]:
        """Return the offsets that are named."""
        found = {row[0] for row in self.done}
        found.update(one.row[0] for one in self.waiting)
        found.update(one.row[0] for one in self.dead)
        return found


class Settled(NamedTuple):
    """How the journal took an outcome."""

    #: Offsets whose partition has a new owner: their results were dropped whole.
    stale: frozenset[int]
    #: Offsets whose emitted ids are taken by other content, with the id; they are still open.
    conflicts: Mapping[int, bytes]
    #: The next batch, claimed in the same transaction.
    next: Batch | None


class Subscription(NamedTuple):
    """A handler's progress over its topic."""

    id: int
    handler: str
    topic: TopicInfo


class Consumer(Protocol):
    """One worker's share of one subscription."""

    async def balance(self) -> int:
        """Take free and expired partitions up to the fair share, hand back surplus; return what is held."""
        ...

    async def take(self, limit: int, version: VersionInfo) -> Batch | None:
        """Claim up to ``limit`` events (due ones first) under ``version``.

        Returns ``None`` when there is nothing to do.  Raises `VersionInactive` when another version is the
        active one by now.
        """
        ...

    async def settle(self, batch: Batch, outcome: Outcome, *, limit: int = 0) -> Settled:
        """Commit an outcome in one transaction, and claim the next batch in it when ``limit`` is above 0.

        Rows of the batch that the outcome does not name stay open and running.
        """
        ...

    async def wait(self, seconds: float) -> None:
        """Return when there may be something to take, at the latest after ``seconds``."""
        ...

    def wake(self) -> None:
        """Have `wait` return."""
        ...

    def next_due_ns(self) -> int | None:
        """Return when the earliest waiting event may run (boot clock), or ``None``."""
        ...

    def held(self) -> int:
        """Return the number of partitions held."""
        ...

    async def release(self) -> int:
        """Hand back every partition; open work has been settled before.  Return how many were released."""
        ...


class Journal(Protocol):
    """Where events are kept, and who has handled them."""

    #: For people: the address without secrets.
    address: str

    async def open(self) -> None:
        """Open or create; coded errors for a file or cluster that is not fit."""
        ...

    async def close(self) -> None:
        """Finish what was accepted and close; harmless when closed."""
        ...

    async def topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        """Return a topic, creating it when it is new; raises `TopicMismatch`."""
        ...

    async def intern(self, stamps: Sequence[Stamp]) -> list[int]:
        """Return the numbers of stamps, in order."""
        ...

    async def stamp(self, number: int) -> Stamp | None:
        """Return the stamp of a number, or ``None`` when nobody interned it."""
        ...

    def decode_head(self, head: Any, /) -> Head:
        """Return the envelope of a stored head; raises `HeadCorrupt`."""
        ...

    def emitted(self, place: int, event_id: bytes, chain: Any, depth: int, head: Head, body: bytes, /) -> Any:
        """Return an emitted event in the form that `Outcome.emitted` holds.  Hot path: pure and quick."""
        ...

    def place(self, topic: TopicInfo, partition: int) -> int:
        """Return the journal's number of a topic's partition, as it stands in a `Row`."""
        ...

    async def publish(self, unit: Sequence[NewEvent]) -> list[Receipt]:
        """Write events, all or none; returns when they are durable.

        Raises `EventConflict`, `ParentMissing`, `ParentCycle`, and the `JournalError` family.
        """
        ...

    async def offer(self, offer: VersionOffer) -> Offered:
        """Make a version known; one never seen before becomes the active one."""
        ...

    async def activate(self, handler: str, version: str) -> VersionInfo:
        """Make a known version the active one; raises `VersionUnknown`."""
        ...

    async def subscribe(self, handler: str, topic: str, *, latest: bool = False) -> Subscription:
        """Return the live subscription of a handler; a new one starts at the earliest retained event."""
        ...

    def consumer(self, worker: Worker, subscription: Subscription) -> Consumer:
        """Return this worker's share of a subscription."""
        ...

    async def join(self, lease_ms: int) -> Worker:
        """Make this process known as a worker."""
        ...


class Worker(Protocol):
    """A process that holds leases, as the journal knows it."""

    id: int

    def renew(self) -> bool:
        """Renew the lease; called from a thread.  Returns ``False`` when it was lost."""
        ...

    async def leave(self) -> None:
        """Say that this worker has stopped."""
        ...


# --- models -------------------------------------------------------------------------------------


class LoadedModel(Protocol):
    """One set of weights in memory, in the process that uses it."""

    name: str
    #: sha256 (hex) over weights, labels, pre- and post-processing and calibration.
    digest: str
    declared: str | None

    def infer(self, inputs: Sequence[object]) -> list[object]:
        """Return one result per input, in order.  Blocking, thread-safe, called off the event loop."""
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class Model(Protocol):
    """What a user declares: a recipe.  Holds no session, so it can be pickled and survives a fork."""

    name: str
    batch_max: int
    batch_wait_ms: float

    def load(self, like: LoadedModel | None = None) -> LoadedModel:
        """Build and warm up; blocking.  Raises the `ModelError` family.

        ``like`` is the model it is to replace: one with other inputs or outputs is refused.
        """
        ...

    def fingerprint(self) -> object:
        """Return a cheap value that changes when the file may have changed."""
        ...


# --- watching -----------------------------------------------------------------------------------


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
