"""Opening the journal that a command is about: to look at, or to write to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from headrace import errors

if TYPE_CHECKING:
    from headrace.journal.connection import Connection
    from headrace.journal.reader import Reader
    from headrace.journal.sqlite import SqliteJournal


def path_in_force(journal: str | None) -> str:
    """Return the file of the journal that flag, environment and settings name."""
    from headrace.app import path_of
    from headrace.settings import load

    return path_of(load({"journal": journal}).journal)


@contextmanager
def reading(journal: str | None) -> Generator[Reader]:
    """Look at a journal that there is; nothing is created, and workers are not disturbed."""
    from headrace.journal.reader import Reader

    reader = Reader(path_in_force(journal))
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def deciding(journal: str | None) -> Generator[Connection]:
    """Write decisions of a person into a journal that there is."""
    from headrace.app import World
    from headrace.journal.connection import Connection
    from headrace.settings import load

    world, path = World(), _existing(journal)
    durability = load({"journal": journal}).durability
    db = Connection(path, durability=durability, clock=world.clock, chance=world.chance, faults=world.faults)
    try:
        yield db
    finally:
        db.close()


@asynccontextmanager
async def opened(journal: str | None) -> AsyncGenerator[SqliteJournal]:
    """Open a journal that there is, as workers do."""
    from headrace.app import World
    from headrace.journal.sqlite import SqliteJournal

    world, path = World(), _existing(journal)
    found = SqliteJournal(path, clock=world.clock, chance=world.chance, faults=world.faults)
    await found.open()
    try:
        yield found
    finally:
        await found.close()


def _existing(journal: str | None) -> str:
    path = path_in_force(journal)
    if not Path(path).exists():
        raise errors.JournalMissing(path=path)
    return path
