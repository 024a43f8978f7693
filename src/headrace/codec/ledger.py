"""What a subscription on Kafka writes down of its progress, in the transaction of every outcome.

The ledger is a compacted topic.  It has one partition, whatever the source has: each partition that a
transaction writes to costs the brokers about a millisecond.  The last record about a partition of the source
says all there is to say of it, so compaction loses nothing; exceptions to version ranges, and what was
decided about dead letters, have records of their own.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

#: What records are about: a partition, an offset that another version than the range's has finished, and what
#: was decided about a dead letter.
POSITION, EXCEPTION, FATE = b"position", b"exception", b"fate"
_KEY = re.compile(
    rb"position:(?P<position>\d+)"
    rb"|(?P<kind>exception|fate):(?P<partition>\d+):(?P<offset>\d+)(:(?P<topic>[0-9a-f]{32}))?"
)
#: The partition of a ledger.
LEDGER_PARTITION = 0


class Key(NamedTuple):
    """What a record of a ledger is about."""

    kind: bytes
    #: Of the source.
    partition: int
    #: Of the source; -1 where a record is about a whole partition.
    offset: int = -1
    #: The cluster's id of the source, in base 16, where a record is about an offset: one that was deleted and
    #: made again has other events there.  Empty in records of before: those count for either.
    topic: str = ""

    def fits(self, topic_id: bytes) -> bool:
        """Return whether a record counts for a topic."""
        return self.topic in ("", topic_id.hex())


def write_key(key: Key) -> bytes:
    """Return a key as it stands in the ledger."""
    text = b"%b:%d" % key[:2]
    if key.offset >= 0:
        text = b"%b:%d" % (text, key.offset)
    return b"%b:%b" % (text, key.topic.encode()) if key.topic else text


def read_key(found: object) -> Key | None:
    """Return what a record is about, or ``None`` for one that a newer Headrace has written."""
    if not isinstance(found, bytes):
        return None
    told = _KEY.fullmatch(found)
    if told is None:
        return None
    if told["position"]:
        return Key(POSITION, int(told["position"]))
    return Key(told["kind"], int(told["partition"]), int(told["offset"]), (told["topic"] or b"").decode())


#: The form of a position; of a newer one nobody knows what to make.
FORM = 1


class OpenEntry(msgspec.Struct, array_like=True, gc=False):
    """One offset below the position that is not finished."""

    offset: int
    state: str
    number: int
    crashes: int
    generation: int
    errors: tuple[str, ...]
    #: Microseconds since 1970; 0 = may run at once.
    due_us: int
    #: Offset of the dead letter that was redriven: it has the bytes, when the source has not any more.
    letter: int = -1
    #: How long that was when it was written.
    wait_us: int = 0


class Range(msgspec.Struct, array_like=True, gc=False):
    """From an offset on, the version that took the events."""

    after: int
    version: str


class Position(msgspec.Struct, array_like=True, gc=False):
    """All that is to be known of one partition of a subscription."""

    #: The last offset taken; -1 before the first.
    high: int
    #: Where the subscription began: events before are none of its.
    start: int
    #: The cluster's id of the topic: of one that was deleted and made again this says nothing.
    topic_id: bytes = b""
    open: list[OpenEntry] = []
    ranges: list[Range] = []
    taken: int = 0
    done: int = 0
    dead: int = 0
    #: The form of this record; a newer one is refused.
    form: int = FORM
    #: How often the partition was given to a worker.
    assigned: int = 0
    #: The first command about dead letters that is not carried out yet.
    commands: int = 0
    #: Events that retention has eaten before they were handled.
    expired: int = 0
    #: Events that have followed, where that is counted: in a replay.
    emitted: int = 0

    def low(self) -> int:
        """Return the offset that a successor has to go back to: what Kafka keeps for the group."""
        return min((one.offset for one in self.open), default=self.high + 1)


class Fate(msgspec.Struct, array_like=True, gc=False):
    """What was decided about the dead letter of an offset."""

    #: How often it had been redriven before it died.
    generation: int = -1
    #: ``redriven``, ``dropped``, or nothing where the last request was refused.
    fate: str = ""
    #: Why the last request was refused.
    problem: str = ""
    at_us: int = 0

    def of(self, generation: int) -> str:
        """Return what became of a letter: of those before the last one, that they were redriven."""
        if generation < self.generation:
            return "redriven"
        return self.fate if generation == self.generation else ""


write_position = msgspec.msgpack.Encoder().encode
read_position = msgspec.msgpack.Decoder(Position).decode


write_fate = msgspec.msgpack.Encoder().encode
read_fate = msgspec.msgpack.Decoder(Fate).decode
