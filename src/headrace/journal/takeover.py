"""How a worker becomes the owner of a partition, and learns what is open in it."""

from __future__ import annotations

import json
from collections.abc import Sequence

from headrace.journal.connection import Connection
from headrace.journal.held import Held, Open
from headrace.journal.settle import key_of
from headrace.ports import Attempt, OpenState, Subscription


def take_over(db: Connection, sub: int, worker: int, tp: int) -> Held | None:
    """Inside a transaction: become the owner; what a dead owner had in hand becomes a suspect.

    Returns ``None`` when somebody else was quicker.
    """
    boot, now = db.clock.boot_id(), db.clock.boot_ns()
    found = db.row(db.queries.position_take, (worker, sub, tp, boot, now))
    if found is None:
        return None
    epoch, high, claimed_after, version = found
    if claimed_after < high:
        db.ex(db.queries.open_recover_range, (sub, tp, claimed_after, high))
    db.ex(db.queries.open_recover_running, (sub, tp))
    db.ex(db.queries.position_recover, (sub, tp))
    db.faults.at("balance.taken")
    held = Held(tp, epoch, high, version, high)
    for entry in load_open(db, sub, tp):
        held.add(entry)
    return held


def load_open(db: Connection, sub: int, tp: int) -> list[Open]:
    """Return the open offsets of a partition, as the journal has them."""
    now_us, now_ns = db.clock.wall_us(), db.clock.boot_ns()
    found: list[Open] = []
    for seq, state, attempts, crashes, generation, due_us, noted_us, told, head in db.rows(
        db.queries.open_load, (sub, tp)
    ):
        # Where the wall clock was set back the wait starts anew: it is never longer than it was meant.
        wait_us = max(0, due_us - max(now_us, noted_us))
        due_ns = now_ns + wait_us * 1000
        attempt = Attempt(attempts, crashes, generation, tuple(json.loads(told)))
        found.append(Open(seq, OpenState(state), attempt, due_ns, key_of(head)))
    return found


def fair_share(db: Connection, subscription: Subscription) -> int:
    """Return ceil(partitions / live workers)."""
    bindings = (subscription.id, db.clock.boot_id(), db.clock.boot_ns())
    alive: int = db.row(db.queries.members_alive, bindings)[0]
    return -(-subscription.topic.partitions // max(1, alive))


def give_back(db: Connection, sub: int, worker: int, parts: Sequence[Held]) -> list[int]:
    """Inside a transaction: hand partitions back; return those of which nothing runs."""
    bindings = [(sub, held.tp, worker, held.epoch) for held in parts]
    freed = [db.row(db.queries.position_release, one) for one in bindings]
    return [row[0] for row in freed if row is not None]
