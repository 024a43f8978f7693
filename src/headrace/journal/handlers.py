"""Handlers by name: renamed, retired, and back again."""

from __future__ import annotations

import logging
from functools import partial
from typing import Any

from headrace import errors
from headrace.journal.closing import RETIRED, expire, fence, give_up
from headrace.journal.connection import Connection
from headrace.journal.queries import load
from headrace.journal.versions import handler_unknown
from headrace.ports.care import Retired

_log = logging.getLogger("headrace.journal")


def rename(db: Connection, was: str, handler: str) -> None:
    """Inside a transaction: a handler goes on under another name; nothing happens when it did so before.

    The old name stays an alias, so that a worker with the old code continues the same subscription.
    """
    queries: Any = load("handlers.sql")
    old, new = db.row(queries.named, (was,)), db.row(queries.named, (handler,))
    if old is None:
        return
    if new is not None:
        if not db.rows(queries.live, (was,)):
            return  # the old one was retired: there is nothing to continue
        raise errors.RenameRefused(handler=handler, was=was, problem="both have handled events")
    former = db.row(queries.former, (handler,))
    if former is not None and former[0] != old[0]:
        raise errors.RenameRefused(handler=handler, was=was, problem="that was the name of another handler")
    db.ex(queries.rename, (handler, old[0]))
    db.ex(queries.was_add, (was, old[0], db.clock.wall_us()))
    db.faults.at("rename.written")


def born_as(db: Connection, handler: str) -> str:
    """Return the first name of a handler, of which derived ids are made: they do not change with the name."""
    found = db.row(load("handlers.sql").born_as, (handler,))
    return handler if found is None else str(found[0])


def revived(db: Connection, handler: int, topic: int, name: str) -> int | None:
    """Inside a transaction: let a retired handler go on where it was; ``None`` for one that never was."""
    queries: Any = load("handlers.sql")
    found = db.row(queries.retired_sub, (handler, topic))
    if found is None:
        return None
    db.ex(queries.revive, (found[0],))
    _log.warning("%s was retired: it goes on where it was, and what was closed then stays closed", name)
    return int(found[0])


async def retire(db: Connection, wanted: str, *, dry_run: bool, replays_only: bool = False) -> Retired:
    """Close what a handler and its replays have open, and let retention no longer wait for them.

    One transaction for each partition: killed in between, the same call goes on.  With ``replays_only`` the
    handler itself goes on.
    """
    queries: Any = load("handlers.sql")
    name = _one_of(db, wanted)
    subs = [] if replays_only else db.rows(queries.live, (name,))
    replays = [row[0] for row in db.rows(queries.replays_of, (name,))]
    if not (subs or replays):
        problem = "it has no unfinished replay" if replays_only else "it is retired already"
        raise errors.RetireRefused(handler=name, problem=problem, hint="``headrace handler ls`` lists them")
    _check_idle(db, name, [row[0] for row in subs])
    _check_idle(db, f"replay of {name}", replays)
    closed = sum(db.row(queries.open_count, (sub,))[0] for sub, _, _ in subs)
    untaken = sum(db.row(queries.untaken, (sub, topic))[0] for sub, topic, _ in subs)
    left = sum(_left(db, sub) for sub in replays) if dry_run else 0
    if not dry_run:
        closed = 0
        for sub in replays:
            for tp, _, _ in db.rows(queries.positions, (sub,)):
                left += await db.write(partial(_give_up, db, name, sub, tp))
                db.faults.at("retire.partition")
        for sub, _, _ in subs:
            for tp, _, _ in db.rows(queries.positions, (sub,)):
                closed += await db.write(partial(_close, db, name, sub, tp))
                db.faults.at("retire.partition")
            await db.write(partial(_retire, db, name, sub))
            db.faults.at("retire.committed")
    return Retired(name, closed, untaken, len(replays), left)


def _left(db: Connection, sub: int) -> int:
    """Return how many events of what it was allotted a replay has not finished."""
    queries: Any = load("handlers.sql")
    places = [row[0] for row in db.rows(queries.positions, (sub,))]
    opened = db.row(queries.open_count, (sub,))[0]
    return int(opened + sum(db.row(queries.allotted_left, (sub, tp))[0] for tp in places))


def _give_up(db: Connection, name: str, sub: int, tp: int) -> int:
    """Inside a transaction: somebody may have gone on with the replay in between."""
    _check_idle(db, f"replay of {name}", [sub])
    return give_up(db, sub, tp)


def _one_of(db: Connection, wanted: str) -> str:
    history: Any = load("history.sql")
    found = [row[0] for row in db.rows(history.handlers, (wanted,))]
    if not found:
        raise handler_unknown(wanted, [row[0] for row in db.rows(history.handlers, (None,))])
    if len(found) > 1 and wanted not in found:
        raise errors.RetireRefused(handler=wanted, problem=f"it may be {' or '.join(found)}")
    return wanted if wanted in found else found[0]


def _check_idle(db: Connection, name: str, subs: list[int]) -> None:
    boot, now = db.clock.boot_id(), db.clock.boot_ns()
    pids = {row[0] for sub in subs for row in db.rows(load("handlers.sql").serving, (sub, boot, now))}
    if pids:
        told = ", ".join(str(pid) for pid in sorted(pids))
        raise errors.RetireRefused(
            handler=name, problem=f"worker {told} serves it, or died less than a lease ago"
        )


def _close(db: Connection, name: str, sub: int, tp: int) -> int:
    """Inside a transaction: a worker may have come in between."""
    _check_idle(db, name, [sub])
    fence(db, sub, tp)
    return expire(db, sub, tp, RETIRED)


def _retire(db: Connection, name: str, sub: int) -> None:
    """Inside a transaction: what a worker may have opened since its partition was closed is refused."""
    _check_idle(db, name, [sub])
    if db.row(load("handlers.sql").open_count, (sub,))[0]:
        raise errors.RetireRefused(handler=name, problem="a worker has come and gone meanwhile")
    db.ex(load("handlers.sql").retire, (sub,))
