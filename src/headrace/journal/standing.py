"""Where one event stands with each handler of its topic: what it waits for, or how it ended."""

from __future__ import annotations

import json
from typing import Any, NamedTuple
from uuid import UUID

from headrace.journal.letters import letter
from headrace.journal.progress import version
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.scan import OPEN_MAX
from headrace.ports import Clock, OpenState
from headrace.ports.look import Letter, Owner, Standing, State, StoredEvent, moment


class _At(NamedTuple):
    """A subscription, and how far it is in the partition of the event."""

    sub: int
    tp: int
    start: int
    high: int
    claimed_after: int
    #: Is the payload of the event gone?
    gone: bool


def standings(reader: Reader, event: StoredEvent, clock: Clock) -> list[Standing]:
    """Return where an event stands, one entry per handler of its topic, all at one moment."""
    queries: Any = load("progress.sql")
    boot, now = clock.boot_id(), clock.boot_ns()
    with reader.snapshot():
        tp, gone, removed_us = reader.rows(queries.place_of, (event.envelope.offset,))[0]
        ((workers,),) = reader.rows(queries.workers, (boot, now))
        serving = dict(reader.rows(queries.members, (boot, now)))
        found: list[Standing] = []
        rows = reader.rows(queries.positions_at, (tp, event.envelope.offset))
        for sub, handler, active, start, high, claimed_after, owner, held_open, replay, begun_us in rows:
            if gone and replay and removed_us < begun_us:
                continue  # what was allotted is a stretch of offsets: this one was empty by then
            base = Standing(
                handler=handler,
                state=State.DONE,
                active=version(reader, active),
                owner=None if owner is None else _owner(reader, owner, boot, now),
                serving=serving.get(sub, 0),
                workers=workers,
                paused=held_open >= OPEN_MAX,
                replay=replay,
            )
            at = _At(sub, tp, start, high, claimed_after, gone=bool(gone))
            found.append(_placed(reader, event, base, at))
    return found


def _owner(reader: Reader, number: int, boot: str, now: int) -> Owner | None:
    rows = reader.rows(load("progress.sql").worker, (number,))
    return Owner(rows[0][0], 1, rows[0][1] == boot and rows[0][2] > now) if rows else None


def _placed(reader: Reader, event: StoredEvent, base: Standing, at: _At) -> Standing:
    queries: Any = load("progress.sql")
    seq = event.envelope.offset
    if seq <= at.start:
        return base._replace(state=State.SKIPPED)
    told = _letter(reader, at.sub, seq)
    ahead = seq > at.high
    if (told is not None and told.fate == State.EXPIRED) or (ahead and at.gone):
        return base._replace(state=State.EXPIRED, letter=told)
    if ahead:
        before = reader.rows(queries.before, (at.tp, at.high, seq, at.sub if base.replay else None))[0][0]
        return base._replace(state=State.WAITING, ahead=before)
    opened = reader.rows(queries.open_at, (at.sub, at.tp, seq))
    if opened:
        return _opened(reader, event, base, (at.sub, at.tp), opened[0])
    by = version(reader, reader.rows(queries.version_at, (at.sub, at.tp, seq))[0][0])
    if seq > at.claimed_after:
        return base._replace(state=State.RUNNING, version=by, attempts=1)
    return base._replace(state=State.DONE if told is None else State.DEAD, version=by, letter=told)


def _letter(reader: Reader, sub: int, seq: int) -> Letter | None:
    number = reader.rows(load("letters.sql").number_at, (sub, seq))
    return letter(reader, number[0][0]) if number else None


def _opened(
    reader: Reader, event: StoredEvent, base: Standing, at: tuple[int, int], row: tuple[Any, ...]
) -> Standing:
    state, attempts, crashes, generation, due_us, told = row
    first = None if state == OpenState.RUNNING else _first_of_key(reader, event, at)
    return base._replace(
        state=State(state),
        attempts=attempts,
        crashes=crashes,
        generation=generation,
        due=moment(due_us) if due_us else None,
        errors=tuple(json.loads(told)),
        blocked_by=first,
    )


def _first_of_key(reader: Reader, event: StoredEvent, at: tuple[int, int]) -> UUID | None:
    """Return the open event of the same key that has to end before this one."""
    if event.envelope.key is None:
        return None
    rows = reader.rows(load("progress.sql").open_below, (*at, event.envelope.offset))
    below = (reader.event(row).envelope for row in rows)
    # An event far back in the line waits for the one before it, which tells of the next.
    return next((one.event_id for one in below if one.key == event.envelope.key), None)
