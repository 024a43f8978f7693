"""What a journal has written down, read from outside, and the rules it must keep at every commit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

from headrace.codec.head import decode_head, decode_stamp

Rows = Callable[[str, Sequence[Any]], list[Any]]


class Position(NamedTuple):
    """One partition of a subscription."""

    start: int
    high: int
    claimed_after: int
    owner: int | None
    epoch: int
    taken: int
    running: int
    done: int
    dead: int
    expired: int
    #: Events that were taken and are no longer there.
    gone: int = 0


class Opened(NamedTuple):
    """One open offset."""

    state: str
    attempts: int
    crashes: int
    generation: int
    errors: list[str]


class Ledger(Protocol):
    """Reads a journal from outside; ``sub`` is what `Kind.sub` makes of a subscription."""

    def positions(self, sub: Any) -> dict[int, Position]:
        """Return the positions of a subscription by place."""
        ...

    def counts(self, sub: Any) -> Counter[str]:
        """Return what the events of a subscription have come to, over all partitions."""
        ...

    def opened(self, sub: Any) -> dict[int, Opened]:
        """Return the open offsets of a subscription."""
        ...

    def offsets(self, topic: int) -> list[int]:
        """Return every offset of a topic."""
        ...

    def ids(self, topic: int) -> list[bytes]:
        """Return every event id of a topic, in the order of the offsets."""
        ...

    def places(self, topic: int) -> dict[int, int]:
        """Return the place of every event of a topic by its offset."""
        ...

    def ranges(self, sub: Any, place: int) -> list[tuple[int, str]]:
        """Return (after, name of the version) of each range of a partition."""
        ...

    def exceptions(self, sub: Any) -> dict[int, str]:
        """Return the name of the version of each exception row, by offset."""
        ...

    def version_of(self, sub: Any, place: int, offset: int) -> str | None:
        """Return the name of the version that the ledger says has handled an offset."""
        ...

    def dead(self, sub: Any) -> list[tuple[int, str, bytes]]:
        """Return offset, reason and payload of each dead letter that was not redriven."""
        ...

    def letters(self) -> list[int]:
        """Return the numbers of the dead letters that nobody has decided on."""
        ...

    def offset_of(self, letter: int) -> int:
        """Return the offset that a dead letter is about."""
        ...

    def children(self) -> Counter[tuple[bytes, str, str]]:
        """Return how often each (parent, handler with declared version, model) has an event of its own."""
        ...

    def dump(self) -> dict[str, list[Any]]:
        """Return all there is, leases aside: equal dumps mean that nothing has happened."""
        ...

    def breaches(self) -> list[str]:
        """Return every rule that does not hold, with where."""
        ...


class SqliteLedger:
    """Reads the embedded journal: knows the tables, nothing of the code that fills them."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def positions(self, sub: int) -> dict[int, Position]:
        """Return the positions of a subscription by place."""
        sql = """SELECT tp, start, high, claimed_after, owner, epoch, taken, running, done, dead, expired,
                 gone FROM position WHERE sub = ? ORDER BY tp"""
        return {row[0]: Position(*row[1:]) for row in self._rows(sql, (sub,))}

    def counts(self, sub: int) -> Counter[str]:
        """Return what the events of a subscription have come to, over all partitions."""
        found: Counter[str] = Counter()
        for one in self.positions(sub).values():
            found.update(taken=one.taken, running=one.running, done=one.done, dead=one.dead)
            found.update(expired=one.expired)
        return +found

    def opened(self, sub: int) -> dict[int, Opened]:
        """Return the open offsets of a subscription."""
        sql = "SELECT seq, state, attempts, crashes, generation, errors FROM open WHERE sub = ? ORDER BY seq"
        found = self._rows(sql, (sub,))
        return {row[0]: Opened(row[1], row[2], row[3], row[4], json.loads(row[5])) for row in found}

    def offsets(self, topic: int) -> list[int]:
        """Return every offset of a topic."""
        return [
            row[0] for row in self._rows("SELECT seq FROM event WHERE tp >> 10 = ? ORDER BY seq", (topic,))
        ]

    def ids(self, topic: int) -> list[bytes]:
        """Return every event id of a topic, in commit order."""
        return [
            row[0] for row in self._rows("SELECT eid FROM event WHERE tp >> 10 = ? ORDER BY seq", (topic,))
        ]

    def _names(self) -> dict[int, str]:
        """Return the name of every version, as envelopes have it."""
        sql = """SELECT version.id, version.declared, model.name, coalesce(model.declared, model.epoch),
                 digest FROM version LEFT JOIN model ON model.id = version.model"""
        return {
            row[0]: row[1] if row[2] is None else f"{row[1]}+{row[2]}@{row[3]}:{row[4][:12]}"
            for row in self._rows(sql, ())
        }

    def ranges(self, sub: int, place: int) -> list[tuple[int, str]]:
        """Return (after, name of the version) of each range of a partition."""
        sql, names = "SELECT after, version FROM range WHERE sub = ? AND tp = ? ORDER BY after", self._names()
        return [(after, names[version]) for after, version in self._rows(sql, (sub, place))]

    def exceptions(self, sub: int) -> dict[int, str]:
        """Return the name of the version of each exception row, by offset."""
        sql, names = "SELECT seq, version FROM exception WHERE sub = ?", self._names()
        return {seq: names[version] for seq, version in self._rows(sql, (sub,))}

    def dead(self, sub: int) -> list[tuple[int, str, bytes]]:
        """Return offset, reason and payload of each dead letter that was not redriven."""
        sql = """SELECT seq, reason, body FROM dead WHERE sub = ?
                 AND (fate IS NULL OR fate NOT IN ('redriven', 'expired')) ORDER BY id"""
        return self._rows(sql, (sub,))

    def letters(self) -> list[int]:
        """Return the numbers of the dead letters that nobody has decided on."""
        return [row[0] for row in self._rows("SELECT id FROM dead WHERE fate IS NULL ORDER BY id", ())]

    def offset_of(self, letter: int) -> int:
        """Return the offset that a dead letter is about."""
        return self._rows("SELECT seq FROM dead WHERE id = ?", (letter,))[0][0]

    def sub_of(self, letter: int) -> int:
        """Return the subscription that a dead letter belongs to."""
        return int(self._rows("SELECT sub FROM dead WHERE id = ?", (letter,))[0][0])

    def places(self, topic: int) -> dict[int, int]:
        """Return the place of every event of a topic by its offset."""
        return dict(self._rows("SELECT seq, tp FROM event WHERE tp >> 10 = ?", (topic,)))

    def version_of(self, sub: int, place: int, offset: int) -> str | None:
        """Return the name of the version that the ledger says has handled an offset."""
        found = self.exceptions(sub).get(offset)
        return found or next((v for after, v in reversed(self.ranges(sub, place)) if after < offset), None)

    def children(self) -> Counter[tuple[bytes, str, str]]:
        """Return how often each (parent, handler with declared version, model) has a live event of it."""
        stamps = {n: decode_stamp(value) for n, value in self._rows("SELECT id, value FROM stamp", ())}
        found: Counter[tuple[bytes, str, str]] = Counter()
        for (packed,) in self._rows("SELECT head FROM event ORDER BY seq", ()):
            head = decode_head(packed)
            stamp = stamps[head.stamp]
            if stamp.handler is not None and stamp.side is None:
                found[head.parents[0], stamp.handler, stamp.model or ""] += 1
        return found

    def dump(self) -> dict[str, list[Any]]:
        """Return all tables whole, leases aside: equal dumps mean that nothing has happened."""
        tables = self._rows("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name", ())
        names = [name for (name,) in tables if name not in ("worker", "sqlite_sequence", "meta")]
        return {name: self._rows(f"SELECT * FROM {name}", ()) for name in names}

    def breaches(self) -> list[str]:
        """Return every rule that does not hold, with where."""
        found: list[str] = []
        for (sub,) in self._rows("SELECT id FROM subscription", ()):
            opened = self._rows("SELECT tp, seq, state FROM open WHERE sub = ?", (sub,))
            for place, at in self.positions(sub).items():
                mine = {seq: state for tp, seq, state in opened if tp == place}
                found += [
                    f"subscription {sub}, place {place}: {told}"
                    for told in self._partition(sub, place, at, mine)
                ]
            found += [f"subscription {sub}: {told}" for told in self._versions(sub)]
        return found + self.twice()

    def _partition(self, sub: int, place: int, at: Position, opened: dict[int, str]) -> Iterator[str]:
        given = self._given(sub, place)
        offsets = [row[0] for row in self._rows("SELECT seq FROM event WHERE tp = ?", (place,))]
        offsets = [seq for seq in offsets if given is None or seq in given]
        passed = {seq for seq in offsets if at.start < seq <= at.high}
        running = {seq for seq, state in opened.items() if state == "running"}
        flying = {seq for seq in passed if seq > at.claimed_after} - opened.keys()
        waiting = len(opened) - len(running)
        published, untaken = sum(seq > at.start for seq in offsets), sum(seq > at.high for seq in offsets)
        if at.taken != at.running + waiting + at.done + at.dead + at.expired:
            yield f"taken {at.taken} is not running {at.running} + waiting {waiting} + closed ({at})"
        published += at.gone
        # What is gone of a replay's history is not counted.
        if published > untaken + at.taken or (given is None and published != untaken + at.taken):
            yield f"published {published} is not untaken {untaken} + taken {at.taken}"
        if at.running != len(running) + len(flying):
            yield f"running {at.running}, in hand are {sorted(running | flying)}"
        if (
            min(at.taken, at.running, at.done, at.dead, at.expired) < 0
            or not at.start <= at.claimed_after <= at.high
        ):
            yield f"out of bounds: {at}"
        if not opened.keys() <= passed:
            yield f"open but not taken: {sorted(opened.keys() - passed)}"
        if at.owner is None and at.running:
            yield f"{at.running} run without an owner"
        letters = [
            seq
            for seq, *_ in self._rows(
                "SELECT seq FROM dead WHERE sub = ? AND tp = ?"
                " AND (fate IS NULL OR fate NOT IN ('redriven', 'expired'))",
                (sub, place),
            )
        ]
        left = {row[0] for row in self._rows("SELECT seq FROM skeleton WHERE tp = ?", (place,))}
        closed = passed | left
        if sorted(letters) != sorted(set(letters) & closed - opened.keys()) or len(letters) != at.dead:
            yield f"{at.dead} dead, letters of {letters}, open {sorted(opened)}"
        afters = [after for after, _ in self.ranges(sub, place)]
        if (passed and (not afters or afters[0] >= min(passed))) or any(
            not at.start <= after <= at.high for after in afters
        ):
            yield f"ranges after {afters} do not cover {sorted(passed)} of ({at.start}, {at.high}]"

    def _given(self, sub: int, place: int) -> set[int] | None:
        """Return the offsets that a replay was allotted; ``None`` for a live subscription: all there are."""
        if not self._rows("SELECT 1 FROM replay WHERE sub = ?", (sub,)):
            return None
        found = self._rows("SELECT after, upto FROM allotted WHERE sub = ? AND tp = ?", (sub, place))
        return {seq for after, upto in found for seq in range(after + 1, upto + 1)}

    def finished(self, sub: int) -> dict[int, str]:
        """Return what a subscription has finished without a dead letter: offset, name of the version."""
        opened, dead = self.opened(sub), {seq for seq, *_ in self.dead(sub)}
        found: dict[int, str] = {}
        for place, at in self.positions(sub).items():
            given = self._given(sub, place)
            for (seq,) in self._rows("SELECT seq FROM event WHERE tp = ?", (place,)):
                closed = at.start < seq <= at.claimed_after and seq not in opened and seq not in dead
                if closed and (given is None or seq in given):
                    found[seq] = self.version_of(sub, place, seq) or "?"
        return found

    def twice(self) -> list[str]:
        """Return every event that a version has finished twice, live and in replays that share the ledger."""
        counts: Counter[tuple[int, int, str]] = Counter()
        sql = """SELECT id, handler FROM subscription
                 WHERE id NOT IN (SELECT sub FROM replay WHERE again NOT NULL)"""
        for sub, handler in self._rows(sql, ()):
            counts.update((handler, seq, version) for seq, version in self.finished(sub).items())
        return [f"offset {seq}: {count} times by {by}" for (_, seq, by), count in counts.items() if count > 1]

    def _versions(self, sub: int) -> Iterator[str]:
        opened = self.opened(sub)
        place_of = dict(self._rows("SELECT seq, tp FROM event UNION ALL SELECT seq, tp FROM skeleton", ()))
        handler = self._rows("SELECT handler FROM subscription WHERE id = ?", (sub,))[0][0]
        names = self._names()
        own = {names[row[0]] for row in self._rows("SELECT id FROM version WHERE handler = ?", (handler,))}
        for seq, version in self.exceptions(sub).items():
            place = place_of[seq]
            range_version = next((v for after, v in reversed(self.ranges(sub, place)) if after < seq), None)
            if version == range_version:
                yield f"offset {seq} is in a range of version {version} and an exception to it"
            if version not in own:
                yield f"offset {seq} was finished by version {version} of another handler"
            if seq in opened and not opened[seq].generation:
                yield f"offset {seq} is open and finished by version {version}"
