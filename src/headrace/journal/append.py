"""Publishing into SQLite: group commit, parents, copies and conflicts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, NamedTuple

import apsw

from headrace import errors
from headrace.codec.head import SUM_MASK, decode_head, encode_head, xxh3_64
from headrace.event.envelope import Head
from headrace.event.lineage import text_of
from headrace.journal.connection import Connection
from headrace.ports import NewEvent, Receipt

Unit = Sequence[NewEvent]
#: Units in one transaction: enough to share a flush, few enough to keep the write lock short.
GROUP_UNITS_MAX = 1_000
#: Units that wait; a publisher beyond that waits for a place, so that memory stays bounded.
QUEUE_UNITS_MAX = 10_000


class _Cause(NamedTuple):
    seq: int
    chain: int
    depth: int
    root: bytes


class Appender:
    """Collects what is published in one tick of the loop and commits it as one group."""

    def __init__(self, db: Connection, type_of: Callable[[int], str]) -> None:
        self._db = db
        self._type_of = type_of
        self._queue: list[tuple[Unit, asyncio.Future[list[Receipt]]]] = []
        self._flusher: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    async def publish(self, unit: Unit) -> list[Receipt]:
        """Return the receipts of a unit once it is durable; a unit is written whole or not at all."""
        while len(self._queue) >= QUEUE_UNITS_MAX:
            self._room.clear()
            await self._room.wait()
        done: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()
        self._queue.append((unit, done))
        if self._flusher is None:
            self._flusher = asyncio.create_task(self._flush())
        return await done

    async def drain(self) -> None:
        """Wait until nothing is queued."""
        while self._flusher is not None:
            await asyncio.shield(self._flusher)

    async def _flush(self) -> None:
        try:
            while self._queue:
                group = [entry for entry in self._queue[:GROUP_UNITS_MAX] if not entry[1].done()]
                del self._queue[:GROUP_UNITS_MAX]
                self._room.set()
                await self._commit(group)
        finally:
            self._flusher = None

    async def _commit(self, group: list[tuple[Unit, asyncio.Future[list[Receipt]]]]) -> None:
        units = [unit for unit, _ in group]
        results: Sequence[list[Receipt] | BaseException]
        try:
            try:
                results = await self._db.write(lambda: self._write_plain(units))
            except (_NotPlain, apsw.ConstraintError):
                results = await self._db.write(lambda: [self._write_careful(unit) for unit in units])
        except BaseException as fault:
            if not isinstance(fault, Exception):
                for _, done in group:
                    done.cancel()
                raise
            results = [fault] * len(units)
        for (_, done), result in zip(group, results, strict=True):
            if done.done():
                continue
            if isinstance(result, BaseException):
                done.set_exception(result)
            else:
                done.set_result(result)

    # Inside the transaction -------------------------------------------------------------------

    def _write_plain(self, units: list[Unit]) -> list[list[Receipt]]:
        """Write events that have no parents and new ids: no look-up, few statements."""
        self._db.faults.at("publish.begin")
        rows: list[tuple[Any, ...]] = []
        for unit in units:
            for event in unit:
                if event.may_exist or event.head.parents:
                    raise _NotPlain
                rows.append(event_row(event.place, event.event_id, 0, 0, event.head, event.body))
        self._db.many(self._db.queries.event_add, rows)
        self._db.faults.at("publish.inserted")
        return [[Receipt(event.event_id, duplicate=False) for event in unit] for unit in units]

    def _write_careful(self, unit: Unit) -> list[Receipt] | BaseException:
        """Write one unit event by event; a unit that is refused leaves no trace in the group."""
        ex, queries = self._db.ex, self._db.queries
        ex(queries.savepoint)
        try:
            known: dict[bytes, _Cause] = {}
            receipts = {event.event_id: self._write_one(event, known) for event in _causes_first(unit)}
        except errors.HeadraceError as fault:
            ex(queries.savepoint_undo)
            ex(queries.savepoint_end)
            return fault
        ex(queries.savepoint_end)
        self._db.faults.at("publish.inserted")
        return [receipts[event.event_id] for event in unit]

    def _write_one(self, event: NewEvent, known: dict[bytes, _Cause]) -> Receipt:
        causes = [self._cause(event, parent, known) for parent in event.head.parents]
        chain, depth = 0, 0
        if causes:
            chain, event.head.root = causes[0].chain, causes[0].root
            depth = 1 + max(cause.depth for cause in causes)
        copy = self._db.row(self._db.queries.event_copy, (event.event_id, event.place >> 10))
        if copy is not None:
            self._check_same(event, copy)
            known[event.event_id] = _Cause(
                copy[0], chain or copy[0], depth, event.head.root or event.event_id
            )
            return Receipt(event.event_id, duplicate=True)
        self._db.many(
            self._db.queries.event_add,
            [event_row(event.place, event.event_id, chain, depth, event.head, event.body)],
        )
        seq = self._db.row(self._db.queries.last_rowid)[0]
        known[event.event_id] = _Cause(seq, chain or seq, depth, event.head.root or event.event_id)
        return Receipt(event.event_id, duplicate=False)

    def _cause(self, event: NewEvent, parent: bytes, known: dict[bytes, _Cause]) -> _Cause:
        if parent in known:
            return known[parent]
        found = self._db.row(self._db.queries.event_cause, (parent,))
        if found is None:
            raise errors.ParentMissing(event_id=text_of(event.event_id), parent_id=text_of(parent))
        seq, chain, depth, head = found
        return _Cause(seq, chain or seq, depth, decode_head(head).root or parent)

    def _check_same(self, event: NewEvent, copy: tuple[int, int, bytes, bytes]) -> None:
        """Same id must mean same type, key and payload; time, trace and headers do not count."""
        _, _, head, body = copy
        stored = decode_head(head)
        same = body == event.body and stored.key == event.head.key
        if not same or self._type_of(stored.stamp) != self._type_of(event.head.stamp):
            raise errors.EventConflict(event_id=text_of(event.event_id), topic=event.topic)


class _NotPlain(Exception):
    """An event of the group needs a look-up first."""


def event_row(
    place: int, event_id: bytes, chain: int, depth: int, head: Head, body: bytes
) -> tuple[Any, ...]:
    """Return an event as the query ``event_add`` wants it.  Hot path: nothing is looked up twice."""
    packed = encode_head(head)
    summed = xxh3_64(event_id + packed + body) & SUM_MASK  # as `checksum`, spelled out
    return (place, event_id, chain, depth, packed, body, summed)


def _causes_first(unit: Unit) -> list[NewEvent]:
    """Return the events in an order in which parents come before children."""
    if len({event.event_id for event in unit}) != len(unit):
        unit = _without_twins(unit)
    if not any(event.head.parents for event in unit):
        return list(unit)
    by_id = {event.event_id: event for event in unit}
    graph = {event.event_id: [p for p in event.head.parents if p in by_id] for event in unit}
    try:
        return [by_id[event_id] for event_id in TopologicalSorter(graph).static_order()]
    except CycleError as fault:
        raise errors.ParentCycle(cycle=" -> ".join(text_of(event_id) for event_id in fault.args[1])) from None


def _without_twins(unit: Unit) -> Unit:
    """Return the unit without second copies of an id; raises `EventConflict` when they differ."""
    first: dict[bytes, NewEvent] = {}
    for event in unit:
        twin = first.setdefault(event.event_id, event)
        if (twin.place, twin.head.key, twin.body) != (event.place, event.head.key, event.body):
            raise errors.EventConflict(event_id=text_of(event.event_id), topic=event.topic)
    return list(first.values())
