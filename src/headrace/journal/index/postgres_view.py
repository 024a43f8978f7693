"""What those who look into a log ask of its index in PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from headrace import errors
from headrace.journal.index.session import Session, fetched
from headrace.journal.index.stretches import Cut, counted, cuts_of
from headrace.journal.queries import load
from headrace.ports.index import Bound, Claim, First, Place

if TYPE_CHECKING:
    from headrace.journal.index.session import Db

_QUERIES: Any = load("index/postgres_view.sql")
#: To forget ids whose log is partly gone is a pass over all of them: about a minute for ten millions.
FORGET_S_MAX = 600.0


class PostgresView:
    """The whole of an index; scans of all ids take about a second for a few millions."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def belong(self, cluster: str) -> None:
        """Note whose index this is, or see that it is."""
        found = await self._session.rows(_QUERIES.meta_get, ("cluster",))
        if not found:
            await self._session.rows(_QUERIES.meta_add, ("cluster", cluster))
            found = await self._session.rows(_QUERIES.meta_get, ("cluster",))
        if found[0][0] != cluster:
            raise errors.IndexForeign(path=self._session.address, found=found[0][0], cluster=cluster)

    async def know(self, topic_id: bytes, name: str) -> None:
        """Make a topic known as one that an app has used."""
        await self._session.rows(_QUERIES.topic_put, (topic_id.hex(), name))

    async def topics(self) -> dict[bytes, str]:
        """Return the topics that apps have used."""
        return {topic.bytes: name for topic, name in await self._session.rows(_QUERIES.topics)}

    async def indexed(self) -> dict[tuple[bytes, int], int]:
        """Return the first offset of each partition that is not indexed yet."""
        rows = await self._session.rows(_QUERIES.places)
        return {(topic.bytes, partition): upto for topic, partition, upto in rows}

    async def claims(self) -> list[Claim]:
        """Return what is noted as claimed, of all subscriptions."""
        return [Claim(*row) for row in await self._session.rows(_QUERIES.claims)]

    async def counts(self, topic_id: bytes, bounds: Sequence[Bound]) -> list[int]:
        """Return how many events of a topic lie within each of several bounds."""
        cuts = cuts_of(bounds)
        columns = _array(at for at, _ in cuts), _array(offset for _, offset in cuts)
        rows = await self._session.rows(_QUERIES.counts, (*columns, topic_id.hex()))
        events: dict[tuple[int, int], int] = {(at, number): count for at, number, count in rows}
        befores: dict[Cut, int] = {}
        for at, some in groupby(cuts, itemgetter(0)):
            mine = list(some)
            sums = accumulate(events.get((at, number), 0) for number in range(len(mine)))
            befores |= zip(mine, sums, strict=True)
        return counted(bounds, befores)

    async def between(self, low: bytes, high: bytes, limit: int) -> list[tuple[bytes, Place]]:
        """Return the ids between two, and where they lie."""
        rows = await self._session.rows(_QUERIES.between, (low.hex(), high.hex(), limit))
        return [_placed(row) for row in rows]

    async def chain(self, root: bytes, limit: int) -> list[tuple[bytes, Place]]:
        """Return the events of a chain, causes before effects."""
        return [_placed(row) for row in await self._session.rows(_QUERIES.chain, (root.hex(), limit))]

    async def firsts(self, topic_id: bytes, partition: int, ids: Sequence[bytes]) -> dict[bytes, First]:
        """Return where ids were seen first in a partition; one that is not there is left out."""
        asked = (topic_id.hex(), partition, _array(map(bytes.hex, ids)))
        rows = await self._session.rows(_QUERIES.firsts, asked)
        return {event.bytes: First(offset, content) for event, offset, content in rows}

    async def ids(self, topic_id: bytes, partition: int, after: bytes, limit: int) -> list[tuple[bytes, int]]:
        """Return the ids of a partition after one, with their offsets, in the order of ids."""
        rows = await self._session.rows(_QUERIES.ids, (topic_id.hex(), partition, after.hex(), limit))
        return [(event.bytes, offset) for event, offset in rows]

    async def forget(self, lows: Mapping[tuple[bytes, int], int]) -> None:
        """Drop the first positions that the log can give back: at and above an offset of each partition."""
        kept = {at: low for at, low in lows.items() if low > 0}
        columns = (
            _array(topic.hex() for topic, _ in kept),
            _array(partition for _, partition in kept),
            _array(kept.values()),
        )

        async def drop(db: Db) -> None:
            if not kept:
                await fetched(db, _QUERIES.all_drop)
                return
            async with db.transaction():
                bound_ms = str(int(FORGET_S_MAX * 1000))
                await fetched(db, _QUERIES.patience, (bound_ms, bound_ms))
                await fetched(db, _QUERIES.alone)
                await fetched(db, _QUERIES.places_back, columns)
                await fetched(db, _QUERIES.firsts_drop)
                await fetched(db, _QUERIES.conflicts_drop)

        await self._session.run(drop, seconds_max=FORGET_S_MAX)


def _placed(row: tuple[Any, ...]) -> tuple[bytes, Place]:
    event, topic, partition, offset, root, depth = row
    return event.bytes, Place(topic.bytes, partition, offset, root.bytes, depth)


def _array(values: Iterable[object]) -> str:
    """Return an array as PostgreSQL reads it."""
    return "{" + ",".join(map(str, values)) + "}"
