"""Looks at a journal without changing it: events, chains, progress, dead letters, versions."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import apsw
import msgspec

from headrace import errors
from headrace.codec.head import decode_head
from headrace.event.envelope import Envelope, Place, Stamp, envelope_of
from headrace.journal.connection import MEMORY, Connection, check_ours, mapped, open_file
from headrace.journal.queries import load

#: Rows of one query; nothing holds a read transaction open between two pages.
PAGE_ROWS_MAX = 1_000


class StoredEvent(NamedTuple):
    """An event as it lies in the journal."""

    envelope: Envelope
    payload: bytes


class Reader:
    """Reads pages of a journal; every call sees what was committed before it."""

    def __init__(self, source: str | Connection) -> None:
        self._queries: Any = load("reader.sql")
        self._own: apsw.Connection | None = None
        if isinstance(source, Connection):
            self._rows = source.rows
        else:
            self._own = _open(source)
            self._rows = self._read
        self._path = source if isinstance(source, str) else source.path
        self._topics: dict[int, str] = {}
        self._stamps: dict[int, Stamp] = {}

    def close(self) -> None:
        """Close the file."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _read(self, sql: str, bindings: Any = ()) -> list[Any]:
        if self._own is None:
            raise errors.JournalClosed
        with mapped(self._path):
            return self._own.execute(sql, bindings).fetchall()

    def events(
        self, *, after: int = 0, topic: str | None = None, limit: int = PAGE_ROWS_MAX
    ) -> list[StoredEvent]:
        """Return the events above an offset in commit order, at most a page."""
        count = min(limit, PAGE_ROWS_MAX)
        if topic is None:
            rows = self._rows(self._queries.events, (after, count))
        else:
            rows = self._rows(self._queries.events_of_topic, (after, topic, count))
        return [self._event(*row) for row in rows]

    def dead_rows(self) -> list[tuple[str, str, str, bytes]]:
        """Return reason, code, error and payload of each dead letter."""
        return self._rows(self._queries.dead_rows)

    def _event(self, seq: int, tp: int, event_id: bytes, depth: int, head: bytes, body: bytes) -> StoredEvent:
        decoded = decode_head(head)
        place = Place(self._topic(tp >> 10), tp & 1023, seq)
        return StoredEvent(envelope_of(event_id, depth, decoded, self._stamp(decoded.stamp), place), body)

    def _topic(self, number: int) -> str:
        if number not in self._topics:
            self._topics = dict(self._rows(self._queries.topic_names))
        return self._topics.get(number, f"#{number}")

    def _stamp(self, number: int) -> Stamp:
        found = self._stamps.get(number)
        if found is None:
            rows = self._rows(self._queries.stamp_value, (number,))
            found = msgspec.msgpack.decode(rows[0][0], type=Stamp) if rows else Stamp(f"#{number}", "", 0)
            self._stamps[number] = found
        return found


def _open(path: str) -> apsw.Connection:
    if path == MEMORY or not Path(path).exists():
        raise errors.JournalMissing(path=path)
    with mapped(path):
        db = open_file(path, read_only=True)
        if check_ours(db, path) == 0:
            raise errors.JournalForeign(path=path)
    return db
