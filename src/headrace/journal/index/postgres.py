"""An index in PostgreSQL, shared by the processes of many hosts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.journal.index.postgres_view import PostgresView
from headrace.journal.index.session import (
    LOCK_MS_MAX,
    SILENT_MS_MAX,
    STATEMENT_MS_MAX,
    Session,
    Values,
    fetched,
)
from headrace.journal.index.stretches import ordered
from headrace.journal.queries import load, read
from headrace.ports import Clock, Faults
from headrace.ports.index import Active, Claim, First, Looked, Place, Projection, Stretch, Tried

if TYPE_CHECKING:
    from headrace.journal.index.session import Db

SCHEMA = 1
_QUERIES: Any = load("index/postgres.sql")


class PostgresIndex:
    """An index in a database; its tables begin with ``headrace_`` and lie where the search path points."""

    def __init__(self, url: str, *, clock: Clock, faults: Faults) -> None:
        self._session = Session(url, self._prepare)
        self.address = self._session.address
        self._clock, self._faults = clock, faults
        self._make = True
        self.view = PostgresView(self._session)

    async def open(self, *, make: bool = True) -> None:
        """Connect, and make the tables where they are missing."""
        self._make = make
        await self._session.open()

    async def close(self) -> None:
        """Disconnect; harmless when that is done."""
        await self._session.close()

    async def _prepare(self, db: Db) -> None:
        """Set the bounds of a new connection and see that the tables are there, in a form that is known."""
        await fetched(db, _QUERIES.bounds, (str(STATEMENT_MS_MAX), str(LOCK_MS_MAX), str(SILENT_MS_MAX)))
        if not (await fetched(db, _QUERIES.meta_there))[0][0]:
            if not self._make:
                raise errors.IndexMissing(path=self.address)
            async with db.transaction():
                await fetched(db, _QUERIES.schema_alone)
                if not (await fetched(db, _QUERIES.meta_there))[0][0]:  # nobody was quicker
                    await db.execute(read("index/postgres_schema.sql").encode())
        ((found,),) = await fetched(db, _QUERIES.schema_get)
        if found > SCHEMA:
            raise errors.JournalNewer(path=self.address, found=found, known=SCHEMA)

    # --- first positions ----------------------------------------------------------------------

    async def indexed(self, topic_id: bytes, partition: int) -> int:
        """Return the first offset of a partition that is not indexed yet."""
        found = await self._session.rows(_QUERIES.indexed, (topic_id.hex(), partition))
        return found[0][0] if found else 0

    async def look(self, handler: str, stretches: Sequence[Stretch], claims: Sequence[Claim] = ()) -> Looked:
        """Index stretches and note claims in one transaction; tell which records are copies."""
        wanted = ordered(stretches)
        try:
            rows = await self._session.rows(_QUERIES.look, _bound(handler, wanted, claims))
        except errors.IndexGap as gap:
            partition, indexed = gap.context["partition"], gap.context["indexed"]
            (after,) = [one.after for one in wanted if one.partition == partition]
            raise errors.IndexGap(partition=partition, indexed=indexed, after=after) from None
        copies: dict[tuple[int, int], First] = {}
        active, refused = Active(None, 0), set[int]()
        for partition, offset, first, content in rows:
            if partition is None:
                active = Active(offset, first)
            elif offset is None:
                refused.add(partition)
            else:
                copies[partition, offset] = First(first, content)
        return Looked(copies, *active, frozenset(refused))

    async def present(self, ids: Collection[bytes]) -> set[bytes]:
        """Return which of some ids are indexed, in whatever topic."""
        rows = await self._session.rows(_QUERIES.present, (_array(one.hex() for one in ids),))
        return {event.bytes for (event,) in rows}

    async def find(self, event_id: bytes) -> list[Place]:
        """Return where an id lies, in every topic that has it."""
        rows = await self._session.rows(_QUERIES.find, (event_id.hex(),))
        return [
            Place(topic.bytes, partition, offset, root.bytes, depth)
            for topic, partition, offset, root, depth in rows
        ]

    async def forget(self) -> None:
        """Drop the first positions; claims, attempts and versions stay."""
        await self._session.rows(_QUERIES.firsts_drop)

    # --- claims and attempts ------------------------------------------------------------------

    async def take_over(self, subscription: str, partition: int, owner: str) -> Claim | None:
        """Make a worker the one whose claims count; return what another has in hand."""
        (found,) = await self._session.rows(_QUERIES.take_over, (subscription, partition, owner))
        claim = Claim(*found)
        return claim if claim.owner not in ("", owner) else None

    async def hand_over(self, subscription: str, partition: int, owner: str) -> None:
        """Say that a worker has nothing of a partition in hand, and that no claim of it is to come."""
        await self._session.rows(_QUERIES.hand_over, (subscription, partition, owner))

    async def claims(self, subscription: str) -> list[Claim]:
        """Return what is noted as claimed, at most one claim per partition."""
        return [Claim(*row) for row in await self._session.rows(_QUERIES.claims, (subscription,))]

    async def tried(self, subscription: str, partition: int) -> list[Tried]:
        """Return the attempts of open offsets."""
        return [Tried(*row) for row in await self._session.rows(_QUERIES.tried, (subscription, partition))]

    async def try_again(self, subscription: str, partition: int, tries: Sequence[Tried]) -> None:
        """Note attempts before they are made."""
        last = {one.offset: one for one in tries}.values()
        columns = (
            _array(one.offset for one in last),
            _array(one.number for one in last),
            _array(one.crashes for one in last),
        )
        await self._session.rows(_QUERIES.tried_put, (subscription, partition, *columns))

    async def finished(self, subscription: str, partition: int, low: int) -> None:
        """Forget claims and attempts below an offset: all of them are closed."""
        await self._session.rows(_QUERIES.finished, (subscription, partition, low))

    # --- versions -----------------------------------------------------------------------------

    async def project(self, known: Projection) -> None:
        """Show these versions; an older projection of the same log never replaces a newer."""

        async def write(db: Db) -> None:
            if not await _newer(db, known):
                return
            async with db.transaction():
                await fetched(db, _QUERIES.versions_alone)
                if await _newer(db, known):  # nobody was quicker
                    await _project(db, known)

        await self._session.run(write)

    async def active(self, handler: str) -> Active:
        """Return a handler's active version."""
        return Active(*(await self._session.rows(_QUERIES.active, (handler,)))[0])


async def _newer(db: Db, known: Projection) -> bool:
    found = await fetched(db, _QUERIES.versions_upto)
    return not found or found[0][0].bytes != known.log or found[0][1] < known.upto


async def _project(db: Db, known: Projection) -> None:
    for drop in (_QUERIES.models_drop, _QUERIES.handlers_drop, _QUERIES.versions_drop):
        await fetched(db, drop)
    for put, rows in (
        (_QUERIES.model_put, known.models),
        (_QUERIES.handler_put, known.handlers),
        (_QUERIES.version_put, known.versions),
    ):
        for row in rows:
            await fetched(db, put, row)
    await fetched(db, _QUERIES.versions_upto_put, (known.log.hex(), known.upto))


def _bound(handler: str, wanted: Sequence[Stretch], claims: Sequence[Claim]) -> Values:
    """Return what `headrace_look` is called with."""
    seen = [one for stretch in wanted for one in stretch.records]
    events, offsets, contents, roots, depths = zip(*seen, strict=True) if seen else ((),) * 5
    last = {(one.subscription, one.partition): one for one in claims}.values()
    return (
        wanted[0].topic_id.hex() if wanted else None,
        _array(one.partition for one in wanted),
        _array(one.after for one in wanted),
        _array(one.upto for one in wanted),
        _array(stretch.partition for stretch in wanted for _ in stretch.records),
        _array(map(bytes.hex, events)),
        _array(offsets),
        _array(contents),
        _array(map(bytes.hex, roots)),
        _array(depths),
        handler,
        [one.subscription for one in last],
        _array(one.partition for one in last),
        _array(one.after for one in last),
        _array(one.upto for one in last),
        [one.owner for one in last],
    )


def _array(values: Iterable[object]) -> str:
    """Return an array as PostgreSQL reads it: numbers and ids need no quotes, lists are adapted slowly."""
    return "{" + ",".join(map(str, values)) + "}"
