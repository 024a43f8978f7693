"""The journals that the shared suite runs on: how each is made, how it is looked into, what it can do."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import apsw
import pytest
from tests.journal.ledger import Ledger

from headrace.journal.redrive import redrive
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import Journal, World


class Can(NamedTuple):
    """What a journal can do; a test that needs more is skipped for it, with the name of what is missing."""

    #: Two journals of one process can be open on the same data.
    several_connections: bool = True
    #: Two processes can.
    several_processes: bool = True
    #: Same id, other content: the publish is refused (else the later one becomes a dead letter).
    refuses_conflicts: bool = True


class Kind(Protocol):
    """A kind of journal."""

    name: str
    can: Can

    def make(self, folder: Path, world: World) -> Journal:
        """Return a journal on the data in a folder, not opened yet."""
        ...

    def ledger(self, folder: Path, journal: Journal) -> Ledger:
        """Return what the journal has written down."""
        ...

    async def redrive(self, journal: Journal, letters: Sequence[int]) -> list[str]:
        """Make dead events waiting again; return why not for each, or an empty text."""
        ...

    def bound_open(self, patch: pytest.MonkeyPatch, offsets_max: int) -> None:
        """Set how many offsets of a partition may be open."""
        ...


class Sqlite:
    """What both forms of the embedded journal share."""

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

    name = "sqlite-file"
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
        return Ledger(lambda sql, bindings: db.execute(sql, bindings).fetchall())


class SqliteMemory(Sqlite):
    """The embedded journal in memory: one connection."""

    name = "sqlite-memory"
    can = Can(several_connections=False, several_processes=False)

    def make(self, folder: Path, world: World) -> Journal:
        """Return a new journal."""
        del folder
        return SqliteJournal(":memory:", clock=world.clock, chance=world.chance, faults=world.faults)

    def ledger(self, folder: Path, journal: Journal) -> Ledger:
        """Read on the one connection there is."""
        del folder
        assert isinstance(journal, SqliteJournal)
        return Ledger(lambda sql, bindings: journal._db().rows(sql, bindings))


KINDS: tuple[Kind, ...] = (SqliteFile(), SqliteMemory())
