"""Which records are claimed next; and their claim in the index, while handlers are busy with those before."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from headrace import errors
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.part import Part
from headrace.journal.kafka.rows import Reading, offset_of
from headrace.journal.kafka.share import Share
from headrace.journal.scan import OPEN_MAX, may_take
from headrace.ports import TopicInfo
from headrace.ports.index import Claim, Looked, Stretch

#: Batches under way at a time: one whose outcome is written, one that is handled, one that is being claimed.
UNDER_WAY = 3
#: A claim takes at least so many of a partition: each costs a record of the ledger in every transaction.
SHARE_MIN = 32

#: With fewer that wait, nothing is gained: what is claimed ahead waits for an outcome more.
AHEAD_MIN = 128

Chosen = dict[int, tuple[Part, list[Reading]]]


class Noted(NamedTuple):
    """Records that the index has noted as claimed, and what it said."""

    chosen: Chosen
    claims: list[Claim]
    looked: Looked


class Ahead:
    """The next records of a subscription's partitions, which take turns.

    A claim is of some of the partitions only, so that others can be claimed while its outcome is written.
    """

    def __init__(self, log: Log, handler: str, topic: TopicInfo, share: Share, owner: str) -> None:
        self._log, self._handler, self._topic, self._share = log, handler, topic, share
        self._owner = owner
        self._noting: asyncio.Task[Noted | None] | None = None

    async def claimed(self, limit: int) -> Noted | None:
        """Return the next records, noted as claimed; ``None`` where nothing waits."""
        noting, self._noting = self._noting, None
        noted = None if noting is None else await noting
        if noted is not None:
            noted = noted._replace(chosen=self._still(noted.chosen, limit))
        if noted is None or not noted.chosen:
            chosen = self._choose(limit)
            noted = await self._note(chosen) if chosen else None
        return noted

    def begin(self, limit: int) -> None:
        """Have what comes next noted as claimed, while handlers are busy."""
        if self._noting is None:
            chosen = self._choose(limit)
            if sum(len(readings) for _, readings in chosen.values()) >= AHEAD_MIN:
                self._noting = asyncio.get_running_loop().create_task(self._try(chosen))

    def stop(self) -> None:
        """Give up what is under way."""
        noting, self._noting = self._noting, None
        if noting is not None:
            noting.cancel()

    async def _try(self, chosen: Chosen) -> Noted | None:
        try:
            return await self._note(chosen)
        except errors.JournalError:
            return None  # whoever takes meets it, too

    def _still(self, chosen: Chosen, limit: int) -> Chosen:
        """Return what of records that were chosen a while ago can be taken now."""
        found = Chosen()
        for tp, (part, readings) in chosen.items():
            now = self._share.parts.get(tp)
            if now is None or now.waiting is not part.waiting or not self._may_take(tp, now):
                continue  # given up meanwhile
            count = min(limit, OPEN_MAX - len(now.held.open))
            if count > 0:
                found[tp] = now, now.some(readings, count)
                limit -= now.wanted(found[tp][1])
        return found

    def _choose(self, limit: int) -> Chosen:
        """Return the next records of partitions that have no claim in hand; they go to the end of the row."""
        parts, found, some = self._share.parts, Chosen(), self._some(limit)
        for tp, part in parts.items():
            if limit <= 0:
                break
            if part.ready and part.waiting.records and self._may_take(tp, part):
                # Each of them may stay open.
                count = min(some, limit, OPEN_MAX - len(part.held.open))
                readings = part.some(part.waiting.records, count)
                found[tp] = part, readings
                limit -= part.wanted(readings)
        for tp in found:
            parts[tp] = parts.pop(tp)
        return found

    def _may_take(self, tp: int, part: Part) -> bool:
        return may_take(part.held) and tp not in self._share.standing

    def _some(self, limit: int) -> int:
        """Return how many records of a partition a claim takes: of a third of those that have any."""
        busy = sum(1 for part in self._share.parts.values() if part.waiting.records or part.held.unsettled)
        return limit if busy < UNDER_WAY else max(SHARE_MIN, -(-UNDER_WAY * limit // busy))

    def _stretches(self, chosen: Chosen) -> list[Stretch]:
        """Return what the index has to look at before records may be claimed."""
        topic_id = self._log.found(self._topic).topic_id
        found: list[Stretch] = []
        for part, readings in chosen.values():
            fresh = readings[part.waiting.looked :]
            if fresh:
                after = max(offset_of(part.held.high) + 1, part.waiting.upto)
                upto = offset_of(fresh[-1].row[0]) + 1
                found.append(Stretch(topic_id, part.partition, after, upto, [one.seen for one in fresh]))
        return found

    def _claims(self, chosen: Chosen) -> list[Claim]:
        """Return what is to be noted as claimed."""
        return [
            Claim(
                self._handler,
                part.partition,
                offset_of(part.held.high) + 1,
                offset_of(readings[-1].row[0]) + 1,
                self._owner,
            )
            for part, readings in chosen.values()
        ]

    async def _note(self, chosen: Chosen) -> Noted:
        """Note claims, and index what of them the index has not looked at yet."""
        claims, stretches = self._claims(chosen), self._stretches(chosen)
        self._log.faults.at("claim.begin")
        looked = await self._log.look(self._handler, self._topic, stretches, claims)
        self._log.faults.at("claim.noted")
        for part, readings in chosen.values():
            fetched = part.waiting
            fetched.looked = max(fetched.looked, len(readings))
            fetched.upto = max(fetched.upto, offset_of(readings[-1].row[0]) + 1)
            for one in readings:
                first = looked.copies.get((part.partition, one.seen.offset))
                if first is not None:
                    fetched.copies[one.seen.offset] = first
        return Noted(chosen, claims, looked)
