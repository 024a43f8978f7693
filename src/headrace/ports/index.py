"""What a journal that cannot be asked by id asks of a database beside it.

The log is the truth, an index its projection: everything in it can be made again from the log, and an older
one that was restored catches up.  It answers what a log cannot: was this id seen before, and where first;
which version of a handler is active; what did a worker that died have in hand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.ports.values import Offered, VersionInfo, VersionOffer


class Seen(NamedTuple):
    """One record of a partition, as a committed reader sees it."""

    event_id: bytes
    offset: int
    #: 63 bits over type, key and payload: the same for copies of one event, another for a conflict.
    content: int
    #: Id of the first event of the chain, and the distance from it.
    root: bytes
    depth: int


class Stretch(NamedTuple):
    """Consecutive records of a partition, with holes where the log has markers and aborted records.

    ``after`` is the first offset that may be in it, ``upto`` the first that is not.  What a log no longer has
    at its start is a hole too: the first stretch of a partition begins at 0.
    """

    topic_id: bytes
    partition: int
    after: int
    upto: int
    #: In the order of their offsets.
    records: Sequence[Seen]


class Claim(NamedTuple):
    """What a worker is about to handle; noted so that whoever follows a worker that died knows."""

    subscription: str
    partition: int
    #: First offset claimed, and the first beyond.
    after: int
    upto: int
    owner: str


class Tried(NamedTuple):
    """How often one open offset was tried."""

    offset: int
    number: int
    crashes: int


class First(NamedTuple):
    """Where an id was seen first."""

    offset: int
    content: int


class Looked(NamedTuple):
    """The answer to a look-up."""

    #: For each record that is not the first of its id in its partition, by (partition, offset): the first.
    copies: dict[tuple[int, int], First]
    #: Number of the active version, for a look-up with claims; ``None`` also where none was ever offered.
    active: int | None


class Place(NamedTuple):
    """Where an event lies, and where in its chain."""

    topic_id: bytes
    partition: int
    offset: int
    root: bytes
    depth: int


class Index(Protocol):
    """A database beside a log, shared by all processes that work on it."""

    #: For people: the address without secrets.
    address: str

    async def open(self) -> None:
        """Connect, and make the tables where they are missing; raises the `JournalError` family."""
        ...

    async def close(self) -> None:
        """Disconnect; harmless when that is done."""
        ...

    async def indexed(self, topic_id: bytes, partition: int) -> int:
        """Return the first offset of a partition that is not indexed yet."""
        ...

    async def look(self, handler: str, stretches: Sequence[Stretch], claims: Sequence[Claim] = ()) -> Looked:
        """Index stretches and note claims in one transaction; tell which records are copies.

        All stretches are of one topic, with at most one for each partition (else `ValueError`).
        Each partition is indexed without gaps, whoever writes: what of a stretch is indexed already is looked
        up only.  Raises `IndexGap` for a stretch that begins beyond what is indexed; nothing is written then.
        A claim takes the place of the one that was noted for its partition, whoever noted that.
        """
        ...

    async def claims(self, subscription: str) -> list[Claim]:
        """Return what is noted as claimed, at most one claim per partition."""
        ...

    async def tried(self, subscription: str, partition: int) -> list[Tried]:
        """Return the attempts of open offsets."""
        ...

    async def try_again(self, subscription: str, partition: int, tries: Sequence[Tried]) -> None:
        """Note attempts before they are made."""
        ...

    async def finished(self, subscription: str, partition: int, low: int) -> None:
        """Forget claims and attempts below an offset: all is closed there.  Of a claim the rest stays."""
        ...

    async def find(self, event_id: bytes) -> list[Place]:
        """Return where an id lies, in every topic that has it."""
        ...

    async def offer(self, offer: VersionOffer) -> Offered:
        """Make a version known; one never seen before becomes the active one."""
        ...

    async def activate(self, handler: str, version: str) -> VersionInfo:
        """Make a known version the active one; raises `HandlerUnknown` or `VersionUnknown`."""
        ...

    async def active(self, handler: str) -> int | None:
        """Return the number of a handler's active version."""
        ...

    async def forget(self) -> None:
        """Drop the first positions (before a rebuild); what no log has stays: claims, attempts, versions."""
        ...
