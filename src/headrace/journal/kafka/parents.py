"""Parents of events that were published apart: whether they are there, before a handler sees the event.

What a handler's outcome has emitted is not asked about: its cause was read, committed, before that.
An event whose parents are not indexed yet is parked, and the topics are read to the ends that they have then,
which is after the event was read: a parent that is not indexed after that is missing.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

from headrace import errors
from headrace.event.envelope import Head
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.survey import Survey
from headrace.ports import Row

_log = logging.getLogger("headrace.journal")
#: A search that an outage has stopped goes on after this time.
AGAIN_S = 0.5


class Parked(NamedTuple):
    """An event that waits for its parents, under the assignment of its partition."""

    tp: int
    epoch: int
    row: Row


class Answer(NamedTuple):
    """What came of a search: a parent that is nowhere, or nothing where all are there."""

    parked: Parked
    missing: bytes | None


class Parents:
    """Looks for parents; what it finds stands in `answers`, for the consumer to take between transactions."""

    def __init__(self, log: Log, wake: Callable[[], None]) -> None:
        self._log, self._wake = log, wake
        self._parked: list[Parked] = []
        self._search: asyncio.Task[None] | None = None
        self.answers: deque[Answer] = deque()
        #: Is an event of a stamp (by its number) of another origin than a handler?
        self._apart: dict[int, bool] = {}

    def _is_apart(self, head: Head) -> bool:
        found = self._apart.get(head.stamp)
        if found is None:
            stamp = self._log.stamps.stamp(head.stamp)
            found = self._apart[head.stamp] = stamp is None or stamp.handler is None
        return found

    async def absent(self, rows: Iterable[Row]) -> set[int]:
        """Return the numbers of the events whose parents the index does not have; mostly it is not asked."""
        asked: dict[int, tuple[bytes, ...]] = {}
        for row in rows:
            head = row[5]
            if isinstance(head, Head) and head.parents and self._is_apart(head):
                asked[row[0]] = head.parents
        if not asked:
            return set()
        there = await self._log.index.present({one for parents in asked.values() for one in parents})
        return {number for number, parents in asked.items() if not there.issuperset(parents)}

    def search(self, parked: Iterable[Parked]) -> None:
        """Look for the parents of events, beside all else."""
        self._parked += parked
        if self._parked and (self._search is None or self._search.done()):
            self._search = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        while self._parked:
            parked, self._parked = self._parked, []
            try:
                self.answers += await self._found(parked)
                self._wake()
            except errors.JournalError as fault:
                _log.warning(
                    "[%s] parents that were published apart are still looked for: %s", fault.code, fault
                )
                self._parked += parked
                await self._log.clock.sleep(AGAIN_S)

    async def _found(self, parked: list[Parked]) -> list[Answer]:
        survey = Survey(self._log)
        try:
            # The ends are asked for now, after the events were read: nothing that caused them is beyond.
            await survey.fill((await survey.catalogue()).topics.values())
        finally:
            await survey.close()
        there = await self._log.index.present({one for at in parked for one in at.row[5].parents})
        return [
            Answer(at, next((one for one in at.row[5].parents if one not in there), None)) for at in parked
        ]

    async def close(self) -> None:
        """Stop looking."""
        search, self._search = self._search, None
        self._parked.clear()
        self.answers.clear()
        if search is not None:
            search.cancel()
            await asyncio.gather(search, return_exceptions=True)
