"""What commands ask of a journal that somebody looks after: to shrink, to be copied, to forget."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace.ports.upkeep import Progressed


class Retired(NamedTuple):
    """A handler that serves no more."""

    handler: str
    #: Open events that were closed, each with a letter that says why.
    closed: int
    #: Events that it had not taken; nobody waits for it any longer.
    untaken: int
    #: Replays that were not finished, and the events of theirs that were closed.
    replays: int = 0
    replayed_closed: int = 0


class Size(NamedTuple):
    """What a journal takes on disk."""

    file_bytes: int
    wal_bytes: int
    #: Of the file: pages that hold nothing.
    free_bytes: int


class Compacted(NamedTuple):
    """A journal that was made smaller."""

    before: Size
    after: Size
    #: Who keeps the WAL from being emptied, or an empty text.
    holder: str


class BackedUp(NamedTuple):
    """A copy of the journal, complete and checked."""

    path: str
    size_bytes: int
    events: int
    seconds: float


class Erased(NamedTuple):
    """What was removed for good."""

    #: Events by topic.
    topics: dict[str, int]
    letters: int
    #: Events that were still to be handled: closed, once for each handler.
    expired: int
    #: Events that follow from erased ones under other keys, or none, and still have their payload.
    effects: int
    #: The event that tells of it; ``None`` in a dry run, and where there was nothing.
    event_id: bytes | None
    #: Who keeps old pages in the WAL, or an empty text.
    holder: str

    @property
    def events(self) -> int:
        """How many events lost their payload."""
        return sum(self.topics.values())


class Care(Protocol):
    """A journal that somebody looks after."""

    #: For people: the address without secrets.
    address: str

    async def open(self) -> None:
        """Open; raises `JournalMissing` and the rest of the `JournalError` family."""
        ...

    async def close(self) -> None:
        """Close; harmless when that is done."""
        ...

    async def compact(self, progressed: Progressed, *, whole: bool) -> Compacted:
        """Give free pages back to the disk and empty the WAL, beside workers; ``whole``: rewrite the file."""
        ...

    async def backup(self, target: str) -> BackedUp:
        """Copy the journal as it is at one moment, beside workers; raises `BackupRefused`."""
        ...

    async def erase(self, keys: Sequence[str], topic: str | None, *, effects: bool, dry_run: bool) -> Erased:
        """Remove what events with these keys hold, for good; with ``effects`` also what follows from them."""
        ...

    async def retire(self, handler: str, *, dry_run: bool, replays_only: bool = False) -> Retired:
        """Release a handler's subscriptions; raises `HandlerUnknown`, `RetireRefused`."""
        ...
