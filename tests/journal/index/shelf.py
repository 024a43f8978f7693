"""Where the indexes of one test have their data, and a log for them to index."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Protocol

import psycopg
from tests.journal.lab import SeededChance

from headrace.journal.index.postgres import PostgresIndex
from headrace.journal.index.sqlite import SqliteIndex
from headrace.ports import NoFaults
from headrace.ports.index import First, Index, Seen, Stretch
from headrace.world import SystemClock

HANDLER = "lab.make"


class Shelf(Protocol):
    """One kind of index, and the data that all indexes made here share."""

    kind: str
    #: Says to another process where the data is; see `at`.
    where: str

    def make(self) -> Index:
        """Return an index that is not open yet."""
        ...


class SqliteShelf:
    """Indexes in one file."""

    kind = "sqlite"

    def __init__(self, where: str) -> None:
        self.where = where

    def make(self) -> SqliteIndex:
        """Return an index on the file."""
        return SqliteIndex(self.where, clock=SystemClock(), chance=SeededChance(), faults=NoFaults())


class PostgresShelf:
    """Indexes in one schema of a database."""

    kind = "postgres"

    def __init__(self, where: str) -> None:
        self.where = where

    def make(self) -> PostgresIndex:
        """Return an index in the schema."""
        return PostgresIndex(self.where, clock=SystemClock(), faults=NoFaults())


def at(kind: str, where: str) -> Shelf:
    """Return the shelf of another process."""
    return PostgresShelf(where) if kind == "postgres" else SqliteShelf(where)


_numbers = count()


def in_schema_of_its_own(url: str) -> PostgresShelf:
    """Return a shelf in a new schema."""
    name = f"test_{next(_numbers)}"
    with psycopg.connect(url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}".encode())
    return PostgresShelf(f"{url}?options=-csearch_path%3D{name}")


def in_file(folder: Path) -> SqliteShelf:
    """Return a shelf in a new file."""
    return SqliteShelf(str(folder / f"test{next(_numbers)}.index.db"))


@asynccontextmanager
async def opened(shelf: Shelf) -> AsyncGenerator[Index]:
    """Open an index for a while."""
    index = shelf.make()
    await index.open()
    try:
        yield index
    finally:
        await index.close()


# --- a log --------------------------------------------------------------------------------------------


def id_of(name: int) -> bytes:
    """Return the id of an event by a small number."""
    return hashlib.blake2b(b"event %d" % name, digest_size=16).digest()


def topic_of(name: object) -> bytes:
    """Return the id of a topic."""
    return hashlib.blake2b(str(name).encode(), digest_size=16).digest()


@dataclass(frozen=True)
class Log:
    """The partitions of a topic: at each offset the number of an event, or nothing."""

    topic_id: bytes
    partitions: Sequence[Sequence[int | None]]

    def seen(self, partition: int, after: int = 0, upto: int | None = None) -> list[Seen]:
        """Return the records of a part; a record's content tells it from every other."""
        names = enumerate(self.partitions[partition][after:upto], after)
        return [
            Seen(id_of(name), offset, (name << 40) + offset + (1 << 62), topic_of(name), offset % 7)
            for offset, name in names
            if name is not None
        ]

    def stretch(self, partition: int, after: int, upto: int) -> Stretch:
        """Return a part to look up."""
        return Stretch(self.topic_id, partition, after, upto, self.seen(partition, after, upto))

    def copies(self, *stretches: Stretch) -> dict[tuple[int, int], First]:
        """Return what is right: every record whose id has a lower offset, with the lowest."""
        return {
            (stretch.partition, one.offset): first
            for stretch in stretches
            for one in stretch.records
            if (first := self.firsts[stretch.partition][one.event_id]).offset != one.offset
        }

    @cached_property
    def firsts(self) -> list[dict[bytes, First]]:
        """Where each id is first, by partition."""
        backwards = (reversed(self.seen(partition)) for partition in range(len(self.partitions)))
        return [{one.event_id: First(one.offset, one.content) for one in records} for records in backwards]

    def whole(self) -> Iterator[Stretch]:
        """Yield each partition as one stretch."""
        for partition, records in enumerate(self.partitions):
            yield self.stretch(partition, 0, len(records))
