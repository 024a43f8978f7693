"""A worker's share of a replay: as of a live subscription, but for what the replay was allotted alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.journal.connection import Connection, Disk
from headrace.journal.consumer import SqliteConsumer
from headrace.journal.held import Held
from headrace.journal.queries import load
from headrace.journal.scan import Found, Scan
from headrace.ports import Batch, Outcome, Row, Settled, Subscription, VersionInfo


class ReplayScan(Scan):
    """Reads of a topic what a replay was allotted, and goes no further in any partition."""

    def __init__(self, db: Connection, subscription: Subscription) -> None:
        super().__init__(db, subscription.topic.id, subscription.topic.partitions)
        self._sub = subscription.id
        self._own: Any = load("replay.sql")
        #: The last offset of each partition; grows while the replay follows.
        self.ends: dict[int, int] = {}

    def back(self, mark: tuple[int | None, set[int]]) -> None:
        """Forget what was seen since, the ends with it."""
        super().back(mark)
        self.ends = {}

    def look(self, parts: dict[int, Held], limit: int) -> dict[int, Found]:
        """Return the next events; of partitions that have got some behind the cursor, those too."""
        ends: dict[int, int] = dict(self._db.rows(self._own.ends, (self._sub,)))
        if ends != self.ends:
            self.behind |= {tp for tp, end in ends.items() if end != self.ends.get(tp)}
            self.ends, self.seen_all = ends, False
        return super().look(parts, limit)

    def _page(self, size: int) -> list[Row]:
        last = max(self.ends.values(), default=0)
        return self._db.rows(self._own.claim_rows, (self._topic, self.cursor, size, self._sub, last))

    def _behind(self, tp: int, after: int, cursor: int, room: int) -> list[Row]:
        return self._db.rows(self._own.claim_rows_behind, (self._topic, tp, after, cursor, room, self._sub))

    def _upto(self, tp: int, cursor: int) -> int:
        return min(cursor, self.ends.get(tp, cursor))


class ReplayConsumer(SqliteConsumer):
    """Claims what a replay was allotted, and counts what follows from it."""

    _scan: ReplayScan

    def __init__(
        self, db: Connection, worker: int, subscription: Subscription, audience: set[SqliteConsumer]
    ) -> None:
        super().__init__(db, worker, subscription, audience)
        self._scan = ReplayScan(db, subscription)
        self._own: Any = load("replay.sql")

    async def take(self, limit: int, version: VersionInfo) -> Batch | None:
        """Claim events; where there are none left, say so in the journal."""
        batch = await super().take(limit, version)
        if batch is None and self._ended():
            await self._transact(self._end, disk=Disk.SOON, tell=True)
        return batch

    def _ended(self) -> list[Held]:
        """Return the partitions in which nothing is left, though their position does not say so yet."""
        seen = self._scan.seen_all and not self._scan.more
        ends, behind = self._scan.ends, self._scan.behind
        return [
            held
            for tp, held in self._parts.items()
            if seen and tp not in behind and not held.unsettled and held.stored < ends.get(tp, 0)
        ]

    def _end(self) -> None:
        for held in self._ended():
            ended = self._parts[held.tp] = held.copy()
            ended.high = ended.stored = upto = self._scan.ends[held.tp]
            self._db.ex(self._queries.position_skip, (upto, self._sub, held.tp, self._worker, held.epoch))

    def _skip(self) -> None:
        """Leave positions where they are: what lies ahead may be allotted later."""

    def _settle(self, parts: Sequence[tuple[Batch, Outcome]], limit: int, *, careful: bool) -> list[Settled]:
        settled = super()._settle(parts, limit, careful=careful)
        emitted = sum(
            cause not in answer.stale and cause not in answer.conflicts
            for (_, outcome), answer in zip(parts, settled, strict=True)
            for cause in outcome.causes
        )
        if emitted:
            self._db.ex(self._own.replay_emitted, (emitted, self._sub))
        return settled
