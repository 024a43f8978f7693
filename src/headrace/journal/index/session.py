"""One connection to PostgreSQL: opened when it is needed, given up when it fails, its errors coded."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qs, urlsplit

from headrace import errors

if TYPE_CHECKING:
    from psycopg import AsyncConnection, Error
    from psycopg.rows import TupleRow

    Db = AsyncConnection[TupleRow]

T = TypeVar("T")
#: What a statement binds, and what a row holds.
Values = tuple[Any, ...]

#: How long one attempt to connect may take: a server that starts refuses at once, one that is gone is silent.
CONNECT_S_MAX = 5
#: How long the server works on one statement: ten thousand times what a look takes.
STATEMENT_MS_MAX = 10_000
#: How long a statement waits for another writer, who holds its locks for milliseconds.
LOCK_MS_MAX = 5_000
#: When the server rolls back a transaction whose client is silent (stopped, or cut off), and frees its locks.
SILENT_MS_MAX = 10_000
#: After that a call is given up here, whatever the server and the network do: a connection is made and
#: prepared, then a statement runs, each within its own bound.  (To cancel it takes psycopg up to 5 s more.)
CALL_S_MAX = 20.0
#: A peer that is gone without a word is noticed within 19 s when idle, within 15 s with data on the way.
_DEFAULTS = {
    "connect_timeout": CONNECT_S_MAX,
    "keepalives_idle": 10,
    "keepalives_interval": 3,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "application_name": "headrace",
}
#: What the function `headrace_look` raises for a gap.
GAP = "HR001"
#: A port that is not a number is most likely a part of a password.
_HOSTS = re.compile(r"(?:[^:@/\s]*|\[[0-9a-fA-F:.]+\])(?::\d*)?")
_SCHEMES = ("postgresql", "postgres")


def shown(url: str) -> str:
    """Return an address for people: user, hosts and database, nothing else; raises `JournalUrlInvalid`."""
    try:
        scheme, rest, path, query, fragment = urlsplit(url)
    except ValueError:
        scheme = rest = path = query = fragment = ""
    user, at, hosts = rest.rpartition("@")
    sound = scheme in _SCHEMES and all(_HOSTS.fullmatch(host) for host in hosts.split(","))
    if not sound or fragment or "@" in path or "@" in user:
        raise errors.JournalUrlInvalid(
            "An index in PostgreSQL is named postgresql://user:password@host/database, with % escapes for "
            "what is special in a password.",
            url=f"{scheme or 'postgresql'}://...",
        )
    hosts = hosts or ",".join(parse_qs(query).get("host", []))
    return f"{scheme}://{user.partition(':')[0]}{at}{hosts}{path}"


def _psycopg() -> Any:
    try:
        import psycopg
    except ImportError as fault:
        raise errors.ExtraMissing(
            feature="An index in PostgreSQL", extra="postgres", hint='pip install "headrace[postgres]"'
        ) from fault
    return psycopg


class Session:
    """A connection that a process shares among its tasks, one call at a time."""

    def __init__(self, url: str, prepare: Callable[[Db], Awaitable[None]]) -> None:
        self.address = shown(url)
        self._url, self._prepare = url, prepare
        self._db: Db | None = None
        self._turn = asyncio.Lock()
        self._owner: tuple[int, asyncio.AbstractEventLoop] | None = None

    async def open(self) -> None:
        """Connect; raises the coded error where that fails."""
        _psycopg()
        self._owner = (os.getpid(), asyncio.get_running_loop())
        await self.run(_nothing)

    async def close(self) -> None:
        """Disconnect; in a forked child leave the parent's connection alone."""
        owner, self._owner = self._owner, None
        if owner is not None and owner[0] == os.getpid():
            async with self._turn:
                await self._drop()

    async def rows(self, sql: str, bindings: Values = ()) -> list[Values]:
        """Run one statement, which is one transaction, and return its rows."""

        async def work(db: Db) -> list[Values]:
            return await fetched(db, sql, bindings)

        return await self.run(work)

    async def run(self, work: Callable[[Db], Awaitable[T]], seconds_max: float | None = None) -> T:
        """Do work on the connection, which is made anew if the last call lost it; nothing is repeated."""
        seconds = CALL_S_MAX if seconds_max is None else seconds_max
        async with self._turn:
            self._check()
            whole = False
            try:
                with self._coded(seconds):
                    async with asyncio.timeout(seconds):
                        result = await work(await self._connected())
                whole = True
            except (errors.IndexGap, errors.HandlerUnknown, errors.VersionUnknown):
                whole = True  # said by us, and what was begun is rolled back
                raise
            finally:
                # After anything else (also: cancelled) nobody can say in what state the connection is, or
                # whether it leads to the right server: the next call makes a new one.
                if not whole:
                    await self._drop()
            return result

    def _check(self) -> None:
        if self._owner is None:
            raise errors.JournalClosed
        pid, loop = self._owner
        if pid != os.getpid():
            raise errors.JournalForked(path=self.address, opened_pid=pid, pid=os.getpid())
        if loop is not asyncio.get_running_loop():
            raise errors.JournalLoopBound

    async def _connected(self) -> Db:
        if self._db is not None and not self._db.closed:
            return self._db
        psycopg = _psycopg()
        await self._drop()
        try:
            asked = psycopg.conninfo.conninfo_to_dict(self._url)
        except psycopg.ProgrammingError:  # its text may hold a part of the password
            raise errors.JournalUrlInvalid(url=self.address) from None
        connect = psycopg.AsyncConnection.connect
        db: Db = await connect(autocommit=True, **{**_DEFAULTS, **asked})
        self._db = db
        await self._prepare(db)
        return db

    async def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            await db.close()

    @contextmanager
    def _coded(self, seconds_max: float) -> Generator[None]:
        psycopg = _psycopg()
        try:
            yield
        except psycopg.Error as fault:
            raise translated(fault, self.address) from fault
        except TimeoutError as fault:
            raise errors.JournalUnavailable(
                f"It was silent for {seconds_max:g} s.", path=self.address, hint=_HINT
            ) from fault
        except OSError as fault:
            raise errors.JournalUnavailable(str(fault), path=self.address, hint=_HINT) from fault


async def fetched(db: Db, sql: str, bindings: Values = ()) -> list[Values]:
    """Run a statement and return its rows, if it is one that has any."""
    cursor = await db.execute(sql.encode(), bindings)
    return await cursor.fetchall() if cursor.description is not None else []


async def _nothing(_db: Db) -> None:
    pass


#: For whoever has ended with it: workers at work wait for the server, and tell no hint.
_HINT = "see whether the server runs and takes connections, then do the same again"
#: Condition codes of PostgreSQL (appendix A of its manual) that ask for something else than patience.
_KINDS: dict[str, Callable[[str, str], errors.JournalError]] = {
    "53100": lambda path, _: errors.DiskFull(path=path),
    "42501": lambda path, told: errors.JournalReadOnly(
        told, path=path, hint="GRANT the user what stands in the message, CREATE on the schema included"
    ),
    "25006": lambda path, told: errors.JournalUnavailable(
        told, path=path, hint="a standby answered: add target_session_attrs=read-write to the address"
    ),
    "XX001": lambda path, told: errors.JournalCorrupt(path=path, problem=told),
    "XX002": lambda path, told: errors.JournalCorrupt(path=path, problem=told),
}


def translated(fault: Error, path: str) -> errors.JournalError:
    """Return the coded error for one of PostgreSQL: most end by themselves, so most are retryable."""
    told = " ".join((fault.diag.message_primary or str(fault)).split())
    if fault.sqlstate == GAP:
        partition, indexed = told.split()
        return errors.IndexGap(partition=int(partition), indexed=int(indexed))
    known = _KINDS.get(fault.sqlstate or "")
    if known is not None:
        return known(path, told)
    code = f" ({fault.sqlstate})" if fault.sqlstate else ""
    return errors.JournalUnavailable(f"{told}{code}.", path=path, hint=_HINT)
