"""Which records are claimed next; and a look at the index for those behind them, while handlers are busy."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice

from headrace import errors
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.part import Part
from headrace.journal.kafka.rows import Reading, offset_of
from headrace.journal.kafka.share import Share
from headrace.journal.scan import OPEN_MAX, may_take
from headrace.ports import TopicInfo
from headrace.ports.index import Claim, Looked, Stretch

#: Records that are looked up ahead at a time: as many as one claim takes.
AHEAD_MAX = 512
#: A claim takes at least so many of a partition: each costs a record of the ledger in every transaction.
SHARE_MIN = 32

Chosen = dict[int, tuple[Part, list[Reading]]]


class Ahead:
    """The next records of a subscription's partitions, which take turns.

    A claim is of some of the partitions only, so that others can be claimed while its outcome is written.
    """

    def __init__(self, log: Log, handler: str, topic: TopicInfo, share: Share) -> None:
        self._log, self._handler, self._topic, self._share = log, handler, topic, share
        self._looking: asyncio.Task[None] | None = None

    def choose(self, limit: int) -> Chosen:
        """Return the next records of partitions that have no claim in hand; they go to the end of the row."""
        parts, found, some = self._share.parts, Chosen(), self._some(limit)
        for tp, part in parts.items():
            if limit <= 0:
                break
            if part.ready and part.waiting.records and may_take(part.held):
                # Each of them may stay open.
                count = min(some, limit, OPEN_MAX - len(part.held.open))
                readings = list(islice(part.waiting.records, count))
                found[tp] = part, readings
                limit -= len(readings)
        for tp in found:
            parts[tp] = parts.pop(tp)
        return found

    def _some(self, limit: int) -> int:
        """Return how many records of a partition a claim takes: half of those that have any make it full."""
        busy = sum(1 for part in self._share.parts.values() if part.waiting.records or part.held.unsettled)
        return limit if busy < 2 else max(SHARE_MIN, -(-2 * limit // busy))  # noqa: PLR2004 - half

    def stretches(self, chosen: Chosen) -> list[Stretch]:
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

    def claims(self, chosen: Chosen, owner: str) -> list[Claim]:
        """Return what is to be noted as claimed."""
        return [
            Claim(
                self._handler,
                part.partition,
                offset_of(part.held.high) + 1,
                offset_of(readings[-1].row[0]) + 1,
                owner,
            )
            for part, readings in chosen.values()
        ]

    @staticmethod
    def note(chosen: Chosen, looked: Looked) -> None:
        """Keep the answer of the index with the records that it is about."""
        for part, readings in chosen.values():
            fetched = part.waiting
            fetched.looked = max(fetched.looked, len(readings))
            fetched.upto = max(fetched.upto, offset_of(readings[-1].row[0]) + 1)
            for one in readings:
                first = looked.copies.get((part.partition, one.seen.offset))
                if first is not None:
                    fetched.copies[one.seen.offset] = first

    def begin(self) -> None:
        """Look up what waits behind the claims that are in hand."""
        if self._looking is None or self._looking.done():
            chosen = self._unknown()
            if chosen:
                self._looking = asyncio.get_running_loop().create_task(self._look(chosen))

    def _unknown(self) -> Chosen:
        found, left = Chosen(), AHEAD_MAX
        some = self._some(AHEAD_MAX)
        for tp, part in self._share.parts.items():
            fetched = part.waiting
            count = min(len(fetched.records) - fetched.looked, some, left)
            if part.ready and count > 0:
                found[tp] = part, list(islice(fetched.records, fetched.looked + count))
                left -= count
        return found

    async def _look(self, chosen: Chosen) -> None:
        with suppress(errors.JournalError):  # the claim meets it, too
            looked = await self._log.look(self._handler, self._topic, self.stretches(chosen), ())
            self.note(chosen, looked)

    async def ended(self) -> None:
        """Wait for a look that is under way."""
        looking, self._looking = self._looking, None
        if looking is not None:
            await looking

    def stop(self) -> None:
        """Give up a look that is under way."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
