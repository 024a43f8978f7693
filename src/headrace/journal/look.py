"""Looking into a journal in a SQLite file, and deciding on it: the ports `Look`, `Feed` and `Desk`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from headrace import errors
from headrace.journal import history, letters, progress, redrive, standing, verify
from headrace.journal.connection import Connection
from headrace.journal.file import exists
from headrace.journal.notify import Watch
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.versions import Versions
from headrace.ports import Chance, Clock, Faults, VersionInfo
from headrace.ports.history import History, RetiredOne
from headrace.ports.look import (
    UNDECIDED,
    Decided,
    Filter,
    Fits,
    Letter,
    Progress,
    Replayed,
    Standing,
    StoredEvent,
    Topic,
    Violation,
    always,
)


class SqliteLook:
    """A journal in a file, opened to be read."""

    def __init__(self, path: str, clock: Clock) -> None:
        self.address, self._clock = path, clock
        self._open: Reader | None = None

    async def open(self) -> None:
        """Open the file; workers are not disturbed."""
        self._open = Reader(self.address)

    async def close(self) -> None:
        """Close the file."""
        if self._open is not None:
            self._open.close()

    @property
    def _reader(self) -> Reader:
        if self._open is None:
            raise errors.JournalClosed
        return self._open

    async def topics(self) -> list[Topic]:
        """Return the topics, by name."""
        return progress.topics(self._reader)

    async def progress(self) -> list[Progress]:
        """Return the progress of every live subscription, all at one moment."""
        return progress.progress(self._reader, self._clock)

    async def replays(self) -> list[Replayed]:
        """Return the replays, oldest first, all at one moment."""
        return progress.replays(self._reader, self._clock)

    async def retired(self) -> list[RetiredOne]:
        """Return the subscriptions of handlers that were retired."""
        return [RetiredOne(*row) for row in self._reader.rows(load("handlers.sql").retired)]

    async def violations(self) -> list[Violation]:
        """Return every rule that does not hold."""
        return verify.verify(self._reader)

    async def histories(self, handler: str | None = None) -> list[History]:
        """Return which version has handled what."""
        history.check_handler(self._reader, handler)
        return history.histories(self._reader, handler)

    def feed(self, topic: str | None = None, from_offset: int = 0, from_us: int | None = None) -> SqliteFeed:
        """Return the events from an offset on, or from a time on."""
        after = from_offset - 1 if from_us is None else self._reader.before(from_us)
        return SqliteFeed(self._reader, topic, after)

    async def find(self, text: str, *, topic: str | None = None) -> StoredEvent:
        """Return the event that a text names."""
        return self._reader.find(text, topic=topic)

    async def chain(self, event: StoredEvent) -> list[StoredEvent]:
        """Return the chain of an event."""
        return self._reader.chain(event)

    async def standings(self, event: StoredEvent) -> list[Standing]:
        """Return where an event stands, all at one moment."""
        return standing.standings(self._reader, event, self._clock)

    async def letters(self, wanted: Filter = UNDECIDED) -> list[Letter]:
        """Return dead letters, oldest first."""
        history.check_handler(self._reader, wanted.handler)
        found: list[Letter] = []
        while page := letters.letters(self._reader, wanted, after=found[-1].id if found else 0):
            found += page
        return found

    async def named(self, text: str) -> list[Letter]:
        """Return the dead letters that a text names."""
        return letters.named(self._reader, text)

    async def left(self) -> int:
        """Return how many dead letters nobody has decided on."""
        return letters.left(self._reader)


class SqliteFeed:
    """The events of a file in commit order, and a look at the file whenever somebody has committed."""

    ordered = True

    def __init__(self, reader: Reader, topic: str | None, after: int) -> None:
        self._reader, self._topic, self._after = reader, topic, after
        self._changed = reader.changed()
        self._woken = asyncio.Event()
        self._watch: Watch | None = None

    async def newest(self, count: int, fits: Fits = always) -> list[StoredEvent]:
        """Return the last events that fit, oldest first."""
        # Looked at before, so that an event that comes meanwhile is found by `page`.
        self._after = self._reader.last_offset()
        found = self._reader.newest(count, topic=self._topic, fits=fits)
        return [event for event in found if event.envelope.offset <= self._after]

    async def page(self) -> list[StoredEvent]:
        """Return the next events."""
        self._changed = self._reader.changed()
        found = self._reader.events(after=self._after, topic=self._topic)
        if found:
            self._after = found[-1].envelope.offset
        return found

    async def wait(self) -> None:
        """Return when somebody has committed after the last page."""
        if self._watch is None:
            self._watch = self._reader.watch(self._woken.set, topic=self._topic)
        while self._reader.changed() == self._changed:
            await self._woken.wait()
            self._woken.clear()

    async def close(self) -> None:
        """Stop watching."""
        if self._watch is not None:
            self._watch.close()


class SqliteDesk:
    """A journal in a file, opened for the decisions of a person."""

    def __init__(
        self, path: str, *, clock: Clock, chance: Chance, faults: Faults, durability: str = "full"
    ) -> None:
        self._path, self._durability = path, durability
        self._clock, self._chance, self._faults = clock, chance, faults
        self._connection: Connection | None = None

    async def open(self) -> None:
        """Open the file."""
        if not exists(self._path):
            raise errors.JournalMissing(path=self._path)
        self._connection = Connection(
            self._path,
            durability=self._durability,
            clock=self._clock,
            chance=self._chance,
            faults=self._faults,
        )

    async def close(self) -> None:
        """Close the file."""
        if self._connection is not None:
            self._connection.close()

    @property
    def _db(self) -> Connection:
        if self._connection is None:
            raise errors.JournalClosed
        return self._connection

    async def activate(self, handler: str, version: str) -> VersionInfo:
        """Make a known version the active one."""
        return await Versions(self._db).activate(handler, version)

    async def redrive(self, letters: Sequence[Letter]) -> list[Decided]:
        """Make dead events waiting again."""
        return await redrive.redrive(self._db, [one.id for one in letters])

    async def drop(self, letters: Sequence[Letter]) -> list[Decided]:
        """Put dead letters away."""
        return await redrive.drop(self._db, [one.id for one in letters])

    async def refusals(self, letters: Sequence[Letter], *, drop: bool = False) -> list[Decided]:
        """Return what would be refused."""
        return redrive.refusals(self._db, [one.id for one in letters], drop=drop)
