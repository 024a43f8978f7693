"""Closes events that no handler will finish: erased ones, and those of a handler that is retired."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace import errors
from headrace.codec.head import decode_head, decode_stamp
from headrace.journal.allotment import points, union, without
from headrace.journal.connection import Connection
from headrace.journal.queries import load
from headrace.journal.removal import EMPTY, bare


class Reason(NamedTuple):
    """Why an event is closed unhandled."""

    word: str
    error: type[errors.HeadraceError]


ERASED = Reason("erased", errors.EventErased)
RETIRED = Reason("retired", errors.HandlerRetired)


class Closing(NamedTuple):
    """An event that is to be closed, as its letter tells of it."""

    seq: int
    generation: int
    attempts: int
    crashes: int
    eid: bytes
    head: bytes
    version: int | None


def fence(db: Connection, sub: int, tp: int) -> None:
    """Inside a transaction: take a partition from its owner; what is in hand waits for its turn again.

    The owner's outcomes are refused as those of a worker that has slept through its lease; whoever takes the
    partition next handles those events anew.
    """
    queries: Any = load("handlers.sql")
    _, high, claimed_after = db.row(queries.position, (sub, tp))
    if claimed_after < high:
        db.ex(queries.return_range, (sub, tp, claimed_after, high))
    db.ex(queries.return_running, (sub, tp))
    db.ex(queries.fence, (sub, tp))


def expire(db: Connection, sub: int, tp: int, reason: Reason, seqs: Sequence[int] | None = None) -> int:
    """Inside a transaction: close the open events of a fenced partition, or some of them; return how many."""
    queries: Any = load("handlers.sql")
    wanted = None if seqs is None else json.dumps(list(seqs))
    found = [Closing._make(row) for row in db.rows(queries.open_events, (sub, tp, wanted))]
    for one in found:
        tell(db, sub, tp, one, reason)
    if found:
        db.ex(queries.open_drop, (sub, tp, json.dumps([one.seq for one in found])))
        db.ex(queries.expired, (len(found), sub, tp))
    return len(found)


def give_up(db: Connection, sub: int, tp: int) -> int:
    """Inside a transaction: close all that a replay was allotted of a partition and has not finished.

    From then on it is allotted to nobody: the version may have it live, redriven, or in another replay.
    """
    queries: Any = load("handlers.sql")
    fence(db, sub, tp)
    opened = [row[0] for row in db.rows(queries.open_events, (sub, tp, None))]
    closed = expire(db, sub, tp, RETIRED)
    left = int(db.row(queries.allotted_left, (sub, tp))[0])
    _, high, _ = db.row(queries.position, (sub, tp))
    given = db.rows(queries.allotted_of, (sub, tp))
    end = max([high, *(upto for _, upto in given)])
    db.ex(queries.replay_end, (left, end, sub, tp))
    db.ex(queries.allotted_drop, (sub, tp))
    kept = without(given, union([*points(opened), (high, end)]))
    for after, upto in [*kept, (end, end)]:  # the last says how far was looked
        db.ex(load("replay.sql").allot, (sub, tp, after, upto))
    return closed + left


def tell(db: Connection, sub: int, tp: int, one: Closing, reason: Reason) -> None:
    """Inside a transaction: leave a letter that says why an event was closed.

    It holds neither payload nor errors of attempts: without a key nobody would find them to be erased.
    """
    fault = reason.error()
    why = (reason.word, fault.code, fault.message)
    tried = (one.attempts, one.crashes)
    where = (sub, tp, one.seq, one.generation, one.version or 0)
    bindings = (*where, *why, *tried, one.eid, *_about(db, one.head), db.clock.wall_us())
    db.ex(load("handlers.sql").letter_add, bindings)


def _about(db: Connection, packed: bytes) -> tuple[str, bytes, bytes]:
    """Return type, trace and envelope of a letter."""
    try:
        head = decode_head(packed)
    except ValueError:
        return "", b"", EMPTY
    stamp = db.row(db.queries.stamp_value, (head.stamp,))
    return "" if stamp is None else decode_stamp(stamp[0]).type, head.trace, bare(head)
