"""Keeps topics within their retention: old payloads go in short steps, skeletons after the dedup window."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from headrace.codec.head import decode_head
from headrace.journal.connection import Connection, Disk
from headrace.journal.queries import load
from headrace.journal.removal import RETENTION, Doomed, doomed, remove
from headrace.ports import Keep, TopicInfo

#: How often a topic is looked at, by whichever worker comes first.
SWEEP_EVERY_US = 5_000_000
#: Events of one transaction, and their bytes: it holds the write lock for some milliseconds.
STEP_ROWS_MAX, STEP_BYTES_MAX = 250, 4 << 20
#: Events that one step looks at: those that are held are passed over.
LOOK_ROWS_MAX = 1_000
#: Looks of one round that find only what is held: a long backlog is not read again and again.
VAIN_LOOKS_MAX = 20
#: Events that one step counts the bytes of: a millisecond or two.
COUNT_ROWS_MAX = 2_000


@dataclass(slots=True)
class _Round:
    """One look through a topic, over several steps."""

    topic: int
    rule: Keep
    #: The offset looked at last.
    after: int
    #: Looks that have found nothing to remove.
    vain: int = 0


class SqliteSweeper:
    """Removes what the topics of an app need not keep; several workers may do it side by side."""

    def __init__(
        self,
        db: Connection,
        topic: Callable[[str], Awaitable[TopicInfo]],
        app: str,
        rules: Sequence[Keep],
        window_us: int,
    ) -> None:
        self._db, self._topic, self._app = db, topic, app
        self._rules, self._window_us = rules, window_us
        self._queries: Any = load("retention.sql")
        self._held_sql: str = load("removal.sql").held
        self._event_sql: str = load("removal.sql").event
        self._began_us = 0
        #: The rules with the numbers of their topics, once they are declared.
        self._declared: list[tuple[int, Keep]] | None = None
        self._todo: list[_Round] = []
        #: Where a round over a topic was broken off: the next one goes on there.
        self._broken_off: dict[int, int] = {}

    async def step(self) -> bool:
        """Do one short piece of work; returns whether there is more to do at once."""
        now = self._db.clock.wall_us()
        if self._declared is None:
            self._declared = await self._declare()
        if not self._todo and abs(now - self._began_us) >= SWEEP_EVERY_US:
            self._began_us = now
            await self._begin(self._declared, now)
        if not self._todo:
            return await self._forget(now)
        await self._sweep(now)
        return True

    async def _declare(self) -> list[tuple[int, Keep]]:
        """Note what this app says, for `headrace status` to tell; what it no longer says is forgotten."""
        numbers = [((await self._topic(rule.topic)).id, rule) for rule in self._rules]
        known = {name: (age, size) for name, age, size in self._db.rows(self._queries.declared, (self._app,))}
        wanted = {rule.topic: (rule.age_us, rule.bytes_max) for rule in self._rules}
        if known != wanted:
            gone = known.keys() - wanted.keys()
            await self._db.write(lambda: self._write_rules(numbers, gone), tell=False)
        return numbers

    def _write_rules(self, numbers: list[tuple[int, Keep]], withdrawn: set[str]) -> None:
        for name in withdrawn:
            self._db.ex(self._queries.withdraw, (self._app, name))
        for topic, rule in numbers:
            self._db.ex(self._queries.declare, (topic, self._app, rule.age_us, rule.bytes_max))

    async def _begin(self, rules: list[tuple[int, Keep]], now: int) -> None:
        """Begin a round with the topics that nobody else has looked at lately."""
        for topic, rule in rules:
            bindings = (topic, now - SWEEP_EVERY_US, now)
            if self._db.row(self._queries.due, bindings) is not None:
                begin = partial(self._db.row, self._queries.begin_sweep, bindings)
                if await self._db.write(begin, **_UNTOLD) is not None:
                    self._todo.append(_Round(topic, rule, self._broken_off.pop(topic, 0)))

    async def _sweep(self, now: int) -> None:
        """Do a piece of the first topic that is still to be swept."""
        one = self._todo[0]
        if one.rule.bytes_max is not None and await self._db.write(
            partial(self._count, one.topic), **_UNTOLD
        ):
            return
        found, upto = self._find(one, now)
        if found:
            await self._db.write(partial(self._remove, one.topic, found), **_UNTOLD)
            self._db.faults.at("remove.committed")
        else:
            one.vain += 1
        if upto is None or one.vain >= VAIN_LOOKS_MAX:
            self._todo.pop(0)
            self._broken_off[one.topic] = upto or 0
        else:
            one.after = upto

    def _count(self, topic: int) -> bool:
        """Inside a transaction: add a page of new events to the size of a topic, if there is any.

        Outside, an event of the page might be removed before its size is added, and would count for ever.
        """
        found = self._db.row(self._queries.size, (topic,))
        if found is None:  # the app that declared it last has withdrawn it
            return False
        size, last = self._db.row(self._queries.uncounted, (topic, found[0], COUNT_ROWS_MAX))
        if last is None:
            return False
        self._db.ex(self._queries.count, (last, size, topic))
        return True

    def _find(self, one: _Round, now: int) -> tuple[list[Doomed], int | None]:
        """Return events to be removed, and where to go on; ``None`` when all others may stay.

        Events never change, so what is read here, without the write lock, stays true.
        """
        topic, rule = one.topic, one.rule
        rows = self._db.rows(self._queries.oldest, (topic, one.after, LOOK_ROWS_MAX))
        size = self._db.row(self._queries.size, (topic,))
        excess = size[1] - rule.bytes_max if rule.bytes_max is not None and size is not None else 0
        oldest_us = None if rule.age_us is None else now - rule.age_us
        held = {
            seq for (seq,) in self._db.rows(self._held_sql, (topic, json.dumps([row[0] for row in rows])))
        }
        chosen: list[Doomed] = []
        room = STEP_BYTES_MAX
        for seq, head, size_bytes in rows:
            if excess <= 0 and not _older(head, oldest_us):
                return chosen, None
            if seq in held:
                continue
            if chosen and (len(chosen) == STEP_ROWS_MAX or size_bytes > room):
                return chosen, chosen[-1].seq
            gone = self._doomed(seq)
            if gone is not None:
                chosen.append(gone)
                excess, room = excess - size_bytes, room - size_bytes
        return chosen, rows[-1][0] if len(rows) == LOOK_ROWS_MAX else None

    def _doomed(self, seq: int) -> Doomed | None:
        row = self._db.row(self._event_sql, (seq,))
        try:
            return None if row is None else doomed(self._db, row, erased=False)
        except ValueError:  # its envelope cannot be read: nothing could be kept of it
            return None

    def _remove(self, topic: int, found: Sequence[Doomed]) -> None:
        """Inside a transaction: remove what is still there, and finished: a redrive may have come between."""
        seqs = json.dumps([one.seq for one in found])
        there = {seq for (seq,) in self._db.rows(load("removal.sql").there, (seqs,))}
        there -= {seq for (seq,) in self._db.rows(self._held_sql, (topic, seqs))}
        remove(self._db, topic, [one for one in found if one.seq in there], RETENTION)

    async def _forget(self, now: int) -> bool:
        """Delete skeletons that have outlived the dedup window."""
        rows = self._db.rows(self._queries.outlived, (now - self._window_us, STEP_ROWS_MAX))
        if not rows:
            return False
        seqs = [seq for (seq,) in rows]

        def work() -> None:
            self._db.ex(self._queries.forget, (json.dumps(seqs),))
            self._db.ex(self._queries.forgotten, (max(seqs),))

        await self._db.write(work, **_UNTOLD)
        self._db.faults.at("forget.committed")
        return True


#: Nobody waits for what is removed, and a power cut may bring it back for a while.
_UNTOLD: Any = {"disk": Disk.LATER, "tell": False}


def _older(packed: bytes, than_us: int | None) -> bool:
    try:
        return than_us is not None and decode_head(packed).time_us < than_us
    except ValueError:
        return False
