"""An index in a file: its own kind of file, set back like any other, and closed like any other."""

from __future__ import annotations

import shutil
from pathlib import Path

import apsw
import pytest
from tests.journal.index.shelf import HANDLER, Log, SqliteShelf, in_file, opened, topic_of
from tests.journal.lab import SeededChance

from headrace import errors
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import NoFaults
from headrace.ports.index import Looked
from headrace.world import SystemClock

LOG = Log(topic_of(1), [[1, 2, 1]])


@pytest.fixture
def here(tmp_path: Path) -> SqliteShelf:
    """A place for an index."""
    return in_file(tmp_path)


def journal_at(path: str) -> SqliteJournal:
    """Return an embedded journal that is not open."""
    return SqliteJournal(path, clock=SystemClock(), chance=SeededChance(), faults=NoFaults())


async def test_an_index_is_no_journal(here: SqliteShelf, tmp_path: Path) -> None:
    """Each refuses the other's file, and leaves it as it is."""
    async with opened(here):
        pass
    with pytest.raises(errors.JournalForeign):
        await journal_at(here.where).open()
    journal = journal_at(str(tmp_path / "journal.db"))
    await journal.open()
    await journal.close()
    with pytest.raises(errors.JournalForeign):
        await SqliteShelf(str(tmp_path / "journal.db")).make().open()


async def test_an_index_leaves_nothing_else_behind(here: SqliteShelf) -> None:
    """No file to notify others by: nobody waits for news of an index."""
    async with opened(here) as index:
        await index.look(HANDLER, list(LOG.whole()))
    assert [path.name for path in Path(here.where).parent.iterdir()] == [Path(here.where).name]


async def test_an_older_index_that_was_restored_catches_up(here: SqliteShelf, tmp_path: Path) -> None:
    """After a restore less is indexed; who goes on where he was is told, and the answers are the same."""
    stretch = LOG.stretch(0, 1, 3)
    async with opened(here) as index:
        await index.look(HANDLER, [LOG.stretch(0, 0, 1)])
    shutil.copy(here.where, tmp_path / "backup")
    async with opened(here) as index:
        before = await index.look(HANDLER, [stretch])
    shutil.copy(tmp_path / "backup", here.where)
    async with opened(here) as index:
        assert await index.indexed(LOG.topic_id, 0) == 1
        with pytest.raises(errors.IndexGap):
            await index.look(HANDLER, [LOG.stretch(0, 2, 3)])
        assert await index.look(HANDLER, [stretch]) == before == Looked(LOG.copies(stretch), None)


async def test_a_newer_index_is_not_opened(here: SqliteShelf) -> None:
    """A file of a later schema is left alone."""
    async with opened(here):
        pass
    apsw.Connection(here.where).execute("PRAGMA user_version=99")
    with pytest.raises(errors.JournalNewer, match="99"):
        await here.make().open()


async def test_a_closed_index_says_so(here: SqliteShelf) -> None:
    """Before it is opened and after it is closed; closing twice is harmless."""
    index = here.make()
    for _ in range(2):
        with pytest.raises(errors.JournalClosed):
            await index.indexed(LOG.topic_id, 0)
        await index.open()
        await index.open()
        await index.close()
        await index.close()


async def test_an_index_may_live_in_memory() -> None:
    """For tests: the same answers, gone when it is closed."""
    async with opened(SqliteShelf(":memory:")) as index:
        assert (await index.look(HANDLER, list(LOG.whole()))).copies == LOG.copies(*LOG.whole())
