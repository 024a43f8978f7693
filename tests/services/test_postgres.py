"""PostgreSQL is real, fails when told to, comes back with its data, and goes back to older data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.services import postgres
from tests.services.postgres import Postgres
from tests.services.process import is_running


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """One PostgreSQL."""
    with Postgres() as postgres:
        yield postgres


def values(server: Postgres) -> list[int]:
    """Return what is in the table."""
    with psycopg.connect(server.url) as connection:
        return [value for (value,) in connection.execute("select value from kept order by value").fetchall()]


@pytest.fixture
def kept(server: Postgres) -> Iterator[Postgres]:
    """The server with a table that has one row."""
    with psycopg.connect(server.url) as connection:
        connection.execute("create table kept (value integer)")
        connection.execute("insert into kept values (1)")
    yield server
    with psycopg.connect(server.url) as connection:
        connection.execute("drop table kept")


def test_a_committed_row_survives_a_kill(kept: Postgres) -> None:
    """What is committed is there after kill -9; what was not is not."""
    with psycopg.connect(kept.url) as open_one:
        open_one.execute("insert into kept values (2)")
        kept.kill()
        assert not is_running(kept.process.pid)
        with pytest.raises(psycopg.OperationalError):
            open_one.commit()

    kept.restart()

    assert values(kept) == [1]


def test_a_restore_goes_back(kept: Postgres, tmp_path: Path) -> None:
    """After a restore the rows of the backup are there, and no later ones."""
    kept.backup(tmp_path / "backup")
    with psycopg.connect(kept.url) as connection:
        connection.execute("insert into kept values (2)")
    assert values(kept) == [1, 2]

    kept.restore(tmp_path / "backup")

    assert values(kept) == [1]


def test_a_wrong_password_is_refused(server: Postgres) -> None:
    """The server asks for its password."""
    wrong = re.sub(r":[0-9a-f]{32}@", ":wrong@", server.url)

    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong)


def test_a_server_runs_where_its_account_may_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's server runs from a copy if the account that it runs as cannot reach the environment."""
    monkeypatch.setattr(postgres, "_anybody_may_run", lambda program: False)

    with Postgres() as server:
        program = Path(f"/proc/{server.process.pid}/exe").readlink()
        psycopg.connect(server.url).close()

    assert program.is_relative_to(server.process.log.parent) == (os.getuid() == 0)
