"""Looks at a journal without changing it: events by offset, by id, by chain."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import apsw

from headrace import errors
from headrace.codec.head import decode_head, decode_stamp
from headrace.event.envelope import Head, Place, Stamp, envelope_of
from headrace.event.lineage import id_of, text_of
from headrace.journal.connection import Connection
from headrace.journal.file import JOURNAL, MEMORY, check_ours, exists, mapped, open_file
from headrace.journal.notify import Watch, notify_path
from headrace.journal.queries import load
from headrace.ports.look import CHAIN_EVENTS_MAX, SKEW_US_MAX, Fits, StoredEvent, always, us_of

#: Rows of one query; nothing holds a read transaction open between two pages.
PAGE_ROWS_MAX = 1_000
#: Hex digits of an id; and the fewest that may stand for it.
ID_DIGITS, ID_DIGITS_MIN = 32, 8
#: Ids that are named when a beginning fits several.
CANDIDATES_MAX = 5

#: A stored event as the queries return it: offset, place, id, depth, envelope, payload; and, where it may be
#: what is left of one, a word that says why its payload is gone.
EventRow = tuple[int, int, bytes, int, bytes, bytes] | tuple[int, int, bytes, int, bytes, bytes, str]


class Reader:
    """Reads pages of a journal; every call sees what was committed before it."""

    def __init__(self, source: str | Connection) -> None:
        self._queries: Any = load("reader.sql")
        self._own: apsw.Connection | None = None
        #: What the file was like when it was opened as one that nobody writes to; and how often it was.
        self._alone: _Seen | None = None
        self._opened = 0
        if isinstance(source, Connection):
            self.rows = source.rows
            self.path = source.path
        else:
            self.rows = self._read
            self.path = source
            self._reopen()
        self._in_snapshot = not isinstance(source, str)
        self._topics: dict[int, str] = {}
        self._numbers: dict[str, int] = {}
        self._stamps: dict[int, Stamp] = {}

    def close(self) -> None:
        """Close the file."""
        if self._own is not None:
            self._own.close()
            self._own = None

    def _reopen(self) -> None:
        seen = _seen(self.path)  # before: what comes after it is noticed
        self.close()
        self._own, alone = _open(self.path)
        self._alone = seen if alone else None
        self._opened += 1

    def _read(self, sql: str, bindings: Sequence[Any] = ()) -> list[Any]:
        if self._own is None:
            raise errors.JournalClosed
        # By now somebody writes to what nobody wrote to: it is read as they leave it, under their locks.
        if self._alone is not None and not self._own.in_transaction and _seen(self.path) != self._alone:
            self._reopen()
        with mapped(self.path):
            return self._own.execute(sql, bindings).fetchall()

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Let all queries inside see the same state; keep it short, for it holds the WAL.

        In memory there is one connection, and nobody else can write between two queries.
        """
        if self._in_snapshot:
            yield
            return
        self.rows(self._queries.begin)
        self._in_snapshot = True
        try:
            yield
        finally:
            self._in_snapshot = False
            self.rows(self._queries.end)

    def changed(self) -> tuple[int, int]:
        """Return what is another one when somebody has committed."""
        version = int(self.rows(self._queries.data_version)[0][0])
        return self._opened, version

    def watch(self, wake: Callable[[], None], *, topic: str | None = None) -> Watch:
        """Have ``wake`` called when somebody may have put events on disk (of a topic)."""
        number = None if topic is None else self._number(topic)
        topics = None if number is None else [number]
        return Watch(notify_path(self.path), lambda _: wake(), topics=topics, flushed=True)

    # --- by offset ----------------------------------------------------------------------------

    def events(
        self, *, after: int = 0, topic: str | None = None, limit: int = PAGE_ROWS_MAX
    ) -> list[StoredEvent]:
        """Return the events above an offset in commit order, at most a page."""
        count = min(limit, PAGE_ROWS_MAX)
        if topic is None:
            rows = self.rows(self._queries.events, (after, count))
        else:
            rows = self.rows(self._queries.events_of_topic, (after, self._number(topic), count))
        return [self.event(row) for row in rows]

    def newest(self, count: int, *, topic: str | None = None, fits: Fits = always) -> list[StoredEvent]:
        """Return the last ``count`` events (of a topic) that fit, in commit order."""
        found: list[StoredEvent] = []
        below = self.last_offset() + 1
        while len(found) < count:
            rows = self._before(below, topic)
            found += [one for one in map(self.event, rows) if fits(one)]
            if len(rows) < PAGE_ROWS_MAX:
                break
            below = rows[-1][0]
        return found[:count][::-1]

    def _before(self, below: int, topic: str | None) -> list[EventRow]:
        if topic is None:
            return self.rows(self._queries.events_before, (below, PAGE_ROWS_MAX))
        return self.rows(self._queries.events_of_topic_before, (below, topic, PAGE_ROWS_MAX))

    def last_offset(self) -> int:
        """Return the highest offset, or 0."""
        return int(self.rows(self._queries.last_offset)[0][0])

    def before(self, us: int) -> int:
        """Return an offset up to which all events are older than a time (microseconds since 1970).

        Commit order is the order of time, give or take `SKEW_US_MAX`; where a clock was set back by more,
        what lies around that moment may be passed over.
        """
        low, high = 0, self.last_offset()
        while low < high:
            middle = (low + high) // 2
            page = self.events(after=middle, limit=1)
            if not page or us_of(page[0].envelope.time) >= us - SKEW_US_MAX:
                high = middle
            else:
                low = page[0].envelope.offset
        return low

    def at(self, offset: int) -> StoredEvent | None:
        """Return the event at an offset."""
        rows = self.rows(self._queries.event_at, (offset,))
        return self.event(rows[0]) if rows else None

    # --- by id --------------------------------------------------------------------------------

    def find(self, text: str, *, topic: str | None = None) -> StoredEvent:
        """Return the event of an id, of the beginning of one, or of the name that its publisher gave it.

        An id is unique within a topic; without ``topic`` the first event of the id is returned.  Raises
        `EventNotFound`.
        """
        rows, several = self._beginning_with(text, topic), "Several begin so"
        if not rows:
            rows, several = self._named(text, topic), "Several publishers have given it"
        check_one(text, topic, [row[2] for row in rows], several)
        return self.event(min(rows))

    def _beginning_with(self, text: str, topic: str | None) -> list[EventRow]:
        bounds = id_bounds(text)
        return self.rows(self._queries.events_by_id, (*bounds, topic, CANDIDATES_MAX + 1)) if bounds else []

    def _named(self, text: str, topic: str | None) -> list[EventRow]:
        """Look for an event under the id that each publisher would have made of its name."""
        sources = {decode_stamp(row[0]).source for row in self.rows(self._queries.stamp_values)}
        found: list[EventRow] = []
        for source in sorted(sources):
            with suppress(errors.EnvelopeInvalid):  # empty, too long: nobody can have given it
                event_id = id_of(text, source)
                found += self.rows(self._queries.events_by_id, (event_id, event_id, topic, 1))
        return found

    def chain(self, event: StoredEvent, limit: int = CHAIN_EVENTS_MAX) -> list[StoredEvent]:
        """Return the chain that an event belongs to, causes before effects, at most ``limit`` events."""
        rows = self.rows(self._queries.chain, (event.envelope.offset, min(limit, CHAIN_EVENTS_MAX)))
        return [self.event(row) for row in rows]

    # --- dead letters in short ----------------------------------------------------------------

    def dead_rows(self) -> list[tuple[str, str, str, bytes]]:
        """Return reason, code, error and payload of each dead letter."""
        return self.rows(self._queries.dead_rows)

    # --- names of numbers ---------------------------------------------------------------------

    def event(self, row: EventRow) -> StoredEvent:
        """Return the event of a row; one whose envelope cannot be read says so."""
        seq, tp, event_id, depth, head, body = row[:6]
        place = Place(self.topic(tp >> 10), tp & 1023, seq)
        try:
            decoded = decode_head(head)
            envelope = envelope_of(event_id, depth, decoded, self._stamp(decoded.stamp), place)
        except (ValueError, OverflowError) as fault:  # msgspec's errors are ValueErrors
            return unreadable(event_id, depth, place, body, str(fault))
        return StoredEvent(envelope, body, removed="".join(row[6:]))

    def topic(self, number: int) -> str:
        """Return the name of a topic."""
        if number not in self._topics:
            self._topics = dict(self.rows(self._queries.topic_names))
        return self._topics.get(number, f"#{number}")

    def _number(self, topic: str) -> int | None:
        """Return the number of a topic, or ``None`` as long as there is none of this name."""
        if topic not in self._numbers:
            self._numbers = {name: number for number, name in self.rows(self._queries.topic_names)}
        return self._numbers.get(topic)

    def _stamp(self, number: int) -> Stamp:
        found = self._stamps.get(number)
        if found is None:
            rows = self.rows(self._queries.stamp_value, (number,))
            found = decode_stamp(rows[0][0]) if rows else Stamp(f"#{number}", "", 0)
            self._stamps[number] = found
        return found


_UNKNOWN = Stamp("?", "?", 0)
_BLANK = Head(
    stamp=0, parents=(), root=b"", trace=bytes(16), span=bytes(8), flags=0, input_hash=b"", time_us=0,
    principal="?", key=None,
)  # fmt: skip


def check_one(text: str, topic: str | None, ids: Sequence[bytes], several: str) -> None:
    """Raise `EventNotFound` unless a text was found to name one id."""
    different = list(dict.fromkeys(ids))
    if not different:
        where = "" if topic is None else f"Looked for in topic {topic} alone."
        raise errors.EventNotFound(where, event_id=text)
    if len(different) > 1:
        named = ", ".join(text_of(one) for one in different[:CANDIDATES_MAX])
        more = " and more" if len(different) > CANDIDATES_MAX else ""
        hint = "name one of them; 12 digits of an id are its time, 16 tell events apart"
        raise errors.EventNotFound(f"{several}: {named}{more}.", hint=hint, event_id=text)


def unreadable(event_id: bytes, depth: int, place: Place, body: bytes, problem: str) -> StoredEvent:
    """Return an event whose envelope cannot be read; most of it is blank."""
    return StoredEvent(envelope_of(event_id, depth, _BLANK, _UNKNOWN, place), body, problem)


def id_bounds(text: str) -> tuple[bytes, bytes] | None:
    """Return the lowest and the highest id that begin with the digits, or ``None`` for other text."""
    digits = text.replace("-", "").lower()
    if not ID_DIGITS_MIN <= len(digits) <= ID_DIGITS or set(digits) - set("0123456789abcdef"):
        return None
    return bytes.fromhex(digits.ljust(ID_DIGITS, "0")), bytes.fromhex(digits.ljust(ID_DIGITS, "f"))


#: Time of the last change and size, of a file and of its WAL; the WAL's is left out where there is none.
_Seen = tuple[tuple[int, int], ...]


def _seen(path: str) -> _Seen:
    """Return what tells that somebody writes to a file, or has."""
    found: list[tuple[int, int]] = []
    for one in (path, f"{path}-wal") if path != MEMORY else ():
        with suppress(OSError):
            about = Path(one).stat()
            found.append((about.st_mtime_ns, about.st_size))
    return tuple(found)


def _open(path: str) -> tuple[apsw.Connection, bool]:
    """Open a journal to look at it, and tell whether as one that nobody writes to; nothing is created.

    A file in a folder that we may not write to cannot be opened the usual way while nobody else has it open:
    the shared memory of the WAL is missing and cannot be made.  Where nobody has left anything in a WAL, the
    file alone is the journal.
    """
    if path == MEMORY or not exists(path):
        raise errors.JournalMissing(path=path)
    with mapped(path):
        try:
            return _checked(open_file(path, read_only=True), path), False
        except (apsw.CantOpenError, apsw.ReadOnlyError):
            wal = Path(f"{path}-wal")
            if wal.exists() and wal.stat().st_size:
                raise errors.JournalUnavailable(
                    "Its newest events are in the -wal file, which takes write permission to read.",
                    hint="read it as a user who may write to its folder, or copy file and -wal elsewhere",
                    path=path,
                ) from None
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        uri = f"{Path(path).absolute().as_uri()}?immutable=1"
        return _checked(apsw.Connection(uri, flags=flags), path), True


def _checked(db: apsw.Connection, path: str) -> apsw.Connection:
    try:
        schema = check_ours(db, path)
    except BaseException:
        db.close()
        raise
    if schema < JOURNAL.schema:
        db.close()
        if schema == 0:  # empty, or about to be set up by somebody else
            raise errors.JournalMissing(path=path)
        raise errors.JournalOlder(path=path, found=schema, known=JOURNAL.schema)
    return db
