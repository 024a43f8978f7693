"""Every statement of every .sql file: named, explained, right for the schema, and used."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import apsw
import pytest

import headrace.journal
from headrace.journal.file import JOURNAL
from headrace.journal.queries import load, read

FOLDER = Path(str(files(headrace.journal)))
SCHEMAS = JOURNAL.scripts
FILES = sorted(path.name for path in FOLDER.glob("*.sql"))
NAME = re.compile(r"-- name: ([a-z][a-z0-9_]*)")
QUERIES = [(name, query) for name in FILES if name not in SCHEMAS for query in vars(load(name))]

WORDS = {word for path in FOLDER.glob("*.py") for word in re.findall(r"\w+", path.read_text("utf-8"))}


@pytest.fixture(scope="module")
def db() -> apsw.Connection:
    """An empty journal in memory."""
    found = apsw.Connection(":memory:")
    for script in SCHEMAS:
        found.execute(read(script))
    return found


def test_there_are_files() -> None:
    """The scripts of the schema and files of queries travel in the package."""
    assert set(SCHEMAS) < set(FILES)
    assert len(FILES) > 3
    assert len(QUERIES) > 50


@pytest.mark.parametrize("file", [name for name in FILES if name not in SCHEMAS])
def test_every_query_has_a_name_and_a_sentence(file: str) -> None:
    """A name of its own, then a comment with a capital and a stop, then the statement."""
    parts = read(file).split("-- name: ")
    assert parts[0].startswith("-- ")
    assert parts[0].rstrip().endswith(".")
    names = [part.partition("\n")[0] for part in parts[1:]]
    assert len(names) == len(set(names)) == len(vars(load(file)))
    for part in parts[1:]:
        title, *lines = part.rstrip().splitlines()
        assert NAME.fullmatch(f"-- name: {title}"), title
        said = []
        for line in lines:
            if not line.startswith("-- "):
                break
            said.append(line.removeprefix("-- "))
        sentence = " ".join(said)
        assert sentence, f"{file}: {title} has no sentence"
        assert sentence[0].isupper() or sentence[0].isdigit(), f"{file}: {title}: {sentence}"
        assert sentence[-1] in ".;:", f"{file}: {title}: {sentence}"


@pytest.mark.parametrize(("file", "query"), QUERIES)
def test_every_query_fits_the_schema(db: apsw.Connection, file: str, query: str) -> None:
    """SQLite prepares it, and it is one statement."""
    text = getattr(load(file), query)
    cursor = db.cursor()
    # Nothing runs: the first call comes back with what SQLite made of the text.
    prepared: list[str] = []

    def trace(_cursor: apsw.Cursor, sql: str, _bindings: object) -> bool:
        prepared.append(sql)
        return False

    cursor.exec_trace = trace
    count = _parameters(text)
    with pytest.raises(apsw.ExecTraceAbort):
        cursor.execute(text, (None,) * count)
    assert len(prepared) == 1
    assert ";" not in re.sub(r"'[^']*'", "", text).rstrip(";")


def _parameters(text: str) -> int:
    numbered = [int(digits) for digits in re.findall(r"\?(\d+)", text)]
    return max([len(re.findall(r"\?(?!\d)", text)), *numbered])


def test_every_query_is_used() -> None:
    """A statement that no module names is dead: remove it."""
    assert [
        (file, query) for file, query in QUERIES if query not in WORDS | vars(load("verify.sql")).keys()
    ] == []


def test_no_table_is_left_without_a_word() -> None:
    """Each script of the schema explains itself, and the first creates most."""
    assert all(read(script).startswith("--") for script in SCHEMAS)
    assert read(SCHEMAS[0]).count("CREATE TABLE") > 5
