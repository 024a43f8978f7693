"""What a subscription on Kafka writes down of its progress, in the transaction of every outcome.

The ledger is a compacted topic with the partitions of the source.  The last record of a partition says all
there is to say of it, so compaction loses nothing; exceptions to version ranges have records of their own.
"""

from __future__ import annotations

import msgspec

#: Key of the record of a partition, and the beginning of the key of an exception.
POSITION, EXCEPTION = b"position", b"exception:"
#: The beginning of the key of what was decided about a dead letter.
FATE = b"fate:"


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


def fate_key(offset: int) -> bytes:
    """Return the key of the record that says what was decided about the dead letter of an offset."""
    return FATE + str(offset).encode()


def offset_in(key: bytes, kind: bytes) -> int | None:
    """Return the offset in a key of a kind, or ``None`` for a key of another."""
    return int(key.removeprefix(kind)) if key.startswith(kind) else None


def exception_key(offset: int) -> bytes:
    """Return the key of the record that says which version has finished an offset."""
    return EXCEPTION + str(offset).encode()
