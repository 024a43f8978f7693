"""Judges a journal after the campaign of care, with plain SQL: the rules are written out here a second time.

* lost: an accepted event of which neither itself nor a skeleton is there, or that no handler has finished;
* doubled: more than one child of one parent, an id that is there twice;
* unsound: counts that do not add up, events in hand of nobody, what `headrace status --verify` finds.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
from _care_roles import UNFINISHED, event_id

#: handler -> topic consumed
CONSUMED = {"care.route": "tickets", "care.score": "routed"}


class Found:
    """What is wrong with one journal."""

    def __init__(self, path: Path) -> None:
        self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
        self.path = path
        self.notes: list[str] = []

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _rows(self, sql: str, *bindings: Any) -> list[Any]:
        return self._db.execute(sql, bindings).fetchall()

    def judge(self, seed: int, accepted: set[int]) -> list[str]:
        """Return every fault."""
        stamps = {n: msgspec.msgpack.decode(value) for n, value in self._rows("SELECT id, value FROM stamp")}
        topics = {name: number for number, name in self._rows("SELECT id, name FROM topic")}
        everything = (
            "SELECT eid, tp >> 10, head, '' FROM event"
            " UNION ALL SELECT eid, tp >> 10, head, why FROM skeleton"
        )
        there: Counter[tuple[int, bytes]] = Counter()
        children: Counter[tuple[str, bytes]] = Counter()
        erased: set[tuple[int, bytes]] = set()
        for eid, topic, packed, why in self._rows(everything):
            head = msgspec.msgpack.decode(packed)
            there[topic, eid] += 1
            if why == "erased":
                erased.add((topic, eid))
            handler = stamps[head[0]][4]
            if handler is not None:
                children[handler.partition("@")[0], head[1][0]] += 1
        ids = {event_id(seed, n).bytes for n in accepted}
        known = {eid for topic, eid in there if topic == topics.get("tickets")}
        self.notes += [f"lost: {eid.hex()} was accepted and is not there" for eid in ids - known]
        self.notes += [f"doubled: {eid.hex()} is there {n} times" for (_, eid), n in there.items() if n > 1]
        self.notes += [f"doubled: {n} children of {eid.hex()}" for (_, eid), n in children.items() if n > 1]
        for handler, consumed in CONSUMED.items():
            number = topics.get(consumed)
            if number is not None:
                events = {eid for topic, eid in there if topic == number}
                mine = {eid for topic, eid in erased if topic == number}
                self._handler(handler, events, mine, {eid for name, eid in children if name == handler})
        return self.notes

    def _handler(self, handler: str, events: set[bytes], erased: set[bytes], made: set[bytes]) -> None:
        """Each event has a child or a dead letter, unless its payload was erased; the counts say the same."""
        subs = (
            "(SELECT subscription.id FROM subscription JOIN handler ON handler.id = subscription.handler"
            " WHERE handler.name = ?)"
        )
        sums = self._rows(
            "SELECT coalesce(sum(taken), 0), coalesce(sum(running), 0), coalesce(sum(done), 0),"
            f" coalesce(sum(dead), 0), coalesce(sum(expired), 0) FROM position WHERE sub IN {subs}",
            handler,
        )
        fate = "(fate IS NULL OR fate <> 'expired')"
        dead = {eid for (eid,) in self._rows(f"SELECT eid FROM dead WHERE {fate} AND sub IN {subs}", handler)}
        taken, running, done, died, expired = sums[0]
        told = f"{handler}: taken {taken}, done {done}, dead {died}, expired {expired}, running {running}"
        left = events - made - dead - erased
        self.notes += [f"lost: {handler} has not finished {eid.hex()}" for eid in left]
        if taken != done + died + expired or running or taken != len(events):
            self.notes.append(f"unsound: {told}, of {len(events)} events")
        if done != len(made) or died != len(dead) or expired > len(erased):
            self.notes.append(f"unsound: {told}; children {len(made)}, letters {len(dead)}")

    def idle(self) -> bool:
        """Return whether nothing is left to do."""
        return bool(self._rows(UNFINISHED)[0][0] == 0)


def verified(path: Path) -> list[str]:
    """Return what `headrace status --verify` finds wrong."""
    command = [sys.executable, "-m", "headrace", "status", "--verify", "--journal", str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return [] if ran.returncode == 0 else [f"unsound: {line}" for line in ran.stderr.splitlines()[:5]]


def traces(folder: Path, tokens: set[str], after: dict[str, float]) -> list[str]:
    """Return where tokens of erased persons stand: in the journal, in backups made after, in logs."""
    found: list[str] = []
    for one in sorted(folder.iterdir()):
        # What a killed backup has left is a backup made before; its name is not known to anybody else.
        if one.name == "accepted.log" or one.suffix == ".part" or not one.is_file():
            continue
        held = one.read_bytes()
        for token in tokens:
            made_before = one.name.startswith("backup-") and after.get(one.name, 0.0) < after.get(token, 0.0)
            if not made_before and token.encode() in held:
                found.append(f"{token} stands in {one.name}, {held.count(token.encode())} times")
    return found
