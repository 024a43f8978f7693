"""What the tests of faults share: worker processes, a look into the journal by plain SQL, tests on a loop."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.fault._apps import Call, calls_of

ROOT = Path(__file__).parents[2]
BEGIN = "from tests.fault._apps import main; main()"
#: What has not come about by then never will; no test asserts a time below it.
PATIENCE_S = 30.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


class Started:
    """A process that a test has started."""

    def __init__(self, role: str, told: dict[str, Any], log: Path, environment: dict[str, str]) -> None:
        self.log_file = log
        self._log = log.open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-c", BEGIN, role, json.dumps(told)],
            cwd=ROOT,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        self.pid = self.process.pid

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self.process.send_signal(number)

    def end(self, number: signal.Signals | None = None) -> int:
        """Wait for the end (after a signal); return the exit code."""
        if number is not None:
            self.send(number)
        return self.process.wait(PATIENCE_S)

    def said(self) -> dict[str, Any]:
        """Return everything that it said on standard output, once it has ended."""
        assert self.process.stdout is not None
        self.process.wait(PATIENCE_S)
        found: dict[str, Any] = {}
        for line in self.process.stdout.read().splitlines():
            found |= json.loads(line)
        return found

    def log(self) -> str:
        """Return what it logged."""
        return self.log_file.read_text("utf-8")

    def close(self) -> None:
        """End it whatever it does, and let go of its pipes."""
        if self.process.poll() is None:
            self.send(signal.SIGCONT)
            self.send(signal.SIGKILL)
            self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._log.close()


@dataclass(slots=True)
class Look:
    """A journal as plain SQL shows it, on a connection that only reads."""

    path: Path
    _db: apsw.Connection | None = None

    def rows(self, sql: str, *bindings: Any) -> list[Any]:
        """Return the rows; none while there is no journal yet."""
        if self._db is None:
            if not self.path.exists():
                return []
            self._db = apsw.Connection(str(self.path), flags=apsw.SQLITE_OPEN_READONLY)
            self._db.set_busy_timeout(5_000)
        try:
            return self._db.execute(sql, bindings).fetchall()
        except apsw.SQLError:  # the file is there, its tables are not yet
            return []

    def one(self, sql: str, *bindings: Any) -> Any:
        """Return the first value of the first row, or ``None``."""
        rows = self.rows(sql, *bindings)
        return rows[0][0] if rows else None

    def counts(self) -> dict[str, int]:
        """Return what the first subscription says of itself; asserts that its counts add up."""
        rows = self.rows(COUNTS)
        if not rows or rows[0][0] is None:
            return dict.fromkeys(("published", "running", "waiting", "done", "dead", "ahead"), 0)
        taken, running, done, dead, standing, ahead, published = rows[0]
        assert taken == running + standing + done + dead, rows
        assert published == taken + ahead, rows
        found = {"running": running, "waiting": standing, "done": done, "dead": dead, "ahead": ahead}
        return {"published": published, **found}

    def idle(self, count: int) -> bool:
        """Return whether that many events are finished, and none is left."""
        found = self.counts()
        return found["done"] + found["dead"] == count == found["published"]

    def emitted(self, topic: str = "jobs-done") -> list[dict[str, Any]]:
        """Return the payloads of a topic, in commit order."""
        sql = "SELECT body FROM event WHERE tp >> 10 = (SELECT id FROM topic WHERE name = ?) ORDER BY seq"
        return [json.loads(body) for (body,) in self.rows(sql, topic)]

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()


#: Of the first subscription, in one snapshot; "ahead" is what no worker has taken yet.
COUNTS = """
SELECT sum(taken), sum(running), sum(done), sum(dead),
    (SELECT count(*) FROM open WHERE sub = 1 AND state <> 'running'),
    (SELECT count(*) FROM event JOIN position AS at ON at.sub = 1 AND at.tp = event.tp
     WHERE event.seq > at.high),
    (SELECT count(*) FROM event WHERE tp >> 10 = (SELECT topic FROM subscription WHERE id = 1))
FROM position WHERE sub = 1
"""


class Stage:
    """One journal, its diary of calls, and the processes that use it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.journal, self.diary = folder / "journal.db", folder / "calls.jsonl"
        self.look = Look(self.journal)
        self._started: list[Started] = []

    def told(self, **more: Any) -> dict[str, Any]:
        """Return what a process is told."""
        return {"journal": str(self.journal), "calls": str(self.diary), **more}

    def start(self, role: str, *, hasty: bool = False, **told: Any) -> Started:
        """Start a process."""
        log = self.folder / f"{len(self._started)}-{role}.log"
        environment = {"HASTY": "1"} if hasty else {}
        self._started.append(Started(role, self.told(**told), log, environment))
        return self._started[-1]

    def worker(self, app: str = "jobs", **told: Any) -> Started:
        """Start a worker."""
        return self.start("worker", app=app, **told)

    def calls(self, what: str | None = "begin") -> list[Call]:
        """Return the calls of handlers so far."""
        return calls_of(self.diary, what)

    def until(self, holds: Callable[[], Any], what: str) -> Any:
        """Return once something holds."""
        end = time.monotonic() + PATIENCE_S
        while not (found := holds()):
            if time.monotonic() > end:
                pytest.fail(f"never came about: {what}; {self.look.counts()}\n{self.logs()}")
            time.sleep(0.01)
        return found

    def until_idle(self, count: int) -> None:
        """Return once that many events of the first subscription are finished, and none is left."""
        self.until(lambda: self.look.idle(count), f"{count} events are finished")

    def logs(self) -> str:
        """Return what all processes logged, for a person who looks for the reason."""
        return "\n".join(one.log()[-3_000:] for one in self._started)

    def close(self) -> None:
        """End every process."""
        for one in self._started:
            one.close()
        self.look.close()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A journal that processes of the test share; none of them outlives it."""
    made = Stage(tmp_path)
    yield made
    made.close()
