"""Finds the next events of the partitions that a worker holds, in commit order over their topic.

The journal has one index entry per topic, not per partition: sixteen places to append to would cost a third
of the write rate.  So a worker reads its topic once, from a cursor on, and passes over what is not its own.
A partition that may not take events at that moment falls behind the cursor and is read by itself later.
"""

from __future__ import annotations

from typing import NamedTuple

from headrace.journal.connection import Connection
from headrace.journal.held import Held
from headrace.ports import Row

#: Open offsets of one partition; beyond it the partition takes no new events until some are closed.
OPEN_MAX = 1_000
#: Rows of one page, and pages of one look: what is passed over belongs to other workers.
PAGE_ROWS_MAX = 2_048
PAGES_MAX = 8


class Found(NamedTuple):
    """The next events of a partition: all there are up to an offset."""

    rows: list[Row]
    upto: int


class Scan:
    """Reads one topic for one worker."""

    def __init__(self, db: Connection, topic: int, partitions: int) -> None:
        self._db, self._topic, self._partitions = db, topic, partitions
        #: Up to here every event of the partitions held was seen; those not taken lie behind, unread.
        self.cursor: int | None = None
        #: Did the last look end before it had seen all there is?
        self.more = False
        #: Is there nothing after the cursor, as far as anybody has told?
        self.seen_all = False

    def look(self, parts: dict[int, Held], limit: int) -> dict[int, Found]:
        """Return the next events of each partition that may take some, at most ``limit`` in all."""
        if not parts:
            return {}
        if self.cursor is None:
            self.cursor = min(held.high for held in parts.values())
        found, behind = self._fallen_behind(parts, limit, self.cursor)
        if self.seen_all:
            return found
        ready = {tp: held for tp, held in parts.items() if tp not in behind and may_take(held)}
        if sum(len(one.rows) for one in found.values()) < limit:
            found |= self._ahead(parts, ready, found, limit)
        return found

    def _fallen_behind(
        self, parts: dict[int, Held], limit: int, cursor: int
    ) -> tuple[dict[int, Found], set[int]]:
        """Return the events before the cursor, and the partitions that have more of them."""
        found: dict[int, Found] = {}
        behind: set[int] = set()
        for tp, held in parts.items():
            if held.high >= cursor:
                continue
            room = min(limit, OPEN_MAX - len(held.open)) if may_take(held) else 0
            bindings = (self._topic, tp, held.high, cursor, room)
            rows: list[Row] = self._db.rows(self._db.queries.claim_rows_behind, bindings) if room > 0 else []
            limit -= len(rows)
            if room <= 0 or len(rows) == room:
                behind.add(tp)
            if rows:
                found[tp] = Found(rows, rows[-1][0] if tp in behind else cursor)
            elif tp not in behind:
                held.high = cursor  # nothing was there after all
        return found, behind

    def _ahead(
        self, parts: dict[int, Held], ready: dict[int, Held], found: dict[int, Found], limit: int
    ) -> dict[int, Found]:
        """Return what is found, with the events after the cursor added, and move the cursor."""
        assert self.cursor is not None
        taken = {tp: found[tp].rows if tp in found else [] for tp in ready}
        room = {tp: OPEN_MAX - len(held.open) for tp, held in ready.items()}
        full: set[int] = set()
        left = limit - sum(len(one.rows) for one in found.values())
        size = min(PAGE_ROWS_MAX, left * -(-self._partitions // len(parts)))
        self.more = False
        for _ in range(PAGES_MAX):
            page: list[Row] = self._db.rows(self._db.queries.claim_rows, (self._topic, self.cursor, size))
            if not (page or found or any(taken.values())):
                self.seen_all = True  # nothing new, the usual case
                return {}
            for row in page:
                if left <= 0:
                    break
                self.cursor, tp = row[0], row[1]
                if tp not in taken or tp in full or row[0] <= ready[tp].high:
                    continue
                if len(taken[tp]) >= room[tp]:
                    full.add(tp)  # it has fallen behind: the rest is read from where its range ends
                    continue
                taken[tp].append(row)
                left -= 1
            if len(page) < size or left <= 0:
                self.seen_all = left > 0
                break
        else:
            self.more = True
        return {
            tp: Found(rows, rows[-1][0] if tp in full else self.cursor)
            for tp, rows in taken.items()
            if tp not in full or rows
        }


def may_take(held: Held) -> bool:
    """Return whether a partition may take new events."""
    return not held.unsettled and not held.leaving and len(held.open) < OPEN_MAX
