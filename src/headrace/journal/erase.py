"""Removes what the journal holds of a key, for good: payloads, headers, dead letters, errors of attempts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Any, NamedTuple

from headrace import errors
from headrace.codec.head import decode_head
from headrace.event.contract import Event, contract_of
from headrace.event.envelope import Head, Stamp
from headrace.event.lineage import partition_of_key, uuid7
from headrace.journal import closing
from headrace.journal.connection import Connection
from headrace.journal.queries import load
from headrace.journal.removal import EMPTY, ERASED, Doomed, doomed, owner_of, remove
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import NewEvent, TopicInfo
from headrace.ports.care import Erased

#: Events and dead letters of one look.
PAGE_ROWS_MAX = 1_000
#: Events of one transaction: it holds the write lock for some milliseconds.
STEP_ROWS_MAX = 100
#: Looks for what was published, or emitted, while the others were removed.
ROUNDS_MAX = 10
SALT_BYTES = KEY_HASH_BYTES = 16


class Erasure(Event, topic="headrace.erasures", type="headrace.erasure"):
    """Says that payloads were erased, and how many; of the key only a salted hash.

    ``blake2b(key, key=salt, digest_size=16)`` tells whoever knows the key that it was this one.
    """

    key_hashes: tuple[str, ...]
    salt: str
    events: dict[str, int]
    letters: int
    expired: int


class Live(NamedTuple):
    """A subscription that is not retired, and how far it is in one partition."""

    sub: int
    start: int
    high: int
    claimed_after: int
    active: int | None


class Found(NamedTuple):
    """What belongs to the keys."""

    #: Offsets by place.
    events: dict[int, list[int]]
    #: Offsets of what is left of removed events.
    remains: list[int]
    #: Numbers of dead letters.
    letters: list[int]


class Gone(NamedTuple):
    """What one transaction has removed."""

    #: Events by topic.
    events: Counter[int]
    letters: int
    expired: int


async def erase(
    journal: SqliteJournal, keys: Sequence[str], topic: str | None, *, effects: bool, dry_run: bool
) -> Erased:
    """Remove it in short transactions, and say so with an event; killed in between, the same call goes on."""
    db = journal.connection()
    if dry_run:
        return _foretold(db, keys, topic, effects=effects)
    db.rows(load("care.sql").overwrite)
    events: Counter[int] = Counter()
    letters = expired = left = 0
    for _ in range(ROUNDS_MAX):  # once more for what was published, or emitted, meanwhile
        found = _find(db, keys, _topics(db, topic))
        if not any(found):
            break
        left += 0 if effects else len(_effects(db, found))
        steps = [partial(_remove, db, some, effects=effects) for some in _steps(found)]
        steps += [partial(_strip, db, some) for some in _pages(found.letters)]
        for step in steps:
            gone = await db.write(step)
            db.faults.at("erase.step")
            events, letters, expired = events + gone.events, letters + gone.letters, expired + gone.expired
    names = {one.id: one.name for one in _topics(db, None)}
    told = Erased(
        {names[number]: count for number, count in events.items()}, letters, expired, left, None, ""
    )
    if not (events or letters):
        return told
    event_id = await _journalled(journal, keys, told)
    db.faults.at("erase.told")
    return told._replace(event_id=event_id)


def _foretold(db: Connection, keys: Sequence[str], topic: str | None, *, effects: bool) -> Erased:
    """Return what would be removed now."""
    found = _find(db, keys, _topics(db, topic))
    others = _effects(db, found)
    letters = set(found.letters)
    for tp, seq in others if effects else ():
        found.events.setdefault(tp, []).append(seq)
        letters.update(_letters_of(db, seq))
    names = {one.id: one.name for one in _topics(db, None)}
    events: Counter[str] = Counter()
    for tp, seqs in found.events.items():
        events[names[tp >> 10]] += len(seqs)
    expired = sum(
        len(_unfinished(db, tp, seqs, at)) for tp, seqs in found.events.items() for at in _live(db, tp)
    )
    return Erased(dict(events), len(letters), expired, 0 if effects else len(others), None, "")


def _topics(db: Connection, name: str | None) -> list[TopicInfo]:
    found = [TopicInfo(*row) for row in db.rows(db.queries.topics)]
    wanted = [one for one in found if name in (None, one.name)]
    if name is not None and not wanted:
        known = ", ".join(one.name for one in found) or "none"
        raise errors.CommandInvalid(problem=f"the journal has no topic {name!r}", hint=f"it has {known}")
    return wanted


def _pages(found: Sequence[int]) -> Iterator[list[int]]:
    for start in range(0, len(found), STEP_ROWS_MAX):
        yield list(found[start : start + STEP_ROWS_MAX])


def _steps(found: Found) -> Iterator[list[int]]:
    """Yield offsets, as many as one transaction takes."""
    for seqs in (*found.events.values(), found.remains):
        yield from _pages(seqs)


# --- finding ----------------------------------------------------------------------------------


def _find(db: Connection, keys: Sequence[str], topics: Iterable[TopicInfo]) -> Found:
    """Return what belongs to the keys."""
    queries: Any = load("erase.sql")
    found = Found({}, [], [])
    for topic in topics:
        for key in dict.fromkeys(keys):
            tp = topic.id << 10 | partition_of_key(key, topic.partitions)
            mine = list(_with_key(db, queries.of_place, tp, key))
            if mine:
                found.events.setdefault(tp, []).extend(mine)
            found.remains.extend(row[0] for row in db.rows(queries.remains, (tp, owner_of(db, key))))
            found.letters.extend(_with_key(db, queries.letters_of_place, tp, key))
    return found


def _with_key(db: Connection, sql: str, tp: int, key: str) -> Iterator[int]:
    """Yield the numbers of the rows whose envelope has the key."""
    after = 0
    while rows := db.rows(sql, (tp, after, PAGE_ROWS_MAX)):
        for number, packed in rows:
            try:
                if decode_head(packed).key == key:
                    yield number
            except ValueError:  # nobody can say whose it is
                continue
        after = rows[-1][0]


def _effects(db: Connection, found: Found) -> list[tuple[int, int]]:
    """Return place and offset of all that follows from what was found, is whole, and is not among it."""
    mine = {seq for seqs in (*found.events.values(), found.remains) for seq in seqs}
    return _following(db, mine)


def _following(db: Connection, mine: set[int]) -> list[tuple[int, int]]:
    """Return place and offset of all that follows from events, and is not among them."""
    queries: Any = load("erase.sql")
    causes: dict[int, set[bytes]] = {}
    for seq in mine:
        row = db.row(queries.chain_of, (seq,))
        if row is not None:
            causes.setdefault(row[0], set()).add(row[1])
    found: list[tuple[int, int]] = []
    for chain, known in causes.items():
        for seq, tp, eid, packed, whole, _ in db.rows(queries.chain, (chain,)):
            if known.intersection(decode_head(packed).parents):
                known.add(eid)
                if whole and seq not in mine:
                    found.append((tp, seq))
    return found


def _letters_of(db: Connection, seq: int) -> list[int]:
    return [row[0] for row in db.rows(load("erase.sql").letters_of_event, (seq,))]


# --- removing ---------------------------------------------------------------------------------


def _remove(db: Connection, seqs: Sequence[int], *, effects: bool) -> Gone:
    """Inside a transaction: remove events and what is left of some, with what follows from them if asked for.

    What follows goes in the same transaction: afterwards nobody could tell whose it was.
    """
    queries: Any = load("erase.sql")
    db.ex(load("care.sql").stain)
    places: dict[int, list[Doomed]] = {}
    letters: list[int] = []
    for seq in [*seqs, *(seq for _, seq in _following(db, set(seqs)))] if effects else seqs:
        row = db.row(load("removal.sql").event, (seq,))
        if row is not None:
            places.setdefault(row[1], []).append(doomed(db, row, erased=True))
            letters += _letters_of(db, seq)
    events: Counter[int] = Counter()
    expired = 0
    for tp, gone in places.items():
        expired += sum(_close(db, tp, gone, at) for at in _live(db, tp))
        remove(db, tp >> 10, gone, ERASED)
        events[tp >> 10] += len(gone)
    db.ex(queries.remains_erase, (json.dumps(list(seqs)),))
    return Gone(events, _strip(db, letters).letters, expired)


def _strip(db: Connection, letters: Sequence[int]) -> Gone:
    """Inside a transaction: take out of dead letters all that they hold."""
    db.ex(load("care.sql").stain)
    changed = db.rows(load("erase.sql").letters_erase, (json.dumps(letters), EMPTY))
    return Gone(Counter(), len(changed), 0)


def _close(db: Connection, tp: int, gone: Sequence[Doomed], at: Live) -> int:
    """Close what a handler has not finished; where it has any, its partition is taken from its worker.

    The worker may have the payload in hand, or have read it without having claimed it: what it makes of it is
    refused, or it would bring back what was erased.
    """
    unfinished = _unfinished(db, tp, [one.seq for one in gone], at)
    if not unfinished:
        return 0
    closing.fence(db, at.sub, tp)
    closing.expire(db, at.sub, tp, closing.ERASED, [seq for seq in unfinished if seq <= at.high])
    for one in gone:
        if one.seq in unfinished and one.seq > at.high:  # `remove` counts it as taken and expired
            letter = closing.Closing(one.seq, 0, 0, 0, one.eid, one.head, at.active)
            closing.tell(db, at.sub, tp, letter, closing.ERASED)
    db.ex(load("erase.sql").replay_gone, (sum(seq > at.high for seq in unfinished), at.sub, tp))
    return len(unfinished)


def _live(db: Connection, tp: int) -> list[Live]:
    return [Live._make(row) for row in db.rows(load("erase.sql").live, (tp,))]


def _unfinished(db: Connection, tp: int, seqs: Sequence[int], at: Live) -> set[int]:
    """Return those of the events of a partition that a handler has not finished."""
    queries: Any = load("erase.sql")
    bindings = (at.sub, tp, json.dumps(list(seqs)))
    opened = {row[0] for row in db.rows(queries.open_ones, bindings)}
    others = {row[0] for row in db.rows(queries.passed_over, bindings)}
    wanted = [seq for seq in seqs if seq > at.start and seq not in others]
    return {seq for seq in wanted if seq > at.claimed_after or seq in opened}


# --- telling ----------------------------------------------------------------------------------


async def _journalled(journal: SqliteJournal, keys: Sequence[str], told: Erased) -> bytes:
    """Publish what was done; returns the id of the event."""
    db, contract = journal.connection(), contract_of(Erasure)
    salt = db.chance.bytes(SALT_BYTES)
    hashes = tuple(blake2b(key.encode(), key=salt, digest_size=KEY_HASH_BYTES).hexdigest() for key in keys)
    event = Erasure(
        key_hashes=hashes, salt=salt.hex(), events=told.topics, letters=told.letters, expired=told.expired
    )
    (stamp,) = await journal.intern([Stamp(contract.type, "headrace", contract.schema_version)])
    now, topic = db.clock.wall_us(), await journal.topic(contract.topic, 1)
    event_id = uuid7(now, db.chance.bytes(10))
    trace = (db.chance.bytes(16), db.chance.bytes(8), 1)
    head = Head(stamp, (), b"", *trace, b"", now, "headrace", None)
    place = journal.place(topic, 0)
    await journal.publish(
        [NewEvent(topic.name, place, event_id, head, contract.encode(event), may_exist=False)]
    )
    return event_id
