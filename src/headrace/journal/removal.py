"""Takes events out of the journal: what stays is their skeleton, and every count that they stood in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from headrace.codec.head import decode_head, encode_head, payload_hash
from headrace.event.envelope import Head
from headrace.journal.connection import Connection
from headrace.journal.queries import load

RETENTION, ERASED = "retention", "erased"
OWNER_BYTES = 8


class Doomed(NamedTuple):
    """An event that is to be removed, and what will be left of it."""

    seq: int
    tp: int
    eid: bytes
    cid: int
    depth: int
    head: bytes
    content: bytes
    owner: bytes
    size_bytes: int


def content_of(key: str | None, body: bytes) -> bytes:
    """Return the hash by which a second publish is told from other content: 16 bytes over key and payload."""
    return payload_hash((b"" if key is None else b"=" + key.encode()) + b"\0" + body)


def bare(head: Head) -> bytes:
    """Return an envelope less all that may tell of a person: key, principal, headers, hashes of payloads."""
    kept = Head(
        head.stamp, head.parents, head.root, head.trace, head.span, head.flags, b"", head.time_us, "", None
    )
    return encode_head(kept)


def owner_of(db: Connection, key: str | None) -> bytes:
    """Return the hash by which what is left of a key's events is found."""
    if key is None:
        return b""
    salt = db.row(load("removal.sql").salt)[0]
    return blake2b(key.encode(), key=salt, digest_size=OWNER_BYTES).digest()


def doomed(db: Connection, row: tuple[Any, ...], *, erased: bool) -> Doomed:
    """Return what will be left of an event; raises `ValueError` for an envelope that cannot be read."""
    seq, tp, eid, cid, depth, packed, body = row
    head = decode_head(packed)
    traces = (b"", b"") if erased else (content_of(head.key, body), owner_of(db, head.key))
    return Doomed(seq, tp, eid, cid, depth, bare(head), *traces, len(packed) + len(body))


def remove(db: Connection, topic: int, found: Sequence[Doomed], why: str) -> None:
    """Inside a transaction: remove events of one topic that are there.

    For handlers that have not taken them yet they count as taken and expired; whoever calls has seen to it
    that none is open.
    """
    queries: Any = load("removal.sql")
    now = db.clock.wall_us()
    db.many(queries.skeleton_add, [(*one[:8], why, now) for one in found])
    db.faults.at("remove.skeleton")
    positions = db.rows(queries.positions_of_topic, (topic,))
    _count_gone(db, positions, found)
    seqs = json.dumps([one.seq for one in found])
    for sub in {row[0] for row in positions}:
        db.ex(queries.letters_strip, (sub, seqs, EMPTY))
    counted = db.row(queries.counted, (topic,))
    if counted is not None:
        size = sum(one.size_bytes for one in found if one.seq <= counted[0])
        db.ex(queries.bytes_less, (size, topic))
    db.ex(queries.event_remove, (seqs,))
    db.faults.at("remove.events")


#: The envelope of a dead letter whose bytes are gone.
EMPTY = encode_head(Head(0, (), b"", bytes(16), bytes(8), 0, b"", 0, "", None))


def _count_gone(db: Connection, positions: Sequence[Any], found: Sequence[Doomed]) -> None:
    queries: Any = load("removal.sql")
    by_place: dict[int, list[int]] = {}
    for one in found:
        by_place.setdefault(one.tp, []).append(one.seq)
    for sub, tp, start, high in positions:
        gone = [seq for seq in by_place.get(tp, ()) if seq > start]
        if not gone:
            continue
        ahead = sum(seq > high for seq in gone)
        db.ex(queries.position_gone, (len(gone), ahead, sub, tp))
        afters = [row[0] for row in db.rows(queries.ranges, (sub, tp))]
        inside = (next((after for after in afters if after < seq), None) for seq in gone if seq <= high)
        for after, count in Counter(inside).items():
            if after is not None:
                db.ex(queries.range_gone, (count, sub, tp, after))
