"""Publishing into SQLite: group commit, parents, copies and conflicts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import apsw

from headrace import errors
from headrace.codec.head import SUM_MASK, decode_head, encode_head, xxh3_64
from headrace.event.envelope import Head
from headrace.event.lineage import text_of
from headrace.journal.connection import Connection
from headrace.journal.removal import ERASED, content_of
from headrace.ports import NewEvent, Receipt

Unit = Sequence[NewEvent]
#: Units in one transaction: enough to share a flush, few enough to keep the write lock short.  Bytes too: 16
#: MiB take some 40 ms (measured).  The unit that passes the bound is the last one.
GROUP_UNITS_MAX, GROUP_BYTES_MAX = 1_000, 16 << 20
#: What waits; a publisher beyond that waits for a place, so that memory stays bounded.  A unit is let in
#: while the queue is below both, so that a large one does not starve behind small ones.
QUEUE_UNITS_MAX, QUEUE_BYTES_MAX = 10_000, 64 << 20
#: What an event takes beside payload and headers: its record and its envelope, as Python has them (measured).
RECORD_BYTES = 1_024


#: Topic number and event id: what is unique.
_Name = tuple[int, bytes]


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
        self._queue: deque[tuple[Unit, asyncio.Future[list[Receipt]], int]] = deque()
        self._queued_bytes = 0
        self._flusher: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    async def publish(self, unit: Unit) -> list[Receipt]:
        """Return the receipts of a unit once it is durable; a unit is written whole or not at all."""
        while len(self._queue) >= QUEUE_UNITS_MAX or self._queued_bytes >= QUEUE_BYTES_MAX:
            self._room.clear()
            await self._room.wait()
        done: asyncio.Future[list[Receipt]] = asyncio.get_running_loop().create_future()
        size_bytes = _weight_bytes(unit)
        self._queue.append((unit, done, size_bytes))
        self._queued_bytes += size_bytes
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
                await self._commit(self._next_group())
        finally:
            self._flusher = None

    def _next_group(self) -> list[tuple[Unit, asyncio.Future[list[Receipt]]]]:
        """Take from the queue what shares the next transaction; who gave up meanwhile is left out."""
        group: list[tuple[Unit, asyncio.Future[list[Receipt]]]] = []
        taken_bytes = 0
        while self._queue and len(group) < GROUP_UNITS_MAX and taken_bytes < GROUP_BYTES_MAX:
            unit, done, size_bytes = self._queue.popleft()
            taken_bytes += size_bytes
            if not done.done():
                group.append((unit, done))
        self._queued_bytes -= taken_bytes
        self._room.set()
        return group

    async def _commit(self, group: list[tuple[Unit, asyncio.Future[list[Receipt]]]]) -> None:
        units = [unit for unit, _ in group]

        def alone(_: object) -> bool:
            return len(group) == 1 and not self._queue

        topics = {event.place >> 10 for unit in units for event in unit}
        results: Sequence[list[Receipt] | BaseException]
        try:
            try:
                results = await self._db.write(lambda: self._write_plain(units), tell=topics, quiet=alone)
            except (_NotPlain, apsw.ConstraintError):
                results = await self._db.write(
                    lambda: [self._write_careful(unit) for unit in units], tell=topics, quiet=alone
                )
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
        """Write one unit event by event; a unit that fails leaves no trace in the group, nor in others."""
        ex, queries = self._db.ex, self._db.queries
        ex(queries.savepoint)
        try:
            known: dict[bytes, _Cause] = {}
            receipts: dict[_Name, Receipt] = {}
            for event in _causes_first(unit):
                receipt = self._write_one(event, known)
                # A second copy in the unit must not hide that the first was new.
                receipts.setdefault(_name(event), receipt)
        except apsw.Error:
            raise
        except Exception as fault:  # noqa: BLE001 - whatever it is, it is this publisher's alone
            ex(queries.savepoint_undo)
            ex(queries.savepoint_end)
            return fault
        ex(queries.savepoint_end)
        self._db.faults.at("publish.inserted")
        return _in_order(unit, receipts)

    def _write_one(self, event: NewEvent, known: dict[bytes, _Cause]) -> Receipt:
        causes = [self._cause(event, parent, known) for parent in event.head.parents]
        copy = self._db.row(self._db.queries.event_copy, (event.event_id, event.place >> 10))
        if copy is not None:
            self._check_same(event, copy)
            seq, chain, depth, head = copy[0], copy[4], copy[5], copy[2]
            root = decode_head(head).root or event.event_id
            known.setdefault(event.event_id, _Cause(seq, chain or seq, depth, root))
            return Receipt(event.event_id, duplicate=True)
        chain, depth = 0, 0
        if causes:
            chain, event.head.root = causes[0].chain, causes[0].root
            depth = 1 + max(cause.depth for cause in causes)
        row = event_row(event.place, event.event_id, chain, depth, event.head, event.body)
        self._db.many(self._db.queries.event_add, [row])
        seq = self._db.row(self._db.queries.last_rowid)[0]
        # Of one id in two topics the first is the cause, as in the journal.
        known.setdefault(event.event_id, _Cause(seq, chain or seq, depth, event.head.root or event.event_id))
        return Receipt(event.event_id, duplicate=False)

    def _cause(self, event: NewEvent, parent: bytes, known: dict[bytes, _Cause]) -> _Cause:
        inside = known.get(parent)
        if inside is not None:
            return inside
        found = self._db.row(self._db.queries.event_cause, (parent,))
        if found is None:
            raise errors.ParentMissing(event_id=text_of(event.event_id), parent_id=text_of(parent))
        seq, chain, depth, head = found
        return _Cause(seq, chain or seq, depth, decode_head(head).root or parent)

    def _check_same(self, event: NewEvent, copy: tuple[Any, ...]) -> None:
        """Same id must mean same type, key and payload; time, trace and headers do not count."""
        stored, why = decode_head(copy[2]), copy[6]
        if why == ERASED:  # whatever a publisher repeats, it does not bring a person back
            return
        if why:
            same = copy[3] == content_of(event.head.key, event.body)
        else:
            same = copy[3] == event.body and stored.key == event.head.key
        if not same or self._type_of(stored.stamp) != self._type_of(event.head.stamp):
            raise errors.EventConflict(event_id=text_of(event.event_id), topic=event.topic)


class _NotPlain(Exception):
    """An event of the group needs a look-up first."""


def _weight_bytes(unit: Unit) -> int:
    """Return what a unit takes while it waits.  Hot path: one event, as a rule."""
    weight = RECORD_BYTES * len(unit)
    for event in unit:
        weight += event.size_bytes
    return weight


def event_row(
    place: int, event_id: bytes, chain: int, depth: int, head: Head, body: bytes
) -> tuple[Any, ...]:
    """Return an event as the query ``event_add`` wants it.  Hot path: nothing is looked up twice."""
    packed = encode_head(head)
    summed = xxh3_64(event_id + packed + body) & SUM_MASK  # as `checksum`, spelled out
    return (place, event_id, chain, depth, packed, body, summed)


def _name(event: NewEvent) -> _Name:
    """Return what must be unique: topic and id."""
    return event.place >> 10, event.event_id


def _in_order(unit: Unit, receipts: dict[_Name, Receipt]) -> list[Receipt]:
    """Return the receipts in the order of the unit; a second copy of an event is a duplicate of the first."""
    found: list[Receipt] = []
    told: set[_Name] = set()
    for event in unit:
        name = _name(event)
        found.append(receipts[name]._replace(duplicate=True) if name in told else receipts[name])
        told.add(name)
    return found


def _causes_first(unit: Unit) -> list[NewEvent]:
    """Return the events with parents before children, and otherwise in the order they were given.

    Raises `ParentCycle`.
    """
    if not any(event.head.parents for event in unit):
        return list(unit)
    by_id: dict[bytes, list[NewEvent]] = {}
    for event in unit:
        by_id.setdefault(event.event_id, []).append(event)
    ordered: dict[int, NewEvent] = {}
    for event in unit:
        _visit(event, by_id, ordered, {})
    return list(ordered.values())


def _visit(
    event: NewEvent,
    by_id: dict[bytes, list[NewEvent]],
    ordered: dict[int, NewEvent],
    path: dict[int, NewEvent],
) -> None:
    """Append an event behind its parents, depth first without recursion on the stack of Python."""
    stack = [(event, iter(_parents(event, by_id)))]
    path[id(event)] = event
    while stack:
        current, parents = stack[-1]
        parent = next((one for one in parents if id(one) not in ordered), None)
        if parent is None:
            ordered.setdefault(id(current), current)
            path.pop(id(current), None)
            stack.pop()
        elif id(parent) in path:
            names = [text_of(one.event_id) for one in path.values()]
            raise errors.ParentCycle(cycle=" -> ".join([*names, text_of(parent.event_id)]))
        else:
            path[id(parent)] = parent
            stack.append((parent, iter(_parents(parent, by_id))))


def _parents(event: NewEvent, by_id: dict[bytes, list[NewEvent]]) -> list[NewEvent]:
    return [one for parent in event.head.parents for one in by_id.get(parent, ())]
