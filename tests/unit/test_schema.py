"""A journal of an older schema: what writes to it brings it up to date, what only looks leaves it alone."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.unit.shop import HANDLED, WAITING, change, made_app, made_journal, settle

from headrace import errors
from headrace.journal.file import JOURNAL
from headrace.journal.queries import read
from headrace.journal.reader import Reader
from headrace.journal.verify import verify

#: The way back from schema 3: what an older Headrace knows of a file.
BACK = """
DROP TABLE replay; DROP TABLE allotted; ALTER TABLE version DROP COLUMN trial; PRAGMA user_version = 2;
"""


@pytest.fixture
def old(tmp_path: Path) -> str:
    """A journal with a history, in schema 2."""
    path = made_journal(tmp_path)
    change(path, BACK)
    return path


def tables(db: apsw.Connection) -> list[Any]:
    """Return every column of every table."""
    sql = """SELECT m.name, c.name, c.type, c."notnull", c.pk
             FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table' ORDER BY 1, 2"""
    return db.execute(sql).fetchall()


def test_what_only_looks_leaves_an_old_journal_alone(old: str) -> None:
    """It says which schema there is, which it reads, and what brings it up to date."""
    before = Path(old).read_bytes()
    with pytest.raises(errors.JournalOlder, match="has schema 2, this Headrace reads from 3 on") as caught:
        Reader(old)
    assert "a worker, a publisher" in caught.value.hint
    assert Path(old).read_bytes() == before


def test_an_old_journal_is_brought_up_to_date_and_goes_on(old: str) -> None:
    """Nothing of it is lost; its schema is that of a new one; what waited is handled."""
    app = made_app(old)

    async def go_on() -> None:
        async with app:
            await settle(app, old)

    asyncio.run(go_on())

    fresh = apsw.Connection(":memory:")
    for script in JOURNAL.scripts:
        fresh.execute(read(script))
    db = apsw.Connection(old)
    assert tables(db) == tables(fresh)
    assert db.execute("PRAGMA user_version").fetchall() == [(JOURNAL.schema,)]
    ((orders,),) = db.execute("SELECT count(*) FROM event WHERE tp >> 10 = 1").fetchall()
    assert orders == HANDLED + WAITING
    reader = Reader(old)
    assert verify(reader) == []
    reader.close()


def test_a_migration_that_fails_leaves_the_journal_as_it_was(
    old: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it or nothing: the next one begins anew."""
    from headrace.journal import file

    def broken(name: str) -> str:
        return read(name) + ("SELECT nonsense;" if name == JOURNAL.scripts[-1] else "")

    before = tables(apsw.Connection(old))
    with monkeypatch.context() as patch:
        patch.setattr(file, "read", broken)
        with pytest.raises(errors.JournalError):
            asyncio.run(made_app(old).open())
    assert tables(apsw.Connection(old)) == before
    assert change(old, "PRAGMA user_version") == [(2,)]
    asyncio.run(made_app(old).open())
    assert change(old, "PRAGMA user_version") == [(JOURNAL.schema,)]
