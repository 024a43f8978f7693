"""The journals that the shared suite runs on: how each is made, how it is looked into, what it can do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import apsw
import pytest
from tests.journal.ledger import Ledger, SqliteLedger

from headrace.journal.redrive import redrive
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import Consumer, Journal, Subscription, World

if TYPE_CHECKING:
    from tests.journal.lab import Member


class Can(NamedTuple):
    """What a journal can do; a test that needs more is left out for it."""

    #: Two journals of one process can be open on the same data.
    several_connections: bool = True
    #: Two processes can.
    several_processes: bool = True
    #: Same id, other content: the publish is refused (else the later one becomes a dead letter).
    refuses_conflicts: bool = True
    #: A publish says whether the event was there already (else copies are found when they are delivered).
    tells_copies: bool = True
    #: A publish is refused when a parent is missing, and chain and depth are found in the journal.
    knows_parents: bool = True
    #: Dead letters can be made waiting again.
    redrives: bool = True
    #: Leases run by the clock of the journal, and the journal has them written down (else a group of the
    #: brokers keeps them, in real time).
    leases: bool = True
    #: A partition changes hands only when nothing of it is in hand (else results are dropped and made again).
    hands_over_idle: bool = True
    #: Passes the failpoints of `headrace.ports.FAILPOINTS` inside of its transactions.
    failpoints: bool = True
    #: Publishes wait in a queue of ours (else in that of a client library).
    queues_publishes: bool = True
    #: History can be run through a version.
    replays: bool = True


class Kind(Protocol):
    """A kind of journal."""

    name: str
    #: Says to another process which one it is; see `kind_at`.
    where: str
    #: The method of a consumer that looks for redriven events.
    sees_redriven: str
    #: So long a worker that is not heard of keeps its partitions.
    lease_ms: int
    can: Can

    def make(self, folder: Path, world: World) -> Journal:
        """Return a journal on the data in a folder, not opened yet."""
        ...

    def ledger(self, folder: Path, journal: Journal) -> Ledger:
        """Return what the journal has written down."""
        ...

    def sub(self, subscription: Subscription) -> Any:
        """Return what the ledger knows a subscription by."""
        ...

    async def arrived(self, member: Member) -> None:
        """Return when a worker has its partitions, and in reach whatever was published before."""
        ...

    def die(self, journal: Journal, consumer: Consumer) -> None:
        """Let a worker end as by SIGKILL; its lease runs out, or the group misses it."""
        ...

    def forget(self, folder: Path) -> None:
        """Remove what a test has left behind outside of its folder."""
        ...

    async def redrive(self, journal: Journal, letters: Sequence[int]) -> list[str]:
        """Make dead events waiting again; return why not for each, or an empty text."""
        ...

    def bound_open(self, patch: pytest.MonkeyPatch, offsets_max: int) -> None:
        """Set how many offsets of a partition may be open."""
        ...


class Sqlite:
    """What both forms of the embedded journal share."""

    lease_ms = 10_000
    sees_redriven = "_see_redriven"

    def sub(self, subscription: Subscription) -> int:
        """Return the number of a subscription."""
        return subscription.id

    async def arrived(self, member: Member) -> None:
        """Return at once: what is committed is in reach."""

    def die(self, journal: Journal, consumer: Consumer) -> None:
        """See that the rest of the process says nothing to it any more."""
        audience: set[object] = getattr(journal, "_audience", set())
        audience.discard(consumer)

    def forget(self, folder: Path) -> None:
        """Leave it to the folder."""

    async def redrive(self, journal: Journal, letters: Sequence[int]) -> list[str]:
        """Redrive by the numbers of the dead letters."""
        assert isinstance(journal, SqliteJournal)
        return [one.problem for one in await redrive(journal._db(), letters)]

    def bound_open(self, patch: pytest.MonkeyPatch, offsets_max: int) -> None:
        """Set the constant wherever it is looked up."""
        for name, module in sys.modules.items():
            if name.startswith("headrace.journal.") and hasattr(module, "OPEN_MAX"):
                patch.setattr(module, "OPEN_MAX", offsets_max)


class SqliteFile(Sqlite):
    """The embedded journal in a file; without waiting for the disk, which these tests are not about."""

    name = where = "sqlite-file"
    can = Can()

    def make(self, folder: Path, world: World) -> Journal:
        """Return a journal on the file in the folder."""
        return SqliteJournal(
            str(folder / "journal.db"),
            clock=world.clock,
            chance=world.chance,
            faults=world.faults,
            durability="normal",
        )

    def ledger(self, folder: Path, journal: Journal) -> Ledger:
        """Read on a connection of its own, so that only what is committed shows."""
        del journal
        db = apsw.Connection(str(folder / "journal.db"), flags=apsw.SQLITE_OPEN_READONLY)
        return SqliteLedger(lambda sql, bindings: db.execute(sql, bindings).fetchall())


class PollingJournal(SqliteJournal):
    """As on a system without inotify."""

    polling = True


class SqlitePolling(SqliteFile):
    """The file where nobody is told of commits, as on macOS: who waits looks every few milliseconds."""

    name = where = "sqlite-polling"

    def make(self, folder: Path, world: World) -> Journal:
        """Return a journal on the file in the folder."""
        return PollingJournal(
            str(folder / "journal.db"),
            clock=world.clock,
            chance=world.chance,
            faults=world.faults,
            durability="normal",
        )


class SqliteMemory(Sqlite):
    """The embedded journal in memory: one connection."""

    name = where = "sqlite-memory"
    can = Can(several_connections=False, several_processes=False)

    def make(self, folder: Path, world: World) -> Journal:
        """Return a new journal."""
        del folder
        return SqliteJournal(":memory:", clock=world.clock, chance=world.chance, faults=world.faults)

    def ledger(self, folder: Path, journal: Journal) -> Ledger:
        """Read on the one connection there is."""
        del folder
        assert isinstance(journal, SqliteJournal)
        return SqliteLedger(lambda sql, bindings: journal._db().rows(sql, bindings))


KINDS: tuple[Kind, ...] = (SqliteFile(), SqlitePolling(), SqliteMemory())


def kind_at(where: str) -> Kind:
    """Return the kind that another process has."""
    for kind in KINDS:
        if kind.where == where:
            return kind
    from tests.services.journal import kinds

    return kinds.at(where)
