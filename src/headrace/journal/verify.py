"""Is a journal sound?  Checksums, the accounting, positions, version ranges, causes; nothing is changed.

A journal in use changes between two queries, so what must agree is read inside one snapshot.  Events never
change: they are read page by page, up to the offset that the snapshot ended with.
"""

from __future__ import annotations

from typing import Any

from headrace.codec.head import checksum, decode_head
from headrace.event.lineage import text_of
from headrace.journal.queries import load
from headrace.journal.reader import PAGE_ROWS_MAX, Reader
from headrace.ports.look import Violation

#: Of one kind; a damaged file may break a rule in every row.
VIOLATIONS_MAX = 20


#: Each rule of the file ``verify.sql``: what a row of it says.
_RULES = {
    "accounting": "subscription {}, partition {}: taken {} is not running {} + waiting {} + done {} + dead {}"
    " + expired {}",
    "taken": "subscription {}, partition {}: events passed {}, counted as taken {}",
    "starts": "subscription {}: its positions start at {} and at {}",
    "bounds": "subscription {}, partition {}: start {}, claimed {}, high {} are out of order",
    "running": "subscription {}, partition {}: running is {}, in flight are {}",
    "ownerless": "subscription {}, partition {}: running without an owner {}",
    "open_place": "subscription {}, partition {}: offset {} ({}) is open and must not be",
    "dead_count": "subscription {}, partition {}: counted as dead {}, dead letters {}",
    "dead_place": "dead letter {}: subscription {}, offset {} is not taken, or open",
    "dead_twice": "subscription {}, offset {}: dead letters that count {}",
    "ranges": "subscription {}, partition {}: offset {} was taken, ranges begin after {}",
    "range_place": "subscription {}, partition {}: the range after {} (version {}) is out of place",
    "exception_place": "subscription {}, partition {}: the exception at {} (version {}) is out of place",
    "replay_count": "replay {}: allotted are {} events, counted {}",
    "replay_version": "replay {}: its version {} is not one of its handler, or not that of its ranges",
    "replay_twice": "replay {}, partition {}: replay {} was allotted offset {} as well",
    "live_twice": "replay {}, partition {}: its version has finished offset {} live as well",
    "active": "handler {} ({}): the active version {} is not one of its own",
    "positions": "subscription {}: partitions {}, positions {}",
    "event_place": "offset {}: its topic has no partition {}",
    "chains": "offset {}: {} is not the first event of a chain before it",
    "remains": "offset {}: what is left of an event in {} is not all there is, or out of place",
    "sizes": "topic {}: size {} is counted, its events have {}",
}
#: Rules whose second column is topic and partition in one number.
_PLACED = _RULES.keys() - {
    "starts", "dead_place", "dead_twice", "active", "positions", "chains", "sizes", "replay_count",
    "replay_version",
}  # fmt: skip


def verify(reader: Reader) -> list[Violation]:
    """Return every rule that does not hold, with where; an empty list for a sound journal."""
    queries: Any = load("verify.sql")
    found: list[Violation] = []
    with reader.snapshot():
        for rule, text in _RULES.items():
            rows = reader.rows(getattr(queries, rule))
            found += [
                Violation(rule, text.format(*_named(reader, rule, row))) for row in rows[:VIOLATIONS_MAX]
            ]
        last = reader.last_offset()
    found += _events(reader, queries, last)
    told = [row[0] for row in reader.rows(queries.quick_check)]
    return found + [Violation("file", line) for line in told if line != "ok"]


def _named(reader: Reader, rule: str, row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the row with topic and partition spelled out."""
    if rule not in _PLACED:
        return row
    return (row[0], f"{reader.topic(row[1] >> 10)}/{row[1] & 1023}", *row[2:])


def _events(reader: Reader, queries: Any, last: int) -> list[Violation]:
    found: list[Violation] = []
    after = 0
    while page := reader.rows(queries.page, (after, last, PAGE_ROWS_MAX)):
        for row in page:
            if len(found) < VIOLATIONS_MAX:
                found += _event(reader, queries, row)
        after = page[-1][0]
    return found


def _event(
    reader: Reader, queries: Any, row: tuple[int, bytes, int, bytes, bytes, int, int]
) -> list[Violation]:
    seq, event_id, depth, head, body, summed, chain = row
    if checksum(event_id, head, body) != summed:
        return [Violation("checksum", f"offset {seq}: event {text_of(event_id)} is not as it was written")]
    try:
        parents = decode_head(head).parents
    except ValueError as fault:
        return [Violation("envelope", f"offset {seq}: {fault}")]
    found: list[Violation] = []
    for number, parent in enumerate(parents):
        rows = reader.rows(queries.cause, (parent,))
        if (not rows or rows[0][0] >= seq) and _forgotten(reader, queries, number, chain):
            continue  # an id that nothing is left of may have been given anew
        if not rows or rows[0][0] >= seq:
            problem = "is not in the journal" if not rows else "comes after it"
            found.append(Violation("causes", f"offset {seq}: parent {text_of(parent)} {problem}"))
        elif rows[0][1] >= depth:
            found.append(Violation("depth", f"offset {seq}: depth {depth}, its parent has {rows[0][1]}"))
    return found


def _forgotten(reader: Reader, queries: Any, number: int, chain: int) -> bool:
    """Return whether nothing may be left of a parent: the first one is not older than its chain."""
    upto = reader.rows(queries.forgotten)[0][0]
    return bool(upto) and (number > 0 or chain <= upto)
