"""The outcome transaction: what follows from handled events is written together or not at all."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from headrace.codec.head import decode_head
from headrace.journal.connection import Connection
from headrace.journal.held import Held, Open
from headrace.journal.notify import Tell
from headrace.ports import (
    FIRST_ATTEMPT,
    Attempt,
    Batch,
    DeadLetter,
    OpenState,
    Outcome,
    Row,
    VersionInfo,
    Waiting,
)


@dataclass(slots=True)
class Token:
    """What the journal notes on a batch."""

    #: Fencing epoch of each partition when the batch was claimed.
    epochs: dict[int, int]
    #: True until the first outcome of a newly claimed range.
    fresh: bool


@dataclass(slots=True)
class _Part:
    """What an outcome says of one partition."""

    done: list[Row] = field(default_factory=list[Row])
    waiting: list[Waiting] = field(default_factory=list[Waiting])
    dead: list[DeadLetter] = field(default_factory=list[DeadLetter])

    def named(self) -> int:
        return len(self.done) + len(self.waiting) + len(self.dead)


def key_of(head: Any) -> str | None:
    """Return the key in a stored envelope; one that cannot be read has none (and will be a dead letter)."""
    try:
        return decode_head(head).key
    except ValueError:  # msgspec's errors are ValueErrors
        return None


def topics_of(parts: Sequence[tuple[Batch, Outcome]]) -> Tell:
    """Return which topics get events; whoever waits has to know of all else than plainly handled events."""
    if all(not (batch.alone or outcome.waiting or outcome.dead) for batch, outcome in parts):
        return {row[0] >> 10 for _, outcome in parts for row in outcome.emitted}
    return True


def without(outcome: Outcome, causes: Collection[int]) -> Outcome:
    """Return the outcome less all that belongs to the given offsets."""
    kept = [
        (row, cause)
        for row, cause in zip(outcome.emitted, outcome.causes, strict=True)
        if cause not in causes
    ]
    return Outcome(
        emitted=[row for row, _ in kept],
        causes=[cause for _, cause in kept],
        done=[row for row in outcome.done if row[0] not in causes],
        waiting=[one for one in outcome.waiting if one.row[0] not in causes],
        dead=[one for one in outcome.dead if one.row[0] not in causes],
    )


def conflicts(db: Connection, outcome: Outcome) -> dict[int, bytes]:
    """Return the causes of emitted events whose ids are taken, each with such an id."""
    found: dict[int, bytes] = {}
    for row, cause in zip(outcome.emitted, outcome.causes, strict=True):
        if db.row(db.queries.event_copy, (row[1], row[0] >> 10)) is not None:
            found[cause] = row[1]
    return found


def write_outcome(
    db: Connection, sub: int, worker: int, parts: dict[int, Held], batch: Batch, outcome: Outcome
) -> frozenset[int]:
    """Inside a transaction: write an outcome; return the offsets whose partition has a new owner."""
    db.faults.at("settle.begin")
    token: Token = batch.token
    named = outcome.offsets()
    # Better to stop here than to count one event twice and forget another.
    assert len(named) == len(outcome), "an outcome names an event once"
    by_tp = _by_partition(token, outcome)
    stale = {
        tp for tp, part in by_tp.items() if not _settle_position(db, sub, worker, parts, token, tp, part)
    }
    db.faults.at("settle.positions")
    offsets = frozenset(row[0] for row in batch.rows if row[1] in stale) if stale else frozenset[int]()
    emitted = (without(outcome, offsets) if stale else outcome).emitted
    db.many(db.queries.event_add, emitted)
    db.faults.at("settle.events")
    if token.fresh:
        _open_stragglers(db, sub, parts, batch, named, stale)
    for tp, part in by_tp.items():
        if tp not in stale:
            _write_part(db, sub, parts[tp], batch.version, token, part)
    db.faults.at("settle.dead")
    return offsets


def _by_partition(token: Token, outcome: Outcome) -> dict[int, _Part]:
    # A first outcome ends the claimed range of every partition of the batch, named or not.
    found = {tp: _Part() for tp in token.epochs} if token.fresh else {}
    for row in outcome.done:
        tp = row[1]
        part = found.get(tp)
        if part is None:
            part = found[tp] = _Part()
        part.done.append(row)
    for waiting in outcome.waiting:
        found.setdefault(waiting.row[1], _Part()).waiting.append(waiting)
    for dead in outcome.dead:
        found.setdefault(dead.row[1], _Part()).dead.append(dead)
    return found


def _settle_position(
    db: Connection, sub: int, worker: int, parts: dict[int, Held], token: Token, tp: int, part: _Part
) -> bool:
    """Close what is named, if the partition is still held under the epoch of the claim."""
    held, epoch = parts.get(tp), token.epochs[tp]
    if held is None or held.epoch != epoch:
        return False
    sql = db.queries.settle_range if token.fresh else db.queries.settle_open
    bindings = (part.named(), len(part.done), len(part.dead), sub, tp, worker, epoch)
    if db.row(sql, bindings) is None:
        parts.pop(tp)
        return False
    held = parts[tp] = held.copy()
    if token.fresh:
        held.unsettled = 0
    return True


def _open_stragglers(
    db: Connection, sub: int, parts: dict[int, Held], batch: Batch, named: set[int], stale: set[int]
) -> None:
    """Rows of a new range that run on: from now on each has a row of its own that survives a crash."""
    if len(named) == len(batch.rows):
        return
    for row in batch.rows:
        if row[0] not in named and row[1] not in stale:
            entry = Open(row[0], OpenState.RUNNING, FIRST_ATTEMPT, 0, key_of(row[5]))
            put_open(db, sub, parts[row[1]], entry)


def _write_part(
    db: Connection, sub: int, held: Held, version: VersionInfo, token: Token, part: _Part
) -> None:
    for one in part.waiting:
        due_ns = db.clock.boot_ns() + int(one.after_ms * 1e6) if one.after_ms else 0
        put_open(db, sub, held, Open(one.row[0], one.state, one.attempt, due_ns, key_of(one.row[5])))
    db.faults.at("settle.open")
    if not token.fresh:
        for row in part.done:
            close(db, sub, held, row[0], version)
        for letter in part.dead:
            close(db, sub, held, letter.row[0], version)
    for letter in part.dead:
        add_dead(db, sub, version, letter)


def close(db: Connection, sub: int, held: Held, seq: int, version: VersionInfo) -> None:
    """Close an open offset; where another version than the range's has finished it, say which."""
    db.ex(db.queries.open_close, (sub, held.tp, seq))
    held.close(seq)
    found = db.row(db.queries.range_version, (sub, held.tp, seq))
    if found is None or found[0] != version.id:
        db.ex(db.queries.exception_put, (sub, held.tp, seq, version.id))
    else:  # a redrive may come back to the range's version
        db.ex(db.queries.exception_drop, (sub, held.tp, seq))


def put_open(db: Connection, sub: int, held: Held, entry: Open) -> None:
    """Keep an offset open, in the journal and in mind."""
    wait_us, now_us = max(0, entry.due_ns - db.clock.boot_ns()) // 1000, db.clock.wall_us()
    attempt: Attempt = entry.attempt
    tried = (attempt.number, attempt.crashes, attempt.generation)
    bindings = (*tried, now_us + wait_us, now_us, json.dumps(attempt.errors))
    db.ex(db.queries.open_put, (sub, held.tp, entry.seq, entry.state.value, *bindings))
    held.add(entry)


def add_dead(db: Connection, sub: int, version: VersionInfo, dead: DeadLetter) -> None:
    """Put a dead letter into the journal."""
    seq, tp, event_id, _, _, head, body = dead.row
    attempt = dead.attempt
    why = (dead.reason, dead.code, dead.error, dead.traceback)
    tried = (attempt.number, attempt.crashes, json.dumps(attempt.errors))
    event = (event_id, dead.type, dead.trace, head, body)
    where = (sub, tp, seq, attempt.generation, version.id)
    db.ex(db.queries.dead_add, (*where, *why, *tried, *event, db.clock.wall_us()))
