"""What those who look into a log ask of its index in a SQLite file."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace import errors
from headrace.journal.connection import Connection, Disk
from headrace.journal.index.stretches import counted, cuts_of
from headrace.journal.queries import load
from headrace.ports.index import Bound, Claim, First, Place

#: With more it is quicker to sort all ids than to compare each with those of its partition: it takes 2 s for
#: 300,000 of them, in place of 10 s for 4,000 bounds.
BOUNDS_FEW = 100


class SqliteView:
    """The whole of an index; scans of all ids take about a second for a few millions."""

    def __init__(self, address: str, db: Callable[[], Connection]) -> None:
        self._address, self._db = address, db
        self._queries: Any = load("index/sqlite_view.sql")

    async def belong(self, cluster: str) -> None:
        """Note whose index this is, or see that it is."""
        db = self._db()
        found = db.row(self._queries.meta_get, ("cluster",))
        if found is None:
            add = self._queries.meta_add
            await db.write(lambda: db.ex(add, ("cluster", cluster)), disk=Disk.LATER, tell=False)
            found = db.row(self._queries.meta_get, ("cluster",))
        if found[0] != cluster:
            raise errors.IndexForeign(path=self._address, found=found[0], cluster=cluster)

    async def know(self, topic_id: bytes, name: str) -> None:
        """Make a topic known as one that an app has used."""
        db = self._db()
        if (topic_id, name) not in db.rows(self._queries.topics):
            put = self._queries.topic_put
            await db.write(lambda: db.ex(put, (topic_id, name)), disk=Disk.LATER, tell=False)

    async def topics(self) -> dict[bytes, str]:
        """Return the topics that apps have used."""
        return dict(self._db().rows(self._queries.topics))

    async def indexed(self) -> dict[tuple[bytes, int], int]:
        """Return the first offset of each partition that is not indexed yet."""
        rows = self._db().rows(self._queries.places)
        return {(topic, partition): upto for topic, partition, upto in rows}

    async def claims(self) -> list[Claim]:
        """Return what is noted as claimed, of all subscriptions."""
        return [Claim(*row) for row in self._db().rows(self._queries.claims)]

    async def counts(self, topic_id: bytes, bounds: Sequence[Bound]) -> list[int]:
        """Return how many events of a topic lie within each of several bounds."""
        if len(bounds) > BOUNDS_FEW:
            rows = self._db().rows(self._queries.befores, (topic_id, json.dumps(cuts_of(bounds))))
            return counted(bounds, {(at, offset): before for at, offset, before in rows})
        asked = json.dumps([(number, *one) for number, one in enumerate(bounds)])
        found = dict(self._db().rows(self._queries.counts, (topic_id, asked)))
        return [found.get(number, 0) for number in range(len(bounds))]

    async def between(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, Place]]:
        """Return the ids between two, and where they lie."""
        return [_placed(row) for row in self._db().rows(self._queries.between, (low, high, limit))]

    async def chain(self, root: bytes, limit: int) -> list[tuple[bytes, Place]]:
        """Return the events of a chain, causes before effects."""
        return [_placed(row) for row in self._db().rows(self._queries.chain, (root, limit))]

    async def firsts(self, topic_id: bytes, partition: int, ids: Sequence[bytes]) -> dict[bytes, First]:
        """Return where ids were seen first in a partition; one that is not there is left out."""
        db, found = self._db(), dict[bytes, First]()
        for event_id in ids:
            row = db.row(self._queries.first_of, (event_id, topic_id, partition))
            if row is not None:
                found[event_id] = First(*row)
        return found

    async def ids(self, topic_id: bytes, partition: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Return the ids of a partition after one, with their offsets, in the order of ids."""
        return self._db().rows(self._queries.ids, (topic_id, partition, after, limit))

    async def forget(self, lows: Mapping[tuple[bytes, int], int]) -> None:
        """Drop the first positions that the log can give back: at and above an offset of each partition."""
        db, queries = self._db(), self._queries

        def drop() -> None:
            db.ex(queries.places_drop)
            for (topic_id, partition), low in lows.items():
                db.ex(queries.place_back, (topic_id, partition, low))
            db.ex(queries.firsts_drop)
            db.ex(queries.conflicts_drop)

        await db.write(drop, disk=Disk.LATER, tell=False)


def _placed(row: tuple[Any, ...]) -> tuple[bytes, Place]:
    return row[0], Place(*row[1:])
