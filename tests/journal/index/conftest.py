"""Runs the suite of indexes once per kind: in a SQLite file, and in a real PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.journal.index.shelf import Shelf, in_file, in_schema_of_its_own
from tests.services.postgres import Postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    """One server for all; who stops it starts it again."""
    with Postgres() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgres"])
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    """A place for the data of a test, of one kind after the other."""
    if request.param == "sqlite":
        return in_file(tmp_path)
    return in_schema_of_its_own(request.getfixturevalue("server").url)
