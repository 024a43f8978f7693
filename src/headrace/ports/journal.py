"""What the runtime asks of a journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from headrace.event.envelope import Head, Stamp
from headrace.ports.observer import Survey
from headrace.ports.replay import Replays
from headrace.ports.values import (
    Batch,
    Keep,
    NewEvent,
    Offered,
    Outcome,
    Receipt,
    Row,
    Settled,
    Subscription,
    TopicInfo,
    VersionInfo,
    VersionOffer,
)


class Consumer(Protocol):
    """One worker's share of one subscription."""

    #: Do claims gain nothing from the transaction of an outcome?  Then the next batch is claimed before the
    #: last one is written, so that handlers have something to do meanwhile.
    claims_apart: bool
    #: What is finished waits at most this long for the rest of its batch before it is committed.
    settle_after_ms: float

    @property
    def rebalances(self) -> int:
        """How often the partitions held were found to be others than before."""
        ...

    async def balance(self) -> int:
        """Take free and expired partitions up to the fair share, hand back surplus; return what is held."""
        ...

    async def take(self, limit: int, version: VersionInfo) -> Batch | None:
        """Claim up to ``limit`` events (due ones first) under ``version``.

        Returns ``None`` when there is nothing to do.  Raises `VersionInactive` when another version is the
        active one by now.
        """
        ...

    async def settle(self, parts: Sequence[tuple[Batch, Outcome]], *, limit: int = 0) -> list[Settled]:
        """Commit outcomes in one transaction, and claim the next batch in it when ``limit`` is above 0.

        Rows of a batch that its outcome does not name stay open and running.  Returns an answer for each
        part; the next batch stands in the last one.
        """
        ...

    async def wait(self, seconds: float) -> None:
        """Return when there may be something to take, at the latest after ``seconds``."""
        ...

    def wake(self) -> None:
        """Have `wait` return."""
        ...

    def hurry(self, within_s: float) -> None:
        """Wait so much longer at most for others who write: what waits already hears it."""
        ...

    def more(self) -> bool:
        """Return whether `take` may find something at once, as far as is known without looking."""
        ...

    def next_due_ns(self) -> int | None:
        """Return when the earliest waiting event may run (boot clock), or ``None``."""
        ...

    def held(self) -> int:
        """Return the number of partitions held."""
        ...

    async def survey(self) -> Survey:
        """Look how far behind the partitions held are; may take a while, and changes nothing."""
        ...

    async def answers(self) -> None:
        """Ask all parts of the journal; raises the `JournalError` family while one of them is away."""
        ...

    async def release(self) -> int:
        """Hand back every partition; open work has been settled before.  Return how many were released."""
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


class Sweeper(Protocol):
    """Removes what topics need not keep any longer, a little at a time."""

    async def step(self) -> bool:
        """Do one short piece of work; returns whether there is more to do at once."""
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

    def where(self, row: Row, /) -> str:
        """Return where an event lies, for people."""
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
        """Make a known version the active one; raises `HandlerUnknown`, `VersionUnknown`."""
        ...

    async def subscribe(
        self, handler: str, topic: str, *, latest: bool = False, was: str | None = None
    ) -> Subscription:
        """Return the live subscription of a handler; a new one starts at the earliest retained event.

        With ``was`` the handler of that name gets the new one first, if there is one; raises
        `RenameRefused`.
        """
        ...

    def sweeper(self, app: str, rules: Sequence[Keep], window_us: int) -> Sweeper:
        """Return what removes the events that an app's topics need not keep.

        Ids of what was removed are known for ``window_us`` longer.
        """
        ...

    def replays(self) -> Replays:
        """Return the replays of this journal."""
        ...

    def consumer(
        self, worker: Worker, subscription: Subscription, *, at_least_once: bool = False
    ) -> Consumer:
        """Return this worker's share of a subscription.

        With ``at_least_once`` outcomes need not be committed whole: after a crash events may be handled
        again, and what they emit be there twice.  A journal to which that saves nothing takes no notice.
        """
        ...

    async def join(self, lease_ms: int) -> Worker:
        """Make this process known as a worker."""
        ...
