"""When PostgreSQL is slow, gone, killed or set back: coded errors in bounded time, no wrong answer."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import psycopg
import pytest
from tests.journal.index.hammer import Hammer
from tests.journal.index.shelf import HANDLER, Log, PostgresShelf, in_schema_of_its_own, opened, topic_of
from tests.services.postgres import Postgres

from headrace import errors
from headrace.journal.index import postgres, session
from headrace.journal.index.postgres import PostgresIndex
from headrace.ports import NoFaults
from headrace.ports.index import Claim, Looked
from headrace.world import SystemClock

LOG = Log(topic_of(1), [[1, 2, 1], [3, 3]])


@pytest.fixture
def here(server: Postgres) -> PostgresShelf:
    """A place in a server that the test may stop."""
    return in_schema_of_its_own(server.url)


def index_at(url: str) -> PostgresIndex:
    """Return an index that is not open."""
    return PostgresIndex(url, clock=SystemClock(), faults=NoFaults())


async def backend(index: PostgresIndex) -> int:
    """Return the process of the server that serves an index."""
    ((pid,),) = await index._session.rows("SELECT pg_backend_pid()")
    return pid


@asynccontextmanager
async def locked(shelf: PostgresShelf, statement: str) -> AsyncGenerator[psycopg.AsyncConnection]:
    """Hold what a statement locks."""
    async with await psycopg.AsyncConnection.connect(shelf.where) as db:
        await db.execute(statement.encode())
        yield db
        await db.rollback()


# --- killed and set back ------------------------------------------------------------------------------


async def test_a_killed_server_gives_no_wrong_answer(server: Postgres, here: PostgresShelf) -> None:
    """SIGKILL in the middle of looks, three times: what is lost is indexed again, every answer is right."""
    kills = 0
    hammers: list[Hammer] = []

    async def kill_it() -> None:
        nonlocal kills
        for _ in range(3):
            enough = [hammer.looks + 40 for hammer in hammers]
            while any(one.looks < looks for one, looks in zip(hammers, enough, strict=True)):
                await hammers[0].next_look()
            await asyncio.to_thread(server.kill)
            await asyncio.sleep(0.1)
            await asyncio.to_thread(server.start)
            kills += 1

    async with opened(here) as one, opened(here) as two:
        hammers += [Hammer(one, 1), Hammer(two, 2)]
        running = [hammer.run(enough=lambda: kills == 3) for hammer in hammers]
        await asyncio.gather(kill_it(), *running)
    reports = [hammer.report() for hammer in hammers]
    assert [report["wrong"] for report in reports] == [0, 0]
    assert all(report["unavailable"] > 0 for report in reports)


async def test_an_older_index_that_was_restored_catches_up(
    server: Postgres, here: PostgresShelf, tmp_path: Path
) -> None:
    """After a restore less is indexed; who goes on where he was is told, and the answers are the same."""
    stretch = LOG.stretch(0, 1, 3)
    async with opened(here) as index:
        await index.look(HANDLER, [LOG.stretch(0, 0, 1)])
    await asyncio.to_thread(server.backup, tmp_path / "backup")
    async with opened(here) as index:
        before = await index.look(HANDLER, [stretch])
        await asyncio.to_thread(server.restore, tmp_path / "backup")
        with pytest.raises(errors.JournalUnavailable):
            await index.indexed(LOG.topic_id, 0)

        assert await index.indexed(LOG.topic_id, 0) == 1
        with pytest.raises(errors.IndexGap):
            await index.look(HANDLER, [LOG.stretch(0, 2, 3)])
        assert await index.look(HANDLER, [stretch]) == before == Looked(LOG.copies(stretch), None)


async def test_tables_that_are_gone_are_made_again(here: PostgresShelf) -> None:
    """An index that somebody dropped under a worker is empty, not broken: the next call makes the tables."""
    async with opened(here) as index:
        await index.look(HANDLER, list(LOG.whole()))
        with psycopg.connect(here.where, autocommit=True) as db:
            name = db.execute("SELECT current_schema()").fetchall()[0][0]
            db.execute(f"DROP SCHEMA {name} CASCADE".encode())
            db.execute(f"CREATE SCHEMA {name}".encode())
        with pytest.raises(errors.JournalUnavailable):
            await index.look(HANDLER, list(LOG.whole()))
        assert (await index.look(HANDLER, list(LOG.whole()))).copies == LOG.copies(*LOG.whole())


# --- gone ---------------------------------------------------------------------------------------------


async def test_a_server_that_is_down_is_unavailable_and_found_again(
    server: Postgres, here: PostgresShelf
) -> None:
    """While it is down each call fails at once; when it is back the next call answers."""
    async with opened(here) as index:
        await index.look(HANDLER, list(LOG.whole()))
        await asyncio.to_thread(server.stop)
        for call in (
            index.look(HANDLER, list(LOG.whole())),
            index.claims(HANDLER),
            index.take_over(HANDLER, 0, "me"),
        ):
            with pytest.raises(errors.JournalUnavailable) as caught:
                await call
            assert caught.value.retryable
        with pytest.raises(errors.JournalUnavailable):
            await here.make().open()
        await asyncio.to_thread(server.start)
        assert (await index.look(HANDLER, list(LOG.whole()))).copies == LOG.copies(*LOG.whole())


async def test_a_connection_that_is_cut_is_made_anew(here: PostgresShelf) -> None:
    """The call that met the cut fails, coded; the next one works."""
    async with opened(here) as index:
        assert isinstance(index, PostgresIndex)
        pid = await backend(index)
        with psycopg.connect(here.where, autocommit=True) as db:
            db.execute("SELECT pg_terminate_backend(%s)", (pid,))
        with pytest.raises(errors.JournalUnavailable, match="terminating connection"):
            await index.look(HANDLER, list(LOG.whole()))
        await index.look(HANDLER, list(LOG.whole()))


async def test_a_silent_address_is_given_up() -> None:
    """A host that takes the connection and says nothing costs the time to connect, not more."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(errors.JournalUnavailable):
            await index_at(f"postgresql://u:secret@127.0.0.1:{port}/db?connect_timeout=2").open()
        assert time.monotonic() - began < 10


async def test_a_server_that_hangs_is_given_up(here: PostgresShelf, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stopped server process costs the time of one call; the next call has another."""
    async with opened(here) as index:
        assert isinstance(index, PostgresIndex)
        pid = await backend(index)
        monkeypatch.setattr(session, "CALL_S_MAX", 1.0)
        os.kill(pid, signal.SIGSTOP)
        try:
            began = time.monotonic()
            with pytest.raises(errors.JournalUnavailable, match="silent"):
                await index.indexed(LOG.topic_id, 0)
            assert time.monotonic() - began < 10
            assert await index.indexed(LOG.topic_id, 0) == 0
        finally:
            os.kill(pid, signal.SIGCONT)


async def test_a_cancelled_look_leaves_a_session_that_works(here: PostgresShelf) -> None:
    """Whoever stops waiting takes nothing with him: the next call works, nothing is half done."""
    async with opened(here) as index:
        await index.look(HANDLER, list(LOG.whole()))
        async with locked(here, "LOCK TABLE headrace_place"):
            task = asyncio.create_task(index.look(HANDLER, [], [Claim(HANDLER, 0, 0, 1, "me")]))
            waiting = asyncio.create_task(index.look(HANDLER, list(LOG.whole())))
            await asyncio.sleep(0.1)
            task.cancel()
            waiting.cancel()
            await asyncio.gather(task, waiting, return_exceptions=True)
        assert await index.indexed(LOG.topic_id, 0) == 3


# --- slow ---------------------------------------------------------------------------------------------


async def test_waits_for_locks_and_statements_are_bounded(
    here: PostgresShelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who finds a partition locked gives up after the time for locks, or for the statement."""
    for name, said in (("LOCK_MS_MAX", "lock timeout"), ("STATEMENT_MS_MAX", "statement timeout")):
        with monkeypatch.context() as patch:
            patch.setattr(postgres, name, 100)
            async with opened(here) as index, locked(here, "LOCK TABLE headrace_place"):
                with pytest.raises(errors.JournalUnavailable, match=said):
                    await index.look(HANDLER, list(LOG.whole()))


async def test_partitions_are_locked_in_one_order(here: PostgresShelf) -> None:
    """Who waits for a partition holds no later one, however he names them: no two wait for each other."""
    log = Log(topic_of(1), [[1], [2], [3], [4]])
    longer = Log(log.topic_id, [[n, n] for n in range(1, 5)])
    async with opened(here) as index, opened(here) as other:
        await index.look(HANDLER, list(log.whole()))
        async with locked(here, "SELECT FROM headrace_place WHERE partition = 0 FOR UPDATE") as db:
            wanted = list(longer.whole())
            tasks = [
                asyncio.create_task(index.look(HANDLER, wanted[::-1])),
                asyncio.create_task(other.look(HANDLER, wanted[2:] + wanted[:2])),
            ]
            await asyncio.sleep(0.2)
            await db.execute(b"SELECT FROM headrace_place WHERE partition > 0 FOR UPDATE NOWAIT")
        first, second = await asyncio.gather(*tasks)
        assert first == second == Looked(longer.copies(*longer.whole()), None)


async def test_a_dead_lock_is_resolved(here: PostgresShelf) -> None:
    """Against a stranger who locks in another order one of both is told, and it may try again."""
    async with opened(here) as index:
        await index.look(HANDLER, list(LOG.whole()))
        async with locked(here, "SET deadlock_timeout = '10s'") as db:
            row = "SELECT FROM headrace_place WHERE partition = %s FOR UPDATE"
            await db.execute(row.encode(), (1,))
            longer = Log(LOG.topic_id, [[*LOG.partitions[0], 9], [*LOG.partitions[1], 9]])
            task = asyncio.create_task(index.look(HANDLER, list(longer.whole())))
            await asyncio.sleep(0.2)  # it has partition 0 and waits for 1
            await db.execute(row.encode(), (0,))
            with pytest.raises(errors.JournalUnavailable, match="deadlock"):
                await task
        await index.look(HANDLER, list(longer.whole()))


@pytest.mark.parametrize(
    ("fault", "coded"),
    [
        (psycopg.errors.SerializationFailure, errors.JournalUnavailable),
        (psycopg.errors.DeadlockDetected, errors.JournalUnavailable),
        (psycopg.errors.TooManyConnections, errors.JournalUnavailable),
        (psycopg.errors.ReadOnlySqlTransaction, errors.JournalUnavailable),
        (psycopg.errors.UndefinedTable, errors.JournalUnavailable),
        (psycopg.errors.DiskFull, errors.DiskFull),
        (psycopg.errors.InsufficientPrivilege, errors.JournalReadOnly),
        (psycopg.errors.DataCorrupted, errors.JournalCorrupt),
        (psycopg.InterfaceError, errors.JournalUnavailable),
    ],
)
def test_an_error_of_the_server_is_coded(
    fault: type[psycopg.Error], coded: type[errors.JournalError]
) -> None:
    """What ends by itself may be tried again, what does not says what it asks for."""
    found = session.translated(fault("what it said\nand more"), "postgresql://u@h/d")
    assert type(found) is coded
    assert "postgresql://u@h/d" in found.message
    assert found.hint


# --- refused ------------------------------------------------------------------------------------------


async def test_a_missing_package_names_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without psycopg there is no index in PostgreSQL; the hint can be pasted."""
    index = index_at("postgresql://u@localhost/db")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(errors.ExtraMissing) as caught:
        await index.open()
    assert caught.value.hint == 'pip install "headrace[postgres]"'


def test_psycopg_is_imported_only_to_connect() -> None:
    """An app that names an index starts without the weight of a database driver."""
    code = f"""import sys
from headrace.journal.index.postgres import PostgresIndex as Index
Index({"postgresql://u@h/d"!r}, clock=None, faults=None)
sys.exit("psycopg" in sys.modules)"""
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("postgresql://u:secret@host:5433/db?sslmode=require", "postgresql://u@host:5433/db"),
        ("postgres://u:sec%40ret@a:1,b:2/db", "postgres://u@a:1,b:2/db"),
        ("postgresql://host/db?password=secret&user=u", "postgresql://host/db"),
        ("postgresql:///db?host=/run/postgresql", "postgresql:///run/postgresql/db"),
        ("postgresql://u:secret@[::1]:5432/db", "postgresql://u@[::1]:5432/db"),
    ],
)
def test_an_address_for_people_has_no_password(url: str, address: str) -> None:
    """Host, port, database and user are shown, and nothing that is secret."""
    assert index_at(url).address == address


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:secret@host/db",
        "postgresql://u:sec/secret@host/db",
        "postgresql://u:secret#x@host/db",
        "postgresql://u:s@secret@host/db",
        "postgresql://u:secret@[::1/db",
        "host=a password=secret",
    ],
)
def test_a_wrong_address_is_refused_without_its_password(url: str) -> None:
    """An address that may hold a password in the wrong place is not repeated."""
    with pytest.raises(errors.JournalUrlInvalid) as caught:
        index_at(url)
    assert "secret" not in caught.value.message + caught.value.hint


async def test_a_wrong_option_is_refused_without_the_password() -> None:
    """What libpq does not know is refused; a wrong password is refused by the server; neither is repeated."""
    with pytest.raises(errors.JournalUrlInvalid) as caught:
        await index_at("postgresql://u:secret@localhost/db?nonsense=1").open()
    assert "secret" not in caught.value.message


async def test_a_wrong_password_is_told(server: Postgres) -> None:
    """The server's own words, without what was sent."""
    address = server.url.rpartition("@")[2]
    with pytest.raises(errors.JournalUnavailable, match="password authentication failed") as caught:
        await index_at(f"postgresql://postgres:secret@{address}").open()
    assert "secret" not in caught.value.message


async def test_a_newer_index_is_not_opened(here: PostgresShelf) -> None:
    """Tables of a later schema are left alone."""
    async with opened(here):
        pass
    with psycopg.connect(here.where, autocommit=True) as db:
        db.execute("UPDATE headrace_meta SET value = '99' WHERE name = 'schema'")
    with pytest.raises(errors.JournalNewer, match="99"):
        await here.make().open()


async def test_a_user_without_rights_is_told(here: PostgresShelf, server: Postgres) -> None:
    """Who may not make tables learns which right is missing."""
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("DROP ROLE IF EXISTS poor")
        db.execute("CREATE ROLE poor LOGIN PASSWORD 'poor'")
        schema = here.where.rpartition("%3D")[2]
        db.execute(f"GRANT USAGE ON SCHEMA {schema} TO poor".encode())
    with pytest.raises(errors.JournalReadOnly, match="permission denied") as caught:
        await index_at(f"postgresql://poor:poor@{here.where.rpartition('@')[2]}").open()
    assert "GRANT" in caught.value.hint


async def test_a_closed_index_says_so(here: PostgresShelf) -> None:
    """Before it is opened and after it is closed; closing twice is harmless."""
    index = here.make()
    for _ in range(2):
        with pytest.raises(errors.JournalClosed):
            await index.indexed(LOG.topic_id, 0)
        await index.open()
        await index.close()
        await index.close()


def test_an_index_belongs_to_one_loop(here: PostgresShelf) -> None:
    """A second event loop is refused before it can disturb the first."""
    with asyncio.Runner() as first, asyncio.Runner() as second:
        index = here.make()
        first.run(index.open())
        with pytest.raises(errors.JournalLoopBound):
            second.run(index.indexed(LOG.topic_id, 0))
        first.run(index.close())
