"""An index in a SQLite file, shared by the processes of one host."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

from headrace import errors
from headrace.journal.connection import Connection, Disk
from headrace.journal.file import Form, exists
from headrace.journal.index.sqlite_view import SqliteView
from headrace.journal.index.stretches import ordered
from headrace.journal.queries import load
from headrace.ports import Chance, Clock, Faults
from headrace.ports.index import Active, Claim, First, Looked, Place, Projection, Stretch, Tried

#: "HDRI" in ASCII, in the header of the file; the schema; what makes it.
INDEX = Form(0x48445249, ("index/sqlite_schema.sql",))


class _Part(NamedTuple):
    """A stretch, and the number of its partition (0: never indexed) and how far that is indexed."""

    stretch: Stretch
    number: int
    indexed: int


class SqliteIndex:
    """An index in a file.  A process kill takes nothing of it, and what a power cut takes is made again."""

    def __init__(self, path: str, *, clock: Clock, chance: Chance, faults: Faults) -> None:
        self.address = path
        self._clock, self._chance, self._faults = clock, chance, faults
        self._connection: Connection | None = None
        self._queries: Any = load("index/sqlite.sql")
        self.view = SqliteView(path, self._db)

    def _db(self) -> Connection:
        if self._connection is None:
            raise errors.JournalClosed
        self._connection.check_process()
        return self._connection

    async def open(self, *, make: bool = True) -> None:
        """Open the file, which is made where it is missing."""
        if not make and not exists(self.address):
            raise errors.IndexMissing(path=self.address)
        if self._connection is None:
            # Nobody waits for the disk: all of it can be made again.
            self._connection = Connection(
                self.address,
                durability="full",
                clock=self._clock,
                chance=self._chance,
                faults=self._faults,
                form=INDEX,
            )

    async def close(self) -> None:
        """Close the file; harmless when that is done."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    # --- first positions ----------------------------------------------------------------------

    async def indexed(self, topic_id: bytes, partition: int) -> int:
        """Return the first offset of a partition that is not indexed yet."""
        return self._place(self._db(), topic_id, partition)[1]

    def _place(self, db: Connection, topic_id: bytes, partition: int) -> tuple[int, int]:
        return db.row(self._queries.place_get, (topic_id, partition)) or (0, 0)

    async def look(self, handler: str, stretches: Sequence[Stretch], claims: Sequence[Claim] = ()) -> Looked:
        """Index stretches and note claims in one transaction; tell which records are copies."""
        db, wanted = self._db(), ordered(stretches)
        if not claims:
            parts = self._parts(db, wanted)
            if all(part.stretch.upto <= part.indexed for part in parts):
                return Looked(self._copies(db, parts), None)  # what is indexed does not change any more
        return await db.write(lambda: self._index(db, handler, wanted, claims), disk=Disk.LATER, tell=False)

    def _parts(self, db: Connection, wanted: Iterable[Stretch]) -> list[_Part]:
        return [_Part(one, *self._place(db, one.topic_id, one.partition)) for one in wanted]

    def _index(
        self, db: Connection, handler: str, wanted: Sequence[Stretch], claims: Sequence[Claim]
    ) -> Looked:
        parts = self._parts(db, wanted)
        for stretch, _, indexed in parts:
            if stretch.after > indexed:
                raise errors.IndexGap(partition=stretch.partition, indexed=indexed, after=stretch.after)
        parts = [part if part.number else self._begin(db, part) for part in parts]
        asked = sum(len(part.stretch.records) for part in parts)
        copies = self._copies(db, parts) if self._add(db, parts) < asked else {}
        if copies:
            db.many(self._queries.conflict_add, _conflicts(parts, copies))
        if not claims:
            return Looked(copies, None)
        refused = [one.partition for one in claims if db.row(self._queries.claim_put, one) is None]
        return Looked(copies, *self._active(db, handler), frozenset(refused))

    def _begin(self, db: Connection, part: _Part) -> _Part:
        place = (part.stretch.topic_id, part.stretch.partition)
        return part._replace(number=db.row(self._queries.place_add, place)[0])

    def _add(self, db: Connection, parts: Sequence[_Part]) -> int:
        """Index what is not yet; return how many ids were new."""
        rows = [
            (one.event_id, number, one.offset, one.content, one.root, one.depth)
            for stretch, number, indexed in parts
            for one in stretch.records
            if one.offset >= indexed
        ]
        before = db.row(self._queries.changes)[0]
        db.many(self._queries.first_add, rows)
        added: int = db.row(self._queries.changes)[0] - before
        for stretch, number, indexed in parts:
            if stretch.upto > indexed:
                db.ex(self._queries.place_upto, (stretch.upto, number))
        return added

    def _copies(self, db: Connection, parts: Iterable[_Part]) -> dict[tuple[int, int], First]:
        found: dict[tuple[int, int], First] = {}
        for stretch, number, _ in parts:
            for one in stretch.records:
                first = db.row(self._queries.first_get, (one.event_id, number))
                if first is not None and first[0] != one.offset:
                    found[stretch.partition, one.offset] = First(*first)
        return found

    async def present(self, ids: Collection[bytes]) -> set[bytes]:
        """Return which of some ids are indexed, in whatever topic."""
        db, query = self._db(), self._queries.present
        return {one for one in ids if db.row(query, (one,)) is not None}

    async def find(self, event_id: bytes) -> list[Place]:
        """Return where an id lies, in every topic that has it."""
        return [Place(*row) for row in self._db().rows(self._queries.find, (event_id,))]

    async def forget(self) -> None:
        """Drop the first positions; claims, attempts and versions stay."""
        db = self._db()
        drops = (self._queries.firsts_drop, self._queries.conflicts_drop, self._queries.places_drop)
        await db.write(lambda: [db.ex(drop) for drop in drops], disk=Disk.LATER, tell=False)

    # --- claims and attempts ------------------------------------------------------------------

    async def take_over(self, subscription: str, partition: int, owner: str) -> Claim | None:
        """Make a worker the one whose claims count; return what another has in hand."""
        db = self._db()

        def take() -> Claim | None:
            found = db.row(self._queries.claim_get, (subscription, partition))
            db.ex(self._queries.claim_take, (subscription, partition, owner))
            claim = None if found is None else Claim(*found)
            return claim if claim and claim.owner not in ("", owner) else None

        return await db.write(take, disk=Disk.LATER, tell=False)

    async def hand_over(self, subscription: str, partition: int, owner: str) -> None:
        """Say that a worker has nothing of a partition in hand, and that no claim of it is to come."""
        db, bindings = self._db(), (subscription, partition, owner)
        await db.write(lambda: db.ex(self._queries.claim_hand_over, bindings), disk=Disk.LATER, tell=False)

    async def claims(self, subscription: str) -> list[Claim]:
        """Return what is noted as claimed, at most one claim per partition."""
        return [Claim(*row) for row in self._db().rows(self._queries.claims, (subscription,))]

    async def tried(self, subscription: str, partition: int) -> list[Tried]:
        """Return the attempts of open offsets."""
        return [Tried(*row) for row in self._db().rows(self._queries.tried, (subscription, partition))]

    async def try_again(self, subscription: str, partition: int, tries: Sequence[Tried]) -> None:
        """Note attempts before they are made."""
        db = self._db()
        rows = [(subscription, partition, *one) for one in tries]
        await db.write(lambda: db.many(self._queries.tried_put, rows), disk=Disk.LATER, tell=False)

    async def finished(self, subscription: str, partition: int, low: int) -> None:
        """Forget claims and attempts below an offset: all is closed there."""
        db, below = self._db(), (subscription, partition, low)
        steps = (self._queries.claim_cut, self._queries.tried_drop)
        await db.write(lambda: [db.ex(step, below) for step in steps], disk=Disk.LATER, tell=False)

    # --- versions -----------------------------------------------------------------------------

    async def project(self, known: Projection) -> None:
        """Show these versions; an older projection of the same log never replaces a newer."""
        db = self._db()
        if self._newer(db, known):
            await db.write(lambda: self._project(db, known), disk=Disk.LATER, tell=False)

    def _newer(self, db: Connection, known: Projection) -> bool:
        found = db.row(self._queries.versions_upto)
        return found is None or found[0] != known.log or found[1] < known.upto

    def _project(self, db: Connection, known: Projection) -> None:
        if not self._newer(db, known):
            return  # another was quicker
        queries = self._queries
        for drop in (queries.models_drop, queries.handlers_drop, queries.versions_drop):
            db.ex(drop)
        db.many(queries.model_put, list[Any](known.models))
        db.many(queries.handler_put, list[Any](known.handlers))
        db.many(queries.version_put, list[Any](known.versions))
        db.ex(queries.versions_upto_put, (known.log, known.upto))

    async def active(self, handler: str) -> Active:
        """Return a handler's active version."""
        return self._active(self._db(), handler)

    def _active(self, db: Connection, handler: str) -> Active:
        return Active(*db.row(self._queries.active, (handler,)))


def _conflicts(parts: Iterable[_Part], copies: dict[tuple[int, int], First]) -> list[tuple[int, int]]:
    """Return the records (partition's number, offset), new to the index, whose id other content has taken."""
    found: list[tuple[int, int]] = []
    for stretch, number, indexed in parts:
        for one in stretch.records:
            first = copies.get((stretch.partition, one.offset))
            if first is not None and first.content != one.content and one.offset >= indexed:
                found.append((number, one.offset))
    return found
