"""What the driver asks of a journal while it is in use: plain SQL on a connection that only reads."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Any


class Look:
    """A reader of one journal; every answer is one statement, so one snapshot."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._db: sqlite3.Connection | None = None

    def _ask(self, sql: str, *bindings: Any) -> list[Any]:
        """Return the rows; none while the journal is not there yet or is being created."""
        with suppress(sqlite3.OperationalError):
            if self._db is None:
                self._db = sqlite3.connect(
                    f"file:{self._path}?mode=ro", uri=True, isolation_level=None, timeout=1
                )
            return self._db.execute(sql, bindings).fetchall()
        return []

    def close(self) -> None:
        """Close the file."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def running(self) -> dict[int, int]:
        """Return how many events each process has in hand."""
        return dict(self._ask(RUNNING))

    def in_flight(self) -> bool:
        """Return whether anybody has an event in hand."""
        return sum(self.running().values()) > 0

    def owned(self, pid: int) -> set[tuple[int, int, int]]:
        """Return (subscription, partition, epoch) of what a process owns."""
        return set(self._ask(OWNED, pid))

    def idle(self) -> bool:
        """Return whether the handlers of the chain have finished every event."""
        return self._ask(IDLE) == [(1,)]

    def versions(self, digest: str) -> set[str]:
        """Return the handlers that know a version with these weights."""
        return {name for (name,) in self._ask(KNOWN, digest)}

    def active(self) -> set[str]:
        """Return the digests of the active versions of handlers with a model."""
        return {digest for (digest,) in self._ask(ACTIVE)}

    def there(self, ids: list[bytes]) -> int:
        """Return how many of these events are in the journal."""
        marks = ", ".join("?" * len(ids))
        return len(self._ask(f"SELECT eid FROM event WHERE eid IN ({marks})", *ids))

    def state(self) -> str:
        """Return what is not finished, for a person who looks for the reason."""
        return f"open={self._ask(STILL_OPEN)} positions={self._ask(BEHIND)} workers={self._ask(WORKERS)}"


RUNNING = """
SELECT worker.pid, sum(running) FROM position JOIN worker ON worker.id = position.owner
GROUP BY 1 HAVING sum(running) > 0
"""
OWNED = "SELECT sub, tp, epoch FROM position JOIN worker ON worker.id = owner WHERE pid = ? AND running > 0"
IDLE = """
SELECT (SELECT count(*) FROM subscription) = 3
AND NOT EXISTS (SELECT 1 FROM open)
AND NOT EXISTS (SELECT 1 FROM position WHERE running <> 0 OR claimed_after <> high)
AND NOT EXISTS (SELECT 1 FROM position JOIN event
    ON event.tp >> 10 = position.tp >> 10 AND event.tp = position.tp AND event.seq > position.high)
"""
KNOWN = """
SELECT handler.name FROM version JOIN handler ON handler.id = version.handler
JOIN model ON model.id = version.model WHERE model.digest = ?
"""
ACTIVE = """
SELECT digest FROM handler JOIN version ON version.id = handler.active JOIN model ON model.id = version.model
"""
STILL_OPEN = "SELECT sub, tp, seq, state, attempts, crashes FROM open LIMIT 20"
BEHIND = """
SELECT sub, tp, owner, epoch, high, claimed_after, running,
    (SELECT count(*) FROM event WHERE tp >> 10 = position.tp >> 10 AND tp = position.tp AND seq > high) AS n
FROM position WHERE running <> 0 OR claimed_after <> high OR n > 0 LIMIT 20
"""
WORKERS = "SELECT id, pid, lease_until_ns, left_us FROM worker"
