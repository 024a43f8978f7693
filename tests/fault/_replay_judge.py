"""The judge of `replay_kill.py`: reads a journal with plain SQL and says what was lost, doubled, torn.

It knows nothing of Headrace: what it needs of the schema and of the rules of the app is written out here.
Run as a process of its own on a folder, after everybody has gone.

* lost: a ticket that was accepted and is not there, or that the new version has nowhere had a turn at; one
  that live has not finished; one that is finished and whose child is missing;
* doubled: a version has finished a ticket at two places, has left two children of it, or has tried to; an id
  that is there twice; two dead letters that count of one ticket at one place;
* two_versions: ledger, stamp, id and weights of a child name different versions, or the side is not that of
  the subscription that has finished its parent;
* torn: a child without an outcome or an outcome without its child, something still open or in hand, counters
  that disagree with the rows, an allotment that was not gone through.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import sys
from collections import Counter, defaultdict
from pathlib import Path
from typing import NamedTuple

from _judge import Verdict, derived_id, published_id, unpack

FAULTS = ("lost", "doubled", "two_versions", "torn")
HANDLER = "kill.route"


def dies(n: int, *, new: bool) -> bool:
    """Return whether an event comes to a dead letter under the weights."""
    return n % 29 == 3 or (n % 13 == 1 and not new)


class Child(NamedTuple):
    """An event that follows from a ticket."""

    seq: int
    eid: bytes
    topic: str
    model: str
    side: str | None
    weights: str


class Place(NamedTuple):
    """A subscription."""

    sub: int
    #: ``None`` for the live one.
    version: int | None
    side: str | None


class Judge:
    """Goes through one journal."""

    def __init__(self, folder: Path, seed: int) -> None:
        path = folder / "journal.db"
        self.db = sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)
        self._seed = seed
        self.verdict = Verdict()
        self.tickets: dict[int, tuple[int, bytes, int]] = {}
        self.children: defaultdict[bytes, list[Child]] = defaultdict(list)
        self._read_events()
        self.versions = {row[0]: row[1:] for row in self.db.execute(VERSIONS)}
        #: (offset, version) -> where it was finished with a child.
        self.done: defaultdict[tuple[int, int], list[Place]] = defaultdict(list)
        #: (offset, version) -> where it has died, redriven since or not.
        self.died: defaultdict[tuple[int, int], set[int]] = defaultdict(set)

    def blame(self, fault: str, what: str) -> None:
        """Note a fault."""
        self.verdict.blame(fault, what)

    def _read_events(self) -> None:
        stamps = {number: unpack(value) for number, value in self.db.execute("SELECT id, value FROM stamp")}
        seen: Counter[tuple[bytes, str]] = Counter()
        for seq, tp, eid, topic, head, body in self.db.execute(EVENTS):
            told, payload = unpack(head), json.loads(body)
            seen[eid, topic] += 1
            if topic == "tickets":
                self.tickets[seq] = tp, eid, payload["n"]
                continue
            *_, model, side = [*stamps[told[0]], None][:7]  # what is live has no side
            child = Child(seq, eid, topic, model, side, payload["weights"])
            self.children[told[1][0]].append(child)
        for (eid, topic), count in seen.items():
            if count > 1:
                self.blame("doubled", f"{eid.hex()} is {count} times in {topic}")

    def judge(self, published: int) -> Verdict:
        """Judge everything; events 0 to ``published`` were accepted."""
        (sound,) = self.db.execute("PRAGMA integrity_check").fetchone()
        if sound != "ok":
            self.blame("torn", f"the file is damaged: {sound}")
        there = {eid for _, eid, _ in self.tickets.values()}
        for n in range(published):
            if published_id(self._seed, n) not in there:
                self.blame("lost", f"ticket {n} was accepted and is not there")
        for place in [Place(*row) for row in self.db.execute(PLACES)]:
            self._judge_place(place)
        for seq, (_, eid, n) in self.tickets.items():
            self._judge_ticket(seq, eid, n)
        return self.verdict

    # --- one subscription ---------------------------------------------------------------------

    def _judge_place(self, place: Place) -> None:
        rows = self.db.execute
        given = defaultdict(list)
        for tp, after, upto in rows("SELECT tp, after, upto FROM allotted WHERE sub = ?", (place.sub,)):
            given[tp].append((after, upto))
        opened = {seq for (seq,) in rows("SELECT seq FROM open WHERE sub = ?", (place.sub,))}
        letters: Counter[int] = Counter()
        for seq, version, fate, reason in rows(LETTERS, (place.sub,)):
            self.died[seq, version].add(place.sub)
            letters[seq] += fate != "redriven"
            self._judge_letter(place, seq, version, reason)
        for seq, count in letters.items():
            if count > 1:
                self.blame("doubled", f"offset {seq} has {count} dead letters that count at {place}")
        for tp, start, high, *counted in rows(POSITIONS, (place.sub,)):
            mine = [seq for seq, (at, _, _) in self.tickets.items() if at == tp and start < seq]
            if place.version is not None:
                mine = [seq for seq in mine if any(after < seq <= upto for after, upto in given[tp])]
            self._judge_partition(place, tp, high, counted, mine, opened, +letters)

    def _judge_letter(self, place: Place, seq: int, version: int, reason: str) -> None:
        named = f"ticket {self.tickets[seq][2]} (offset {seq}) at {place}"
        if reason == "conflict":
            self.blame("doubled", f"{named}: handled once more, the id of its child was taken")
        elif reason != "replayed" and not dies(
            self.tickets[seq][2], new=self._is_new(self.versions[version][2])
        ):
            self.blame("torn", f"{named}: died ({reason}), and should not have")

    def _judge_partition(
        self, place: Place, tp: int, high: int, counted: list[int], mine: list[int], opened: set[int],
        letters: Counter[int],
    ) -> None:  # fmt: skip
        behind = [seq for seq in mine if seq > high]
        if behind or opened & set(mine):
            self.blame("lost", f"{place}, partition {tp}: {behind} not taken, {opened & set(mine)} open")
        dead = [seq for seq in mine if letters[seq]]
        after, taken, running, done, died = counted
        right = (len(mine) - len(behind), 0, len(mine) - len(behind) - len(opened & set(mine)) - len(dead))
        if (taken, running, done) != right or died != len(dead) or after != high:
            self.blame("torn", f"{place}, partition {tp}: counts {counted}, there are {right}, {len(dead)}")
        for seq in mine:
            if seq <= high and seq not in opened and not letters[seq]:
                self.done[seq, self._version_of(place, tp, seq)].append(place)

    def _version_of(self, place: Place, tp: int, seq: int) -> int:
        for sql in (EXCEPTION, RANGE):
            found = self.db.execute(sql, (place.sub, tp, seq)).fetchone()
            if found:
                return int(found[0])
        self.blame("two_versions", f"offset {seq} is in no version range of {place}")
        return 0

    # --- one ticket ---------------------------------------------------------------------------

    def _judge_ticket(self, seq: int, eid: bytes, n: int) -> None:
        children = self.children[eid]
        for number, (declared, model, digest) in self.versions.items():
            new, full = self._is_new(digest), f"{declared}+{model}"
            places, mine = self.done[seq, number], [one for one in children if one.model == model]
            named = f"ticket {n} (offset {seq}) and {full}"
            if len(places) > 1:
                self.blame("doubled", f"{named}: finished at {places}")
            if len(mine) > 1:
                self.blame("doubled", f"{named}: {len(mine)} children, finished at {places}")
            if bool(places) != bool(mine):
                self.blame("torn", f"{named}: finished at {places}, children {mine}")
            if places and dies(n, new=new):
                self.blame("torn", f"{named}: finished, and cannot be")
            for child in mine:
                self._judge_child(named, child, places, full, digest, eid)
            if new and not places and not (dies(n, new=True) and self.died[seq, number]):
                self.blame("lost", f"{named}: had no turn anywhere")

    def _judge_child(
        self, named: str, child: Child, places: list[Place], full: str, digest: str, parent: bytes
    ) -> None:
        side = places[0].side if places and places[0].version is not None else None
        name = HANDLER if side is None else f"{HANDLER}~{side}"
        topic = "routed" if side is None else f"routed.side.{side}"
        if (child.side, child.topic, child.weights) != (side, topic, digest):
            self.blame("two_versions", f"{named}: finished at {places}, its child says {child}")
        if child.eid != derived_id(name, full, parent):
            self.blame("two_versions", f"{named}: its child has not the id that follows from {name}")

    @staticmethod
    def _is_new(digest: str) -> bool:
        return digest == NEW_DIGEST


NEW_DIGEST = hashlib.sha256(b"weights:new").hexdigest()
VERSIONS = """
SELECT version.id, version.declared,
    model.name || '@' || coalesce(model.declared, model.epoch) || ':' || substr(model.digest, 1, 12),
    model.digest
FROM version JOIN model ON model.id = version.model
"""
EVENTS = """
SELECT event.seq, event.tp, event.eid, topic.name, event.head, event.body
FROM event JOIN topic ON topic.id = event.tp >> 10 ORDER BY event.seq
"""
PLACES = """
SELECT subscription.id, replay.version, replay.side FROM subscription
LEFT JOIN replay ON replay.sub = subscription.id ORDER BY subscription.id
"""
POSITIONS = """
SELECT tp, start, high, claimed_after, taken, running, done, dead FROM position WHERE sub = ?
"""
LETTERS = "SELECT seq, version, fate, reason FROM dead WHERE sub = ?"
EXCEPTION = "SELECT version FROM exception WHERE sub = ? AND tp = ? AND seq = ?"
RANGE = "SELECT version FROM range WHERE sub = ? AND tp = ? AND after < ? ORDER BY after DESC LIMIT 1"


def main() -> None:
    """Print the verdict on a folder: ``_replay_judge.py FOLDER SEED PUBLISHED``."""
    folder, seed, published = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    judge = Judge(folder, seed)
    verdict = judge.judge(published)
    replayed = sum(place.version is not None for places in judge.done.values() for place in places)
    told = {fault: verdict.counts[fault] for fault in FAULTS}
    print(json.dumps(told | {"replayed": replayed, "tickets": len(judge.tickets), "notes": verdict.notes}))


if __name__ == "__main__":
    main()
