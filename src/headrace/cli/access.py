"""Opening the journal that a command is about: to look at, or to write to."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, TypedDict

from headrace import errors
from headrace.cli.output import warn

if TYPE_CHECKING:
    from headrace.journal.connection import Connection
    from headrace.journal.reader import Reader
    from headrace.journal.sqlite import SqliteJournal
    from headrace.ports import Chance, Clock, Faults


def path_in_force(journal: str | None) -> str:
    """Return the file of the journal that flag, environment and settings name."""
    from headrace.settings import load, path_of

    return path_of(load({"journal": journal}).journal)


def warn_of_environment() -> None:
    """Tell of variables that were meant as settings and are none: they would be passed over in silence."""
    from headrace.settings import mistyped

    for given, meant in mistyped():
        warn(f"{given} in the environment means nothing; did you mean {meant}?")


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
    from headrace.journal.connection import Connection
    from headrace.settings import load

    path, durability = _existing(journal), load({"journal": journal}).durability
    db = Connection(path, durability=durability, **_world())
    try:
        yield db
    finally:
        db.close()


@asynccontextmanager
async def opened(journal: str | None) -> AsyncGenerator[SqliteJournal]:
    """Open a journal that there is, as workers do."""
    from headrace.journal.sqlite import SqliteJournal

    found = SqliteJournal(_existing(journal), **_world())
    await found.open()
    try:
        yield found
    finally:
        await found.close()


class _World(TypedDict):
    clock: Clock
    chance: Chance
    faults: Faults


def _world() -> _World:
    from headrace.ports import NoFaults
    from headrace.world import SystemChance, SystemClock

    return {"clock": SystemClock(), "chance": SystemChance(), "faults": NoFaults()}


def _existing(journal: str | None) -> str:
    from headrace.journal.file import exists

    path = path_in_force(journal)
    if not exists(path):
        raise errors.JournalMissing(path=path)
    return path
