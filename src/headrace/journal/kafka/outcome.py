"""What an outcome does to the partitions it is about, and the records that say so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from json import dumps as write_text
from typing import NamedTuple

from headrace import errors
from headrace.codec.ledger import EXCEPTION, LEDGER_PARTITION, Key, write_key
from headrace.event.envelope import Head
from headrace.journal.held import Open
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.part import Part
from headrace.journal.kafka.produce import Out
from headrace.journal.kafka.rows import DEAD_PREFIX, Stamps, Unreadable, offset_of, written
from headrace.journal.kafka.topics import BATCH_BYTES_MAX, DEAD_SUFFIX
from headrace.journal.settle import Token, without
from headrace.ports import FIRST_ATTEMPT, Batch, Clock, DeadLetter, OpenState, Outcome, Row

#: An error's text and traceback in the headers of a dead letter; brokers refuse records of more than 1 MiB.
ERROR_CHARS_MAX, TRACEBACK_CHARS_MAX = 4_000, 16_000
#: A record, and each header of it, costs at most so much beside its bytes.
RECORD_BYTES = 64
#: A payload of so many bytes fits into every topic that is used, with the largest envelope and an error.
SURE_BYTES = BATCH_BYTES_MAX - 262_144
#: What is kept of the payload of a dead letter that does not fit.
PREFIX_BYTES = 65_536
#: The reason of a dead letter whose handler emitted what its topic does not take.
TOO_LARGE = "too_large"
#: The reason of a dead letter whose event retention has eaten.
EXPIRED = "expired"


def key_of(row: Row) -> str | None:
    """Return the key of a row; one that cannot be read has none (and will be a dead letter)."""
    return row[5].key if isinstance(row[5], Head) else None


def still_ours(batch: Batch, parts: Mapping[int, Part]) -> set[int]:
    """Return the partitions of a batch that are under the assignment of its claim.

    One that was given up and taken again is another: nothing of the batch is of its business.
    """
    token: Token = batch.token
    return {tp for tp, epoch in token.epochs.items() if tp in parts and parts[tp].held.epoch == epoch}


def apply(parts: dict[int, Part], batch: Batch, outcome: Outcome, clock: Clock) -> Iterator[Out]:
    """Change parts as an outcome says; yield the exceptions to version ranges that follow."""
    token: Token = batch.token
    named = outcome.offsets()
    ours = still_ours(batch, parts)
    for row in batch.rows if token.fresh else ():
        if row[0] not in named and row[1] in ours:
            parts[row[1]].open(row, Open(row[0], OpenState.RUNNING, FIRST_ATTEMPT, 0, key_of(row)))
    for one in outcome.waiting:
        due_ns = clock.boot_ns() + int(one.after_ms * 1e6) if one.after_ms else 0
        entry = Open(one.row[0], one.state, one.attempt, due_ns, key_of(one.row))
        parts[one.row[1]].open(one.row, entry)
    for row in outcome.done:
        part = parts[row[1]]
        part.done += 1
        if not token.fresh:  # else it was never open
            yield from _close(part, row, batch, token)
    for letter in outcome.dead:
        part = parts[letter.row[1]]
        part.dead += 1
        yield from _close(part, letter.row, batch, token)
    for tp in ours if token.fresh else ():
        parts[tp].held.unsettled = 0


def _close(part: Part, row: Row, batch: Batch, token: Token) -> Iterator[Out]:
    """Close an offset; where another version than the range's has finished it, say which."""
    part.close(row[0])
    offset = offset_of(row[0])
    redriven = batch.attempts.get(row[0], FIRST_ATTEMPT).generation > 0
    # A redrive may come back to the range's version: what another had left there counts no more.
    if redriven or (not token.fresh and part.version_of(offset) != batch.version.name):
        key = write_key(Key(EXCEPTION, part.partition, offset, part.topic_id.hex()))
        yield Out("", LEDGER_PARTITION, key, batch.version.name.encode())


def _weight(record: Out) -> int:
    """Return at least what a record weighs for the brokers, before it is compressed."""
    headers = sum(len(name) + len(value or b"") + RECORD_BYTES for name, value in record.headers or ())
    return RECORD_BYTES + len(record.key or b"") + len(record.value or b"") + headers


def fitting(batch: Batch, outcome: Outcome, log: Log) -> Outcome:
    """Return an outcome in which whatever emits more than its topic takes is a dead letter.

    The brokers would refuse the whole transaction, again and again, and say nothing of whose fault it is.
    """
    large: dict[int, str] = {}
    for event, cause in zip(outcome.emitted, outcome.causes, strict=True):
        if len(event[4]) > SURE_BYTES:
            record = written(event, log.topic_names, log.stamps)
            if _weight(record) > log.bytes_max(record.topic):
                large[cause] = record.topic
    if not large:
        return outcome
    kept = without(outcome, large)
    for row in outcome.done:
        if row[0] in large:
            fault = errors.RecordTooLarge(topic=large[row[0]])
            attempt = batch.attempts.get(row[0], FIRST_ATTEMPT)
            kept.dead.append(DeadLetter(row, TOO_LARGE, fault.code, str(fault), "", attempt))
    return kept


def trimmed(letter: Out, log: Log) -> Out:
    """Return a dead letter that its topic takes: of one too large, the place and how it began."""
    body = letter.value or b""
    if len(body) <= SURE_BYTES or _weight(letter) <= log.bytes_max(letter.topic):
        return letter
    size = (f"{DEAD_PREFIX}bytes", str(len(body)).encode())
    return letter._replace(value=body[:PREFIX_BYTES], headers=[*(letter.headers or ()), size])


class Origin(NamedTuple):
    """Whose dead letters these are."""

    handler: str
    topic: str
    topic_id: bytes
    stamps: Stamps
    #: The number of the replay that they died in, and for people where its results lie.
    replay: str = ""
    where: str = ""


def dead_record(origin: Origin, partition: int, letter: DeadLetter, version: str) -> Out:
    """Return a dead letter as a record: the original key, headers and bytes, and why in further headers."""
    row = letter.row
    head = row[5]
    headers: list[tuple[str, bytes | None]] = []
    if isinstance(head, Head):
        headers += origin.stamps.headers(row[2], row[4], head)
    elif isinstance(head, Unreadable):
        headers += head.headers
    why = {
        "reason": letter.reason,
        "code": letter.code,
        "error": letter.error[:ERROR_CHARS_MAX],
        "traceback": letter.traceback[-TRACEBACK_CHARS_MAX:],
        "attempts": str(letter.attempt.number),
        "crashes": str(letter.attempt.crashes),
        "generation": str(letter.attempt.generation),
        "errors": write_text(letter.attempt.errors),
        "handler": origin.handler,
        "version": version,
        "topic": origin.topic_id.hex(),
        "partition": str(partition),
        "offset": str(offset_of(row[0])),
    }
    if origin.replay:
        why |= {"replay": origin.replay, "results": origin.where}
    headers += [(DEAD_PREFIX + name, text.encode(errors="replace")) for name, text in why.items()]
    if isinstance(head, Unreadable):
        key = head.key
    else:
        named = key_of(row)
        key = None if named is None else named.encode()
    return Out(origin.topic + DEAD_SUFFIX, partition, key, row[6], headers)


def buried(origin: Origin, part: Part, log: Log) -> list[Out]:
    """Write the dead letters that no handler has made, once all that was claimed with them is settled."""
    if part.held.unsettled:
        return []  # a successor would claim, and bury, the same again
    records: list[Out] = []
    for letter in part.buried:
        part.close(letter.row[0])
        if letter.reason == EXPIRED:
            part.expired += 1
        else:
            part.dead += 1
        records.append(trimmed(dead_record(origin, part.partition, letter, ""), log))
    part.buried.clear()
    return records
