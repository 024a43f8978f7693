"""Where one event stands with each handler of its topic: what it waits for, or how it ended."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from headrace.journal.letters import letter
from headrace.journal.progress import version
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.scan import OPEN_MAX
from headrace.ports import Clock, OpenState
from headrace.ports.look import Owner, Standing, State, StoredEvent, moment


def standings(reader: Reader, event: StoredEvent, clock: Clock) -> list[Standing]:
    """Return where an event stands, one entry per handler of its topic, all at one moment."""
    queries: Any = load("progress.sql")
    boot, now = clock.boot_id(), clock.boot_ns()
    with reader.snapshot():
        tp = reader.rows(queries.place_of, (event.envelope.offset,))[0][0]
        ((workers,),) = reader.rows(queries.workers, (boot, now))
        serving = dict(reader.rows(queries.members, (boot, now)))
        found: list[Standing] = []
        for sub, handler, active, start, high, claimed_after, owner, held_open, replay in reader.rows(
            queries.positions_at, (tp, event.envelope.offset)
        ):
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
            found.append(_placed(reader, event, base, sub, tp, (start, high, claimed_after)))
    return found


def _owner(reader: Reader, number: int, boot: str, now: int) -> Owner | None:
    rows = reader.rows(load("progress.sql").worker, (number,))
    return Owner(rows[0][0], 1, rows[0][1] == boot and rows[0][2] > now) if rows else None


def _placed(
    reader: Reader, event: StoredEvent, base: Standing, sub: int, tp: int, marks: tuple[int, int, int]
) -> Standing:
    queries: Any = load("progress.sql")
    seq = event.envelope.offset
    start, high, claimed_after = marks
    if seq <= start:
        return base._replace(state=State.SKIPPED)
    if seq > high:
        ahead = reader.rows(queries.before, (tp, high, seq, sub if base.replay else None))[0][0]
        return base._replace(state=State.WAITING, ahead=ahead)
    opened = reader.rows(queries.open_at, (sub, tp, seq))
    if opened:
        return _opened(reader, event, base, (sub, tp), opened[0])
    by = version(reader, reader.rows(queries.version_at, (sub, tp, seq))[0][0])
    if seq > claimed_after:
        return base._replace(state=State.RUNNING, version=by, attempts=1)
    number = reader.rows(load("letters.sql").number_at, (sub, seq))
    if not number:
        return base._replace(state=State.DONE, version=by)
    return base._replace(state=State.DEAD, version=by, letter=letter(reader, number[0][0]))


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
