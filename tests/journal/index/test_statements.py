"""Every statement of the indexes: named, explained, right for its schema, and used."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import apsw
import psycopg
import pytest
from tests.journal.index.shelf import in_schema_of_its_own, opened
from tests.services.postgres import Postgres

import headrace.journal.index
from headrace.journal.queries import load, read

FOLDER = Path(str(files(headrace.journal.index)))
FILES = ("sqlite.sql", "sqlite_view.sql", "postgres.sql", "postgres_view.sql")
QUERIES = [(name, query) for name in FILES for query in vars(load(f"index/{name}"))]
NAMED = re.compile(r"-- name: ([a-z][a-z0-9_]*)\n-- ([A-Z][^\n]*(?:\n-- [^\n]*)*[.:])\n(?!--)")


def test_every_file_is_known() -> None:
    """The files of queries and the two schemas travel in the package."""
    assert {path.name for path in FOLDER.glob("*.sql")} == {
        *FILES,
        "sqlite_schema.sql",
        "postgres_schema.sql",
    }


@pytest.mark.parametrize("file", FILES)
def test_every_query_has_a_name_and_a_sentence(file: str) -> None:
    """A name of its own, then a comment with a capital and a stop, then the statement."""
    text = read(f"index/{file}")
    assert len(NAMED.findall(text)) == text.count("-- name: ") == len(vars(load(f"index/{file}")))


@pytest.mark.parametrize(("file", "query"), QUERIES)
def test_every_query_is_used(file: str, query: str) -> None:
    """A statement that its module does not name is dead: remove it."""
    module = (FOLDER / file).with_suffix(".py").read_text("utf-8")
    assert re.search(rf"(?i)queries\.{query}\b", module)


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("sqlite")])
def test_sqlite_prepares_every_query(file: str) -> None:
    """The statements fit the schema, and each is one statement."""
    db = apsw.Connection(":memory:")
    db.execute(read("index/sqlite_schema.sql"))
    for query, text in vars(load(f"index/{file}")).items():
        assert ";" not in text, query
        numbered = [int(number) for number in re.findall(r"\?(\d+)", text)]
        db.execute(f"EXPLAIN {text}", (1,) * (max(numbered) if numbered else text.count("?")))


@pytest.mark.parametrize("file", [file for file in FILES if file.startswith("postgres")])
async def test_postgres_prepares_every_query(server: Postgres, file: str) -> None:
    """The statements fit the schema, and each is one statement."""
    shelf = in_schema_of_its_own(server.url)
    async with opened(shelf):
        pass
    with psycopg.connect(shelf.where, autocommit=True) as db:
        for query, text in vars(load(f"index/{file}")).items():
            assert ";" not in text, query
            for number in range(text.count("%s")):
                text = text.replace("%s", f"${number + 1}", 1)  # noqa: PLW2901
            if not text.startswith(("TRUNCATE", "LOCK")):  # which cannot be prepared
                db.execute(f"PREPARE {query} AS {text}".encode())
