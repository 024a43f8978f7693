"""What a journal that cannot be asked by id asks of a database beside it.

The log is the truth, an index its projection: everything in it can be made again from the log, and an older
one that was restored catches up.  It answers what a log cannot: was this id seen before, and where first;
which version of a handler is active, at the moment of a claim; what did a worker that died have in hand.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple, Protocol


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
    #: Up to which offset of their log the index knows of versions, for a look-up with claims.
    upto: int = 0
    #: Partitions whose claim was not noted: another worker has taken them over, or they were handed over.
    refused: frozenset[int] = frozenset()


class Active(NamedTuple):
    """The active version of a handler, and up to which offset of the log of versions that is so."""

    version: int | None
    upto: int


class ModelRow(NamedTuple):
    """One set of weights."""

    id: int
    name: str
    epoch: int
    declared: str | None
    digest: str
    offered_us: int


class HandlerRow(NamedTuple):
    """A handler, and the number of its active version."""

    id: int
    name: str
    active: int


class VersionRow(NamedTuple):
    """A version of a handler; model 0 is none."""

    id: int
    handler: int
    declared: str
    model: int
    offered_us: int


class Projection(NamedTuple):
    """All versions, as they follow from the log of versions up to an offset."""

    #: The cluster's id of the log: of one that was deleted and made again another holds.
    log: bytes
    upto: int
    models: Sequence[ModelRow]
    handlers: Sequence[HandlerRow]
    versions: Sequence[VersionRow]


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
        A claim takes the place of the one that its owner noted before; one of a partition that another has
        taken over meanwhile is refused, however late it comes, and the rest is done all the same.
        """
        ...

    async def take_over(self, subscription: str, partition: int, owner: str) -> Claim | None:
        """Make a worker the one whose claims count; return what another has in hand who did not hand over.

        That may be nothing new: what he had begun again is known by its attempts.
        """
        ...

    async def hand_over(self, subscription: str, partition: int, owner: str) -> None:
        """Say that a worker has nothing of a partition in hand, and that no claim of it is to come."""
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

    async def present(self, ids: Collection[bytes]) -> set[bytes]:
        """Return which of some ids are indexed, in whatever topic."""
        ...

    async def find(self, event_id: bytes) -> list[Place]:
        """Return where an id lies, in every topic that has it."""
        ...

    async def project(self, known: Projection) -> None:
        """Show these versions; an older projection of the same log never replaces a newer."""
        ...

    async def active(self, handler: str) -> Active:
        """Return a handler's active version."""
        ...

    async def forget(self) -> None:
        """Drop the first positions, before a rebuild; claims, attempts and versions stay."""
        ...
