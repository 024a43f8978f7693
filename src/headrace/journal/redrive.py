"""Decisions about dead letters: make the event waiting again, or put the letter away for good."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from headrace import errors
from headrace.journal.connection import Connection
from headrace.journal.held import Held, Open
from headrace.journal.settle import add_dead, close
from headrace.ports import DeadLetter, Row, VersionInfo
from headrace.ports.look import Decided

#: Letters of one transaction: enough to share a flush, few enough to keep the write lock short.
LETTERS_MAX = 200


async def redrive(db: Connection, numbers: Sequence[int]) -> list[Decided]:
    """Make dead events waiting again, each whole or not at all; workers are woken.

    The event gets a new generation and attempts counted anew; the active version of its handler takes it.  A
    letter that may not be redriven is left as it is, with the reason in the result.
    """
    return await _each(db, numbers, _redrive)


async def drop(db: Connection, numbers: Sequence[int]) -> list[Decided]:
    """Put dead letters away: they stay in the journal and in the count of the dead, but not in the list."""
    return await _each(db, numbers, _drop)


def refusals(db: Connection, numbers: Iterable[int], *, drop: bool = False) -> list[Decided]:
    """Return what `redrive` (or `drop`) would say of each letter, without doing it."""
    check = _drop_problem if drop else _problem
    return [Decided(number, check(db, number)) for number in numbers]


async def _each(
    db: Connection, numbers: Sequence[int], decide: Callable[[Connection, int], Decided]
) -> list[Decided]:
    found: list[Decided] = []
    for start in range(0, len(numbers), LETTERS_MAX):
        some = numbers[start : start + LETTERS_MAX]
        found += await db.write(partial(_decide_all, db, some, decide))
    return found


def _decide_all(
    db: Connection, numbers: Sequence[int], decide: Callable[[Connection, int], Decided]
) -> list[Decided]:
    return [decide(db, number) for number in numbers]


def _redrive(db: Connection, number: int) -> Decided:
    """Inside a transaction."""
    problem = _problem(db, number)
    if not problem:
        sub, tp, seq, generation = db.row(db.queries.redrive_letter, (number,))[:4]
        db.ex(db.queries.redrive_open, (sub, tp, seq, generation + 1))
        db.ex(db.queries.redrive_position, (sub, tp))
        db.ex(db.queries.dead_fate, ("redriven", number))
    return Decided(number, problem)


def _drop(db: Connection, number: int) -> Decided:
    """Inside a transaction."""
    problem = _drop_problem(db, number)
    if not problem:
        db.ex(db.queries.dead_fate, ("dropped", number))
    return Decided(number, problem)


def _drop_problem(db: Connection, number: int) -> str:
    """Return why a dead letter may not be dropped, or an empty string."""
    found = db.row(db.queries.redrive_letter, (number,))
    if found is None:
        return "there is no such dead letter"
    return "" if found[4] is None else f"it was {found[4]} before"


def _problem(db: Connection, number: int) -> str:
    """Return why a dead letter may not be redriven, or an empty string."""
    found = db.row(db.queries.redrive_letter, (number,))
    if found is None:
        return "there is no such dead letter"
    sub, tp, seq, generation, fate, handler, version, replayed, again, there, is_open, newest = found
    reasons = (
        (fate is not None, f"it was {fate} before"),
        (not there, "the journal no longer holds its event; publish the payload anew"),
        (is_open or generation != newest, f"its event is open for {handler} already"),
        (version is None, f"{handler} has no active version"),
    )
    elsewhere = ""
    if not replayed and db.row(db.queries.replay_has, (sub, tp, seq, version)) is not None:
        elsewhere = f"the active version of {handler} has its event in a replay, or has finished it there"
    elif replayed and again is None and db.row(db.queries.live_has, (sub, tp, seq, version)) is not None:
        elsewhere = f"its event is open live, or the version of the replay has finished it for {handler} live"
    return next((text for applies, text in reasons if applies), elsewhere)


def less_replayed(
    db: Connection,
    sub: int,
    worker: int,
    parts: dict[int, Held],
    held: Held,
    due: list[Open],
    version: VersionInfo,
) -> list[Open]:
    """Inside a transaction: return what is due without redriven events that the version has in a replay.

    They were redriven under another version, and this one was made active before their turn came: to handle
    them now would be a second time.  They become dead letters again.
    """
    kept: list[Open] = []
    for entry in due:
        replayed = bool(entry.attempt.generation) and db.row(
            db.queries.replay_has, (sub, held.tp, entry.seq, version.id)
        )
        if not replayed:
            kept.append(entry)
        elif not _bury(db, sub, worker, parts, held.tp, entry, version):
            return []  # the partition has a new owner
    return kept


def _bury(
    db: Connection,
    sub: int,
    worker: int,
    parts: dict[int, Held],
    tp: int,
    entry: Open,
    version: VersionInfo,
) -> bool:
    epoch = parts[tp].epoch
    if db.row(db.queries.settle_open, (0, 0, 1, sub, tp, worker, epoch)) is None:
        parts.pop(tp)
        return False
    held = parts[tp] = parts[tp].copy()
    row: Row = db.row(db.queries.claim_row, (entry.seq,))
    fault = errors.EventReplayed(version=version.name, handler=version.handler)
    close(db, sub, held, entry.seq, version)
    add_dead(db, sub, version, DeadLetter(row, "replayed", fault.code, str(fault), "", entry.attempt))
    return True
