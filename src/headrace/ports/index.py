"""What a journal that cannot be asked by id asks of a database beside it.

The log is the truth, an index its projection: everything in it can be made again from the log, and an older
one that was restored catches up.  It answers what a log cannot: was this id seen before, and where first;
which version of a handler is active; what did a worker that died have in hand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


class Bound(NamedTuple):
    """A part of a partition to count in."""

    partition: int
    #: The first offset that is in it, and the first that is not.
    after: int
    upto: int


class View(Protocol):
    """The whole of an index, for those who look into a journal and those who make the index again."""

    async def belong(self, cluster: str) -> None:
        """Note that this is the index of a cluster; raises `IndexForeign` where it is another's."""
        ...

    async def know(self, topic_id: bytes, name: str) -> None:
        """Make a topic known as one that an app has used."""
        ...

    async def topics(self) -> dict[bytes, str]:
        """Return the topics that apps have used, by the cluster's ids of them."""
        ...

    async def indexed(self) -> dict[tuple[bytes, int], int]:
        """Return the first offset of each partition that is not indexed yet."""
        ...

    async def claims(self) -> list[Claim]:
        """Return what is noted as claimed, of all subscriptions."""
        ...

    async def counts(self, topic_id: bytes, bounds: Sequence[Bound]) -> list[int]:
        """Return how many events of a topic lie within each of several bounds: all but copies."""
        ...

    async def between(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, Place]]:
        """Return the ids from one to another, with where they lie."""
        ...

    async def chain(self, root: bytes, limit: int) -> list[tuple[bytes, Place]]:
        """Return the events of a chain with where they lie, causes before effects."""
        ...

    async def firsts(self, topic_id: bytes, partition: int, ids: Sequence[bytes]) -> dict[bytes, First]:
        """Return where ids were seen first in a partition; one that is not there is left out."""
        ...

    async def ids(self, topic_id: bytes, partition: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Return the ids of a partition after one, with their offsets, in the order of ids."""
        ...

    async def forget(self, lows: Mapping[tuple[bytes, int], int]) -> None:
        """Drop the first positions that the log can give back: at and above an offset of each partition.

        A partition that is not named is forgotten as a whole.
        """
        ...


class Index(Protocol):
    """A database beside a log, shared by all processes that work on it."""

    #: For people: the address without secrets.
    address: str

    async def open(self, *, make: bool = True) -> None:
        """Connect, and make the tables where they are missing; raises the `JournalError` family.

        Without ``make`` an index that is not there is `IndexMissing`.
        """
        ...

    @property
    def view(self) -> View:
        """The whole of the index."""
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
