"""The judge: reads a journal file with plain SQL and says what was lost, doubled, torn, or handled twice.

It knows nothing of Headrace: the schema, the stored envelope (msgpack), the derivation of ids and the rules
of the app in `_worker.py` are written out here a second time.  Run as a process of its own on a folder, after
all workers are gone.

* lost: an event that was accepted and is not there, that no handler has finished, or whose child is missing;
* doubled: an event there twice, more children of one parent and handler than it makes, two dead letters;
* torn: half of an outcome: finished without its child, a child (or dead letter) of what is not finished,
  counters that disagree with the rows, events still in hand, a child without its parent;
* two_versions: not in exactly one version range or exception row; or stamp, id, payload, dead letter or
  the calls outside name another version than these do;
* disordered: children of one key that are not in the order of their parents.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

FAULTS = ("lost", "doubled", "torn", "two_versions", "disordered")
#: handler -> (topic consumed, topic emitted, type emitted, does it use the model, has its topic keys)
RULES = {
    "kill.route": ("tickets", "routed", "Routed", True, True),
    "kill.score": ("routed", "scored", "Scored", False, True),
    "kill.file": ("scored", "filed", "Filed", True, False),
}


def comes_to(handler: str, n: int) -> str:
    """Return what a handler makes of an event: a child, nothing, or a dead letter."""
    if handler == "kill.score" and n % 7 == 0:
        return "nothing"
    if handler == "kill.score" and n % 41 == 1:
        return "dead"
    return "child"


def published_id(seed: int, n: int) -> bytes:
    """Return the id under which the n-th event was published."""
    drawn = bytearray(hashlib.blake2b(f"{seed}:{n}".encode(), digest_size=16).digest())
    drawn[6], drawn[8] = drawn[6] & 0x0F | 0x70, drawn[8] & 0x3F | 0x80
    return bytes(drawn)


def derived_id(handler: str, version: str, parent: bytes) -> bytes:
    """Return the id of the first child: the parent's time, then a hash over handler, version and parent."""
    prefix = hashlib.blake2b(f"{handler}\0{version}\0".encode(), digest_size=32).digest()
    drawn = bytearray(parent[:6] + hashlib.blake2b(prefix + parent + b"#0").digest()[:10])
    drawn[6], drawn[8] = drawn[6] & 0x0F | 0x80, drawn[8] & 0x3F | 0x80
    return bytes(drawn)


def unpack(data: bytes) -> Any:
    """Return the value of a msgpack document."""
    return _value(data, 0)[0]


def _value(data: bytes, at: int) -> tuple[Any, int]:  # noqa: PLR0911 - a table of the format
    kind = data[at]
    at += 1
    if kind < 0x80 or kind >= 0xE0:
        return (kind if kind < 0x80 else kind - 0x100), at
    if kind < 0x90:
        return _mapping(data, at, kind & 0x0F)
    if kind < 0xA0:
        return _array(data, at, kind & 0x0F)
    if kind < 0xC0:
        return _text(data, at, kind & 0x1F)
    if kind in (0xC0, 0xC2, 0xC3):
        return {0xC0: None, 0xC2: False, 0xC3: True}[kind], at
    if 0xC4 <= kind <= 0xC6 or 0xD9 <= kind <= 0xDB:  # bytes and text: a length of 1, 2, 4 bytes before it
        wide = 1 << (kind - 0xC4 if kind < 0xD0 else kind - 0xD9)
        size, at = int.from_bytes(data[at : at + wide], "big"), at + wide
        return _text(data, at, size) if kind >= 0xD0 else (data[at : at + size], at + size)
    if 0xCC <= kind <= 0xD3:
        wide = 1 << (kind - 0xCC & 3)
        return int.from_bytes(data[at : at + wide], "big", signed=kind >= 0xD0), at + wide
    if kind in (0xCA, 0xCB):
        return None, at + (4 if kind == 0xCA else 8)  # confidence: nothing is judged by it
    if 0xDC <= kind <= 0xDF:  # lists and mappings: a count of 2 or 4 bytes before them
        wide = 4 if kind & 1 else 2
        read = _array if kind < 0xDE else _mapping
        return read(data, at + wide, int.from_bytes(data[at : at + wide], "big"))
    raise ValueError(f"msgpack type {kind:#x} has no place in an envelope")


def _text(data: bytes, at: int, size: int) -> tuple[str, int]:
    return data[at : at + size].decode(), at + size


def _array(data: bytes, at: int, count: int) -> tuple[list[Any], int]:
    found = []
    for _ in range(count):
        value, at = _value(data, at)
        found.append(value)
    return found, at


def _mapping(data: bytes, at: int, count: int) -> tuple[dict[Any, Any], int]:
    flat, at = _array(data, at, 2 * count)
    return dict(zip(flat[::2], flat[1::2], strict=True)), at


class Stored(NamedTuple):
    """One event as it lies in the file."""

    seq: int
    tp: int
    eid: bytes
    topic: str
    parents: list[bytes]
    key: str | None
    type: str
    #: ``name@declared`` of the handler that emitted it, and its model.
    handler: str | None
    model: str | None
    body: dict[str, Any]


@dataclass
class Verdict:
    """The faults found, and in words where."""

    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def blame(self, fault: str, what: str) -> None:
        """Note a fault."""
        self.counts[fault] += 1
        self.notes.append(f"{fault}: {what}")


class Judge:
    """Goes through one journal."""

    def __init__(self, folder: Path, seed: int) -> None:
        path = folder / "journal.db"
        self._db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        self._folder, self._seed = folder, seed
        self.verdict = Verdict()
        self._events = self._stored()
        self._by_topic: dict[str, list[Stored]] = defaultdict(list)
        self._children: dict[tuple[str, bytes], list[Stored]] = defaultdict(list)
        for event in self._events:
            self._by_topic[event.topic].append(event)
            if event.handler:
                self._children[event.handler.partition("@")[0], event.parents[0]].append(event)
        #: What the handlers wrote down outside of the journal: (handler, n) -> digests of the weights used.
        self.called: dict[tuple[str, int], set[str]] = defaultdict(set)
        self.calls = 0
        self._read_calls()
        self._versions = {row[0]: row[1:] for row in self._db.execute(VERSIONS)}

    def _stored(self) -> list[Stored]:
        stamps = {number: unpack(value) for number, value in self._db.execute("SELECT id, value FROM stamp")}
        found = []
        for seq, tp, eid, topic, head, body in self._db.execute(EVENTS):
            told = unpack(head)
            kind, _, _, _, handler, model = stamps[told[0]]
            found.append(
                Stored(seq, tp, eid, topic, told[1], told[9], kind, handler, model, json.loads(body))
            )
        return found

    def _read_calls(self) -> None:
        path = self._folder / "calls.log"
        for line in path.read_text("ascii").splitlines() if path.exists() else ():
            handler, n, weights, *_ = line.split(" ")
            self.called[handler, int(n)].add(weights)
            self.calls += 1

    def judge(self, published: int) -> Verdict:
        """Judge everything; events 0 to ``published`` were accepted."""
        (sound,) = self._db.execute("PRAGMA integrity_check").fetchone()
        if sound != "ok":
            self.verdict.blame("torn", f"the file is damaged: {sound}")
        self._judge_published(published)
        self._judge_ids()
        subscriptions = {name: (sub, topic) for sub, name, topic in self._db.execute(SUBSCRIPTIONS)}
        for handler in RULES:
            if handler in subscriptions:
                Ledger(self, handler, *subscriptions[handler]).judge()
            else:
                self.verdict.blame("lost", f"{handler} has no subscription")
        return self.verdict

    def _judge_published(self, published: int) -> None:
        there = Counter(event.eid for event in self._by_topic["tickets"])
        for n in range(published):
            if there[published_id(self._seed, n)] == 0:
                self.verdict.blame("lost", f"ticket {n} was accepted and is not there")
        if len(self._by_topic["tickets"]) > published:
            self.verdict.blame("doubled", "there are more tickets than were published")

    def _judge_ids(self) -> None:
        for (eid, topic), count in Counter((event.eid, event.topic) for event in self._events).items():
            if count > 1:
                self.verdict.blame("doubled", f"{eid.hex()} is {count} times in {topic}")
        known = {event.eid for event in self._events}
        for event in self._events:
            if any(parent not in known for parent in event.parents):
                self.verdict.blame("torn", f"event {event.seq} ({event.type}) has lost its parent")


class Ledger:
    """One handler: what its subscription says against what is there."""

    def __init__(self, judge: Judge, handler: str, sub: int, topic: str) -> None:
        self._db, self._verdict = judge._db, judge.verdict
        self._handler, self._sub = handler, sub
        self._consumed, self._emitted, self._type, self._with_model, self._keyed = RULES[handler]
        self._versions, self._called = judge._versions, judge.called
        self._events = judge._by_topic[self._consumed]
        self._children = judge._children
        if topic != self._consumed:
            self._verdict.blame("torn", f"{handler} reads {topic}")

    def _rows(self, sql: str) -> list[Any]:
        return self._db.execute(sql, (self._sub,)).fetchall()

    def judge(self) -> None:
        """Judge every event of the topic, then the counters of every partition."""
        self._high = {row[0]: row[1] for row in self._rows(POSITIONS)}
        self._open = {(tp, seq) for tp, seq in self._rows(OPEN)}
        self._dead: dict[int, list[int]] = defaultdict(list)
        for _, seq, version in self._rows(DEAD):
            self._dead[seq].append(version)
        self._ranges = defaultdict(list)
        for tp, after, version in self._rows(RANGES):
            self._ranges[tp].append((after, version))
        self._exceptions = {(tp, seq): version for tp, seq, version in self._rows(EXCEPTIONS)}
        for event in self._events:
            self._judge_event(event)
        known = {(event.tp, event.seq) for event in self._events}
        for tp, seq in self._exceptions.keys() - known:
            self._blame("two_versions", f"an exception row for {seq} in {tp}, which is no event")
        for tp, seq in self._open - known:
            self._blame("torn", f"an open row for {seq} in {tp}, which is no event")
        self._judge_counters()
        if self._keyed:
            self._judge_order()

    def _blame(self, fault: str, what: str) -> None:
        self._verdict.blame(fault, f"{self._handler}: {what}")

    def _judge_event(self, event: Stored) -> None:
        n = event.body["n"]
        named = f"event {event.seq} (n {n})"
        children = self._children[self._handler, event.eid]
        dead = self._dead[event.seq]
        finished = event.seq <= self._high.get(event.tp, 0) and (event.tp, event.seq) not in self._open
        expected = comes_to(self._handler, n)
        wanted = int(expected == "child" and finished)
        if not finished:
            self._blame("lost", f"{named} is not finished")
            if children or dead:
                self._blame("torn", f"{named} has left something and is not finished")
        if len(children) > max(wanted, not finished) or len(dead) > 1:
            self._blame("doubled", f"{named} has {len(children)} children, {len(dead)} dead letters")
        if finished and (len(children) < wanted or bool(dead) != (expected == "dead")):
            self._blame("lost", f"{named} came to {len(children)} children, {len(dead)} dead letters")
            self._blame("torn", f"{named} is finished, its outcome is not there")
        if finished:
            self._judge_version(event, named, children, dead)

    def _judge_version(self, event: Stored, named: str, children: list[Stored], dead: list[int]) -> None:
        below = [version for after, version in self._ranges[event.tp] if after < event.seq]
        ranged = below[-1] if below else None
        excepted = self._exceptions.get((event.tp, event.seq))
        number = ranged if excepted is None else excepted
        if number not in self._versions:
            self._blame("two_versions", f"{named} is in no version range")
            return
        if excepted == ranged:
            self._blame("two_versions", f"{named} is in a range and has an exception row that says the same")
        handler, declared, model, digest = self._versions[number]
        full = declared if model is None else f"{declared}+{model}"
        if handler != self._handler or any(version != number for version in dead):
            self._blame("two_versions", f"{named}: the ledger says {handler} {full}, the dead letter not")
        for child in children:
            said = (child.handler, child.model, child.topic, child.type)
            if said != (f"{handler}@{declared}", model, self._emitted, self._type):
                self._blame("two_versions", f"{named}: the ledger says {full}, its child {said}")
            elif child.eid != derived_id(handler, full, event.eid):
                self._blame("two_versions", f"{named}: its child has not the id that follows from {full}")
            elif self._with_model and child.body["weights"] != digest:
                self._blame("two_versions", f"{named}: {full} has committed what other weights made")
        calls = self._called[self._handler, event.body["n"]]
        if (digest if self._with_model else "-") not in calls:
            self._blame("two_versions", f"{named}: {full} has never run it")

    def _judge_counters(self) -> None:
        seen = Counter((event.tp, event.seq <= self._high.get(event.tp, 0)) for event in self._events)
        still = Counter(tp for tp, _ in self._open)
        dead = Counter(tp for tp, _, _ in self._rows(DEAD))
        for tp, _, after, taken, running, done, died, expired in self._rows(POSITIONS):
            there = seen[tp, True]
            found = (taken, running, done, died, expired)
            right = (there, 0, there - still[tp] - dead[tp], dead[tp], 0)
            if found != right or after != self._high[tp]:
                self._blame("torn", f"partition {tp} counts {found}, there are {right}")

    def _judge_order(self) -> None:
        last: dict[tuple[int, str | None], list[int]] = defaultdict(list)
        for event in self._events:
            for child in self._children[self._handler, event.eid]:
                last[event.tp, event.key].append(child.seq)
        for (tp, key), order in last.items():
            turned = sum(before > after for before, after in pairwise(order))
            if turned:
                self._blame("disordered", f"key {key} in {tp}: {turned} children before their turn")


VERSIONS = """
SELECT version.id, handler.name, version.declared,
    model.name || '@' || coalesce(model.declared, model.epoch) || ':' || substr(model.digest, 1, 12),
    model.digest
FROM version JOIN handler ON handler.id = version.handler LEFT JOIN model ON model.id = version.model
"""
EVENTS = """
SELECT event.seq, event.tp, event.eid, topic.name, event.head, event.body
FROM event JOIN topic ON topic.id = event.tp >> 10 ORDER BY event.seq
"""
SUBSCRIPTIONS = """
SELECT subscription.id, handler.name, topic.name FROM subscription
JOIN handler ON handler.id = subscription.handler JOIN topic ON topic.id = subscription.topic
"""
POSITIONS = "SELECT tp, high, claimed_after, taken, running, done, dead, expired FROM position WHERE sub = ?"
OPEN = "SELECT tp, seq FROM open WHERE sub = ?"
DEAD = "SELECT tp, seq, version FROM dead WHERE sub = ? AND fate IS NULL"
RANGES = "SELECT tp, after, version FROM range WHERE sub = ? ORDER BY tp, after"
EXCEPTIONS = "SELECT tp, seq, version FROM exception WHERE sub = ?"


def main() -> None:
    """Print the verdict on a folder: ``_judge.py FOLDER SEED PUBLISHED``."""
    folder, seed, published = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    judge = Judge(folder, seed)
    verdict = judge.judge(published)
    told = {fault: verdict.counts[fault] for fault in FAULTS}
    told |= {"events": len(judge._events), "calls": judge.calls, "reruns": judge.calls - len(judge.called)}
    print(json.dumps(told | {"notes": verdict.notes}))


if __name__ == "__main__":
    main()
