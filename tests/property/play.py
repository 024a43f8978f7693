"""One subscription on a real journal file, with workers that may do anything; keeps books of its own.

`Play` has a method for each thing that may happen, and one that compares its books with the journal's.  It
behaves like the runtime: of one key it finishes events in order, and hands back what stands behind a failure.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

from tests.journal.journals import SqliteFile
from tests.journal.lab import HANDLER, LEASE_MS, TOPIC, Content, Lab, Member, offer

from headrace import errors
from headrace.journal.erase import erase
from headrace.journal.retention import SWEEP_EVERY_US
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import (
    Batch,
    Journal,
    Keep,
    NewEvent,
    NoFaults,
    OpenState,
    Outcome,
    Row,
    Settled,
    VersionInfo,
)
from headrace.testing import FailAt

T = TypeVar("T")

MEMBERS_MAX, VERSIONS_MAX = 4, 4
POINTS = ("settle.begin", "settle.positions", "settle.events", "settle.open", "settle.dead", "claim.written")
ENDINGS = ("done", "retry", "soon", "dead", "returned", "left")
STATES = {
    "retry": OpenState.RETRY,
    "soon": OpenState.RETRY,
    "returned": OpenState.RETURNED,
    "blocked": OpenState.BLOCKED,
}


def one_of(found: Sequence[T], pick: int) -> T:
    """Return one of several."""
    return found[pick % len(found)]


@dataclass(eq=False)
class Work:
    """A batch in the hands of a worker."""

    member: Member
    batch: Batch
    rows: list[Row]
    #: Offsets that stand behind one that failed meanwhile: the runtime hands them back, untouched.
    blocked: set[int] = field(default_factory=set)


class Play:
    """Everything that may happen to one subscription."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="headrace-play-"))
        self.loop = asyncio.new_event_loop()
        self.lab = Lab(SqliteFile(), self.folder, partitions=3)
        self.journals = [self.run(self.lab.another()) for _ in range(2)]
        self.topic = self.run(self.journals[0].topic(TOPIC)).id
        self.members: list[Member] = []
        self.works: list[Work] = []
        self.versions = 1
        self.published: list[NewEvent] = []
        #: Final outcomes by offset: how it ended, and by which version.
        self.final: dict[int, tuple[str, str]] = {}
        #: Offsets that were redriven: they may come late.
        self.redriven: set[int] = set()
        #: Key, id and place of every offset, of those too that are no longer there.
        self.known: dict[int, tuple[str | None, bytes, int]] = {}
        #: Offsets that were erased, and those that retention may have removed.
        self.erased: set[int] = set()
        #: Offsets that were there when the books were last compared.
        self.present: set[int] = set()
        self.run(self.journals[0].offer(offer("d1")))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on a loop of our own."""
        return self.loop.run_until_complete(work)

    def close(self) -> None:
        """Close and forget the file."""
        self.run(self.lab.close())
        self.loop.close()
        shutil.rmtree(self.folder)

    def active(self) -> VersionInfo:
        """Return the active version."""
        return self.run(self.journals[0].offer(offer("d1"))).active

    def keys(self) -> dict[int, str | None]:
        """Return the key of every event by offset."""
        by_id = {event.event_id: event.head.key for event in self.published}
        ids = self.lab.ledger.ids(self.topic)
        for (seq, place), eid in zip(sorted(self.lab.ledger.places(self.topic).items()), ids, strict=True):
            self.known[seq] = by_id[eid], eid, place
        return {seq: key for seq, (key, _, _) in self.known.items()}

    # --- publishing ---------------------------------------------------------------------------

    def publish(self, keys: list[str | None], pick: int) -> None:
        """Publish a unit of events on either connection."""
        self.published += self.run(self.lab.publish(*keys, journal=one_of(self.journals, pick)))

    def publish_again(self, pick: int) -> None:
        """Publish a known id again: it has no effect."""
        event = one_of(self.published, pick)
        again = self.run(self.lab.event(Content(event.head.key, event.body), event_id=event.event_id))
        (receipt,) = self.run(self.journals[0].publish([again]))
        assert receipt.duplicate, "a copy was taken for a new event"

    def publish_other(self, pick: int) -> None:
        """Publish other content under a known id: it is refused."""
        event = one_of(self.published, pick)
        other = self.run(self.lab.event(Content(event.head.key, b"other"), event_id=event.event_id))
        erased = event.event_id in {self.known[seq][1] for seq in self.erased}
        try:
            (receipt,) = self.run(self.journals[1].publish([other]))
        except errors.EventConflict:
            assert not erased, "what was erased cannot be compared"
            return
        assert erased, "other content was taken for a copy"
        assert receipt.duplicate, "what was erased came back"

    def publish_child(self, pick: int) -> None:
        """Publish an event that another one has caused, with its key."""
        parent = one_of(self.published, pick)
        event = self.run(self.lab.event(Content(parent.head.key), parents=[parent.event_id]))
        self.run(self.journals[0].publish([event]))
        self.published.append(event)

    # --- workers ------------------------------------------------------------------------------

    def join(self, pick: int) -> None:
        """A worker comes, with weights that are known or new."""
        if len(self.members) < MEMBERS_MAX:
            version = min(1 + pick % VERSIONS_MAX, self.versions + 1)
            self.versions = max(self.versions, version)
            journal = one_of(self.journals, pick)
            self.members.append(self.run(self.lab.member(offer(f"d{version}"), journal=journal)))

    def balance(self, pick: int) -> None:
        """A worker looks for partitions to take, to hand back, to forget."""
        if self.members:
            self.run(one_of(self.members, pick).consumer.balance())

    def beat(self, _: int) -> None:
        """Time passes, every worker renews its lease and looks around."""
        for member in self.members:
            member.worker.renew()
        self.lab.clock.advance(1.5)
        for member in self.members:
            self.run(member.consumer.balance())

    def die(self, pick: int) -> None:
        """A worker is gone without a word; what it had in hand is never settled."""
        if self.members:
            member = one_of(self.members, pick)
            member.die()
            self.members.remove(member)
            self.works = [work for work in self.works if work.member is not member]

    def stall(self, pick: int) -> None:
        """A worker stalls for longer than its lease, others look around; it comes back none the wiser."""
        self.lab.clock.advance(LEASE_MS / 1000 - 1)
        others = [member for number, member in enumerate(self.members) if number != pick % 4]
        for member in others:
            member.worker.renew()
        self.lab.clock.advance(2)
        for member in others:
            self.run(member.consumer.balance())

    def leave(self, pick: int) -> None:
        """A worker with nothing in hand stops in order."""
        busy = [work.member for work in self.works]
        idle = [member for member in self.members if not any(member is one for one in busy)]
        if idle:
            member = one_of(idle, pick)
            self.run(member.leave())
            self.members.remove(member)

    def activate(self, pick: int) -> None:
        """An operator makes a known version the active one."""
        known = self.run(self.journals[0].offer(offer(f"d{1 + pick % self.versions}"))).mine
        self.run(self.journals[1].activate(HANDLER, known.name))

    def redrive(self, pick: int) -> None:
        """An operator makes a dead event waiting again."""
        letters = self.lab.ledger.letters()
        if letters:
            number = one_of(letters, pick)
            seq = self.lab.ledger.offset_of(number)
            (problem,) = self.run(self.lab.kind.redrive(self.journals[1], [number]))
            if not problem:
                self.redriven.add(seq)
                del self.final[seq]

    # --- care ---------------------------------------------------------------------------------

    def sweep(self, pick: int) -> None:
        """Retention removes whatever is older than a second and may go, all of it or a step."""
        self.keys()
        self.lab.clock.advance(SWEEP_EVERY_US / 1e6)
        for member in self.members:
            member.worker.renew()
        self.run(self.swept(one_of(self.journals, pick), 1 + pick))

    async def swept(self, journal: Journal, steps: int) -> None:
        """Take some steps of retention."""
        sweeper = journal.sweeper("lab", (Keep(TOPIC, 1_000_000, None),), 10**15)
        for _ in range(steps):
            if not await sweeper.step():
                break

    def erase(self, pick: int) -> None:
        """An operator erases a key: of its events those that are not finished expire."""
        keys = self.keys()
        key = one_of(self.published, pick).head.key
        if key is None:
            return
        journal = one_of(self.journals, pick)
        assert isinstance(journal, SqliteJournal)
        self.run(erase(journal, [key], TOPIC, effects=False, dry_run=False))
        there = set(self.lab.ledger.offsets(self.topic))
        for seq in (seq for seq, its in keys.items() if its == key and seq not in there):
            if seq in self.present:
                self.erased.add(seq)
                self.final.setdefault(seq, ("expired", ""))

    def jump(self, pick: int) -> None:
        """Somebody sets the wall clock."""
        self.lab.clock.set_wall(7_200 * (-1) ** pick)

    def finish(self, _: int) -> None:
        """All die; one healthy worker finishes all there is: nothing is stuck, whatever happened before."""
        for member in self.members:
            member.die()
        self.members.clear()
        self.works.clear()
        self.lab.clock.advance(LEASE_MS / 1000 + 1)
        healer = self.run(self.lab.member(offer("d1")))
        healer.version = self.active()
        self.members.append(healer)
        for _ in range(10 * len(self.published) + 10):
            if self.take(0, 5):
                self.settle(0, ["done"])
            elif len(self.final) == len(self.published):
                break
            else:  # a look may have passed over others' events only, or a retry waits for its time
                due = healer.consumer.next_due_ns() or 0
                self.lab.clock.advance(max(0.0, (due - self.lab.clock.boot_ns()) / 1e9))
                healer.worker.renew()
        assert len(self.final) == len(self.published), "something is stuck"

    # --- handling -----------------------------------------------------------------------------

    def take(self, pick: int, limit: int) -> bool:
        """A worker claims events, if it has the active version; else it loads that one first."""
        if not self.members:
            return False
        member = one_of(self.members, pick)
        try:
            batch = self.run(member.take(limit))
        except errors.VersionInactive:
            member.version = self.active()
            batch = self.run(member.take(limit))
        if batch is not None:
            self.received(member, batch)
        return batch is not None

    def received(self, member: Member, batch: Batch) -> None:
        """Check what was handed out: once, in the order of its key, and alone if it is a suspect."""
        assert batch.rows, "a batch without events"
        assert batch.version == self.active(), "handed out under a version that is not active"
        assert batch.alone == any(one.crashes for one in batch.attempts.values())
        assert len(batch.rows) == 1 or not batch.alone, "suspects run one by one"
        valid = [(work, row) for work in self.works for row in work.rows if self.is_valid(work, row)]
        opened = self.lab.ledger.opened(member.sub)
        keys = self.keys()
        for row in batch.rows:
            key = keys[row[0]]
            assert row[0] not in self.final, "handed out after it was finished"
            assert all(row[0] != other[0] for _, other in valid), "in two batches at once"
            late = row[0] in self.redriven
            for work, other in valid if key is not None else ():
                if keys[other[0]] == key:
                    assert work.member is member, "two workers have events of one key in hand"
                    gone = other[0] in work.blocked or other[0] in self.redriven
                    assert other[0] < row[0] or gone or late, "handed out after a later one"
            for seq, entry in opened.items() if key is not None else ():
                if seq < row[0] and entry.state != "running" and seq not in self.redriven:
                    assert keys[seq] != key, "handed out although an earlier one waits"
        self.works.append(Work(member, batch, list(batch.rows)))

    def is_valid(self, work: Work, row: Row) -> bool:
        """Return whether an outcome of the worker would still count."""
        at = self.lab.ledger.positions(work.member.sub)[row[1]]
        return at.owner == work.member.worker.id and at.epoch == work.batch.token.epochs[row[1]]

    def settle(self, pick: int, endings: list[str], limit: int = 0, point: str | None = None) -> None:
        """A worker commits what (a part of) its batch came to; now and then the commit fails at first."""
        if not self.works:
            return
        work = one_of(self.works, pick)
        outcome, left = self.outcome(work, endings)
        settled = self.commit(work, outcome, limit, point)
        assert not settled.conflicts, "an id was derived twice"
        self.note(work, outcome, settled.stale)
        self.block(work, outcome)
        work.rows = [row for row in left if row[0] not in settled.stale]
        if not work.rows:
            self.works.remove(work)
        if settled.next is not None:
            self.received(work.member, settled.next)

    def commit(self, work: Work, outcome: Outcome, limit: int, point: str | None) -> Settled:
        """Commit an outcome; where it fails half-way it must leave nothing, and is committed then."""
        if point is not None:
            before = self.lab.ledger.dump()
            self.lab.faults.now = FailAt(point, errors.DiskFull(path="a test"))
            try:
                return self.run(work.member.settle(work.batch, outcome, limit=limit))
            except errors.DiskFull:
                assert self.lab.ledger.dump() == before, "a failed outcome left something"
            finally:
                self.lab.faults.now = NoFaults()
        return self.run(work.member.settle(work.batch, outcome, limit=limit))

    def outcome(self, work: Work, endings: list[str]) -> tuple[Outcome, list[Row]]:
        """Return what each row comes to; one behind an unfinished one of its key waits or stays in hand."""
        member, batch = work.member, work.batch
        done: list[Row] = []
        left: list[Row] = []
        outcome = Outcome()
        held_up: dict[str | None, str] = {}
        for row, drawn in zip(work.rows, cycle(endings), strict=False):
            key = member.key(row)
            ending = held_up.get(key) or self.forced(work, row, key) or drawn
            if key is not None and ending not in ("done", "dead"):
                held_up[key] = "left" if ending == "left" else "blocked"
            if ending == "done":
                done.append(row)
            elif ending == "left":
                left.append(row)
            elif ending == "dead":
                outcome.dead.append(member.dies(batch, row))
            else:
                after_ms = 3_000 if ending == "retry" else 0
                outcome.waiting.append(member.waits(batch, row, state=STATES[ending], after_ms=after_ms))
        made = self.run(member.made(batch, done))
        outcome.done, outcome.emitted, outcome.causes = made.done, made.emitted, made.causes
        return outcome, left

    def forced(self, work: Work, row: Row, key: str | None) -> str:
        """Return the only thing a row may come to because of others of its key, or an empty text."""
        if row[0] in work.blocked:
            return "blocked"
        for other in self.works:
            if other is not work and other.member is work.member and key is not None:
                earlier = [one for one in other.rows if one[0] < row[0] and one[0] not in other.blocked]
                if any(work.member.key(one) == key for one in earlier):
                    return "left"
        return ""

    def block(self, work: Work, outcome: Outcome) -> None:
        """Mark what the worker has in hand behind an event that waits now."""
        key_of = work.member.key
        waiting = [(one.row[0], key) for one in outcome.waiting if (key := key_of(one.row)) is not None]
        for other in self.works:
            if other is not work and other.member is work.member:
                for row in other.rows:
                    if any(row[0] > at and key_of(row) == key for at, key in waiting):
                        other.blocked.add(row[0])

    def note(self, work: Work, outcome: Outcome, stale: frozenset[int]) -> None:
        """Enter final outcomes into the books: each offset once, and of a key in order."""
        keys = self.keys()
        ended = [(row, "done") for row in outcome.done] + [(one.row, "dead") for one in outcome.dead]
        for (offset, *_), ending in sorted(ended):
            if offset in stale:
                continue
            assert offset not in self.final, "finished twice"
            self.final[offset] = ending, work.batch.version.name
            if keys[offset] is not None and offset not in self.redriven:
                earlier = {seq for seq, key in keys.items() if key == keys[offset] and seq < offset}
                late = earlier - self.final.keys() - self.redriven
                assert not late, "finished before an earlier one of its key"

    # --- what must hold after every step ------------------------------------------------------

    def check(self) -> None:
        """Compare the journal with its own rules and with these books."""
        ledger = self.lab.ledger
        assert ledger.breaches() == []
        self.check_owners()
        keys, there = self.keys(), set(ledger.offsets(self.topic))
        assert keys.keys() - there <= self.final.keys(), "something is gone that nobody has finished"
        undecided = {ledger.offset_of(letter) for letter in ledger.letters()}
        assert undecided <= there, "a dead letter has nothing to be redriven"
        self.present = there
        if not self.members:
            return
        sub = self.members[0].sub
        counts, endings = ledger.counts(sub), [ending for ending, _ in self.final.values()]
        ended = {ending: endings.count(ending) for ending in ("done", "dead", "expired")}
        assert {ending: counts[ending] for ending in ended} == ended
        for seq, (ending, version) in self.final.items():
            if ending != "expired":
                by = ledger.version_of(sub, self.known[seq][2], seq)
                assert by == version, f"{seq} was finished by {by}, not by {version}"
        done = sorted(self.known[seq][1] for seq, (ending, _) in self.final.items() if ending == "done")
        assert sorted(parent for parent, _, _ in ledger.children().elements()) == done, "children of the done"

    def check_owners(self) -> None:
        """Of the workers that believe to hold a partition at most one is right, and the journal names it."""
        for place, at in self.lab.ledger.positions(self.members[0].sub).items() if self.members else ():
            right: list[int] = []
            for member in self.members:
                held = vars(member.consumer)["_parts"].get(place)
                if held is not None and held.epoch == at.epoch:
                    right.append(member.worker.id)
            assert right in ([], [at.owner])
