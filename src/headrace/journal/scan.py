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
        #: Partitions that may have events between the end of what was claimed of them and the cursor.
        self.behind: set[int] = set()
        #: Did the last look end before it had seen all there is?
        self.more = False
        #: Is there nothing after the cursor, as far as anybody has told?
        self.seen_all = False

    def mark(self) -> tuple[int | None, set[int]]:
        """Return what `back` needs to come back to this moment."""
        return self.cursor, self.behind.copy()

    def back(self, mark: tuple[int | None, set[int]]) -> None:
        """Forget what was seen since ``mark`` was made: the transaction that saw it has failed."""
        self.cursor, self.behind = mark[0], mark[1].copy()
        self.seen_all = False

    def claimed(self, tp: int, upto: int) -> None:
        """Note that a partition was claimed up to an offset."""
        if self.cursor is not None and upto >= self.cursor:
            self.behind.discard(tp)

    def look(self, parts: dict[int, Held], limit: int) -> dict[int, Found]:
        """Return the next events of the partitions that may take some, at most ``limit`` in all.

        What is found lies behind the cursor until it is `claimed`.
        """
        self.more = False
        if not parts:
            return {}
        if self.cursor is None:
            self.cursor = min(held.high for held in parts.values())
        found, stuck = self._fallen_behind(parts, limit, self.cursor) if self.behind else ({}, set[int]())
        left = limit - sum(len(one.rows) for one in found.values())
        if left > 0 and not self.seen_all:
            self._ahead(parts, found, stuck, left)
        return found

    def _fallen_behind(
        self, parts: dict[int, Held], limit: int, cursor: int
    ) -> tuple[dict[int, Found], set[int]]:
        """Return the events before the cursor, and the partitions that have more of them."""
        found: dict[int, Found] = {}
        stuck: set[int] = set()
        for tp in list(self.behind):
            held = parts.get(tp)
            if held is None or held.high >= cursor:
                self.behind.discard(tp)
                continue
            room = min(limit, OPEN_MAX - len(held.open)) if may_take(held) else 0
            rows = self._behind(tp, held.high, cursor, room) if room > 0 else []
            limit -= len(rows)
            if room <= 0 or len(rows) == room:
                stuck.add(tp)
            if rows:
                found[tp] = Found(rows, rows[-1][0] if tp in stuck else self._upto(tp, cursor))
            elif tp not in stuck:
                self.behind.discard(tp)  # nothing was there after all
                held = parts[tp] = held.copy()
                held.high = self._upto(tp, cursor)
        return found, stuck

    def _ahead(self, parts: dict[int, Held], found: dict[int, Found], stuck: set[int], left: int) -> None:
        """Add the events after the cursor to what is found, and move the cursor."""
        size = min(PAGE_ROWS_MAX, left * -(-self._partitions // len(parts)))
        for _ in range(PAGES_MAX):
            page = self._page(size)
            for row in page:
                if left <= 0:
                    break
                self.cursor, tp = row[0], row[1]
                held = parts.get(tp)
                if held is None or row[0] <= held.high:
                    continue
                self.behind.add(tp)
                if tp not in found:
                    if tp in stuck or not may_take(held):
                        continue
                    found[tp] = Found([], row[0])
                if tp in stuck or len(found[tp].rows) >= OPEN_MAX - len(held.open):
                    stuck.add(tp)  # the rest is read from where its range ends
                    continue
                found[tp].rows.append(row)
                left -= 1
            if len(page) < size or left <= 0:
                self.seen_all = left > 0
                break
        else:
            self.more = True
        assert self.cursor is not None
        for tp, (rows, _) in found.items():
            found[tp] = Found(rows, rows[-1][0] if tp in stuck else self._upto(tp, self.cursor))

    # --- what a replay has otherwise ----------------------------------------------------------

    def _page(self, size: int) -> list[Row]:
        """Return the next events after the cursor."""
        return self._db.rows(self._db.queries.claim_rows, (self._topic, self.cursor, size))

    def _behind(self, tp: int, after: int, cursor: int, room: int) -> list[Row]:
        """Return the next events of a partition before the cursor."""
        return self._db.rows(self._db.queries.claim_rows_behind, (self._topic, tp, after, cursor, room))

    def _upto(self, tp: int, cursor: int) -> int:
        """Return how far a partition has been seen, when the topic has been up to the cursor."""
        del tp
        return cursor


def may_take(held: Held) -> bool:
    """Return whether a partition may take new events."""
    return not held.unsettled and not held.leaving and len(held.open) < OPEN_MAX
