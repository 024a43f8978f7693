"""What a journal on Kafka has written down, read by a plain committed consumer and plain SQL."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from tests.journal.ledger import Opened, Position
from tests.services.journal.records import At, Records

from headrace.codec import ledger as codec

#: A row's number has the partition in its low bits, as in a place.
PARTITION_BITS = 10

Rows = Callable[[str], Sequence[Sequence[Any]]]


class Claimed(NamedTuple):
    """What the index has noted as in hand: offsets from ``after`` to before ``upto``."""

    after: int
    upto: int


class KafkaLedger:
    """Reads the topics of one test, and the index beside them; ``sub`` is (handler, topic)."""

    def __init__(self, records: Records, index: Rows, topics: Mapping[int, str]) -> None:
        self._records, self._index, self._topics = records, index, topics

    # --- events -------------------------------------------------------------------------------

    def events(self, topic: str) -> dict[int, At]:
        """Return the records of a topic that are no copies, by their row's number."""
        seen: set[tuple[int, str]] = set()
        found: dict[int, At] = {}
        for one in self._records.of(topic):
            if (one.partition, one.event_id) not in seen:
                seen.add((one.partition, one.event_id))
                found[_number(one.partition, one.offset)] = one
        return dict(sorted(found.items()))

    def offsets(self, topic: int) -> list[int]:
        """Return every offset of a topic."""
        return list(self.events(self._topics[topic]))

    def ids(self, topic: int) -> list[bytes]:
        """Return every event id of a topic, in the order of the offsets."""
        return [UUID(one.event_id).bytes for one in self.events(self._topics[topic]).values()]

    def places(self, topic: int) -> dict[int, int]:
        """Return the place of every event of a topic by its offset."""
        found = self.events(self._topics[topic])
        return {number: topic << PARTITION_BITS | one.partition for number, one in found.items()}

    def children(self) -> Counter[tuple[bytes, str, str]]:
        """Return how often each (parent, handler with declared version, model) has an event of its own."""
        found: Counter[tuple[bytes, str, str]] = Counter()
        for topic in self._topics.values():
            for one in self._records.of(topic):
                told = one.headers
                if "ce_handler" in told:
                    parent = UUID(told["ce_parentids"].split(b",")[0].decode()).bytes
                    found[parent, told["ce_handler"].decode(), told.get("ce_model", b"").decode()] += 1
        return found

    # --- positions ----------------------------------------------------------------------------

    def _written(self, sub: tuple[str, str]) -> dict[int, codec.Position]:
        """Return the last record of each partition."""
        found = self._entries(sub, codec.POSITION)
        return {key.partition: codec.read_position(value) for key, value in found}

    def _entries(self, sub: tuple[str, str], kind: bytes) -> Iterator[tuple[codec.Key, bytes]]:
        """Yield what the ledger of a subscription says of a kind."""
        for one in self._records.of(f"headrace.{sub[0]}.ledger"):
            key = codec.read_key(one.key)
            if key is not None and key.kind == kind:
                yield key, one.value

    def _claimed(self, sub: tuple[str, str]) -> dict[int, Claimed]:
        sql = "SELECT partition, after, upto, subscription FROM {claim}"
        return {row[0]: Claimed(row[1], row[2]) for row in self._index(sql) if row[3] == sub[0]}

    def _in_hand(self, sub: tuple[str, str]) -> dict[int, set[int]]:
        """Return the numbers that are claimed and have no outcome yet, by partition."""
        written, claimed = self._written(sub), self._claimed(sub)
        found: dict[int, set[int]] = {}
        for number, one in self.events(sub[1]).items():
            at = written.get(one.partition)
            claim = claimed.get(one.partition, Claimed(0, 0))
            if claim.after <= one.offset < claim.upto and (at is None or one.offset > at.high):
                found.setdefault(one.partition, set()).add(number)
        return found

    def positions(self, sub: tuple[str, str]) -> dict[int, Position]:
        """Return the positions of a subscription by place."""
        (topic,) = (number for number, name in self._topics.items() if name == sub[1])
        flying, written = self._in_hand(sub), self._written(sub)
        found: dict[int, Position] = {}
        for partition in sorted(written.keys() | flying.keys()):
            at = written.get(partition, codec.Position(high=-1, start=0))
            high, start = _number(partition, at.high), _number(partition, at.start - 1)
            mine = flying.get(partition, set())
            running = sum(entry.state == "running" for entry in at.open) + len(mine)
            counts = at.taken + len(mine), running, at.done, at.dead, 0
            place = topic << PARTITION_BITS | partition
            found[place] = Position(start, max({high} | mine), high, None, 0, *counts)
        return found

    def counts(self, sub: tuple[str, str]) -> Counter[str]:
        """Return what the events of a subscription have come to, over all partitions."""
        found: Counter[str] = Counter()
        for one in self.positions(sub).values():
            found.update(taken=one.taken, running=one.running, done=one.done, dead=one.dead)
        return +found

    def opened(self, sub: tuple[str, str]) -> dict[int, Opened]:
        """Return the open offsets of a subscription; an attempt that was begun is known to the index."""
        sql = "SELECT partition, seq, number, crashes, subscription FROM {tried}"
        tried = {(row[0], row[1]): row[2:4] for row in self._index(sql) if row[4] == sub[0]}
        found: dict[int, Opened] = {}
        for partition, at in self._written(sub).items():
            for one in at.open:
                number, crashes = tried.get((partition, one.offset), (0, 0))
                attempts = max(one.number, number), max(one.crashes, crashes)
                opened = Opened(one.state, *attempts, one.generation, list(one.errors))
                found[_number(partition, one.offset)] = opened
        return dict(sorted(found.items()))

    # --- versions and dead letters ------------------------------------------------------------

    def ranges(self, sub: tuple[str, str], place: int) -> list[tuple[int, str]]:
        """Return (after, name of the version) of each range of a partition."""
        partition = place % (1 << PARTITION_BITS)
        at = self._written(sub).get(partition)
        return [(_number(partition, one.after), one.version) for one in at.ranges] if at else []

    def exceptions(self, sub: tuple[str, str]) -> dict[int, str]:
        """Return the name of the version of each exception row, by offset."""
        found = {
            _number(key.partition, key.offset): value.decode()
            for key, value in self._entries(sub, codec.EXCEPTION)
        }
        written = self._written(sub)
        return {  # one that says what the range says has been taken back
            number: version
            for number, version in found.items()
            if version != _range_version(written[_partition(number)], number >> PARTITION_BITS)
        }

    def version_of(self, sub: tuple[str, str], place: int, offset: int) -> str | None:
        """Return the name of the version that the ledger says has handled an offset."""
        found = self.exceptions(sub).get(offset)
        return found or next((v for after, v in reversed(self.ranges(sub, place)) if after < offset), None)

    def _letters(self, sub: tuple[str, str]) -> Iterator[tuple[At, str]]:
        """Yield the dead letters of a subscription, and what was decided about each."""
        fates = {
            (key.partition, key.offset): codec.read_fate(value)
            for key, value in self._entries(sub, codec.FATE)
        }
        for one in self._records.of(f"{sub[1]}.dlq"):
            told = one.headers
            if told["dead_handler"].decode() == sub[0]:
                fate = fates.get((one.partition, int(told["dead_offset"])), codec.Fate())
                yield one, fate.of(int(told["dead_generation"]))

    def dead(self, sub: tuple[str, str]) -> list[tuple[int, str, bytes]]:
        """Return offset, reason and payload of each dead letter that was not redriven."""
        return [
            (_about(one), one.headers["dead_reason"].decode(), one.value)
            for one, fate in self._letters(sub)
            if fate != "redriven"
        ]

    def letters(self) -> list[int]:
        """Return the numbers of the dead letters that nobody has decided on: where they lie."""
        found = (one for sub in self._subs() for one, fate in self._letters(sub) if not fate)
        return [_number(one.partition, one.offset) for one in found]

    def offset_of(self, letter: int) -> int:
        """Return the offset that a dead letter is about."""
        every = (one for sub in self._subs() for one, _ in self._letters(sub))
        (found,) = (one for one in every if _number(one.partition, one.offset) == letter)
        return _about(found)

    # --- rules --------------------------------------------------------------------------------

    def dump(self) -> dict[str, list[Any]]:
        """Return all records and all rows of the index: equal dumps mean that nothing has happened."""
        found: dict[str, list[Any]] = {
            topic: list(self._records.of(topic)) for topic in self._records.topics()
        }
        for table in ("place", "first", "claim", "tried", "version", "model", "handler"):
            found[table] = sorted(map(tuple, self._index(f"SELECT * FROM {{{table}}}")))
        return found

    def _subs(self) -> list[tuple[str, str]]:
        """Return every subscription that has written anything, with its topic."""
        ids = {self._records.topic_id(topic): topic for topic in self._topics.values()}
        found: list[tuple[str, str]] = []
        for name in self._records.topics():
            if name.startswith("headrace.") and name.endswith(".ledger"):
                handler = name.removeprefix("headrace.").removesuffix(".ledger")
                written = self._written((handler, ""))
                found += [(handler, ids[at.topic_id]) for at in list(written.values())[:1]]
        return found

    def breaches(self) -> list[str]:
        """Return every rule that does not hold, with where."""
        return [
            f"{sub[0]}, partition {partition}: {told}"
            for sub in self._subs()
            for partition, at in self._written(sub).items()
            for told in (*self._partition(sub, partition, at), *self._versions(at))
        ]

    def _partition(self, sub: tuple[str, str], partition: int, at: codec.Position) -> Iterator[str]:
        offsets = [one.offset for one in self.events(sub[1]).values() if one.partition == partition]
        passed = {offset for offset in offsets if at.start <= offset <= at.high}
        opened = {one.offset for one in at.open}
        if at.taken != len(passed) or at.taken != len(opened) + at.done + at.dead:
            closed = f"done {at.done} + dead {at.dead}"
            yield f"taken {at.taken} of {len(passed)} is not open {len(opened)} + {closed}"
        if not opened <= passed or len(opened) != len(at.open):
            yield f"open {sorted(opened)}, taken {sorted(passed)}"
        group = self._records.committed(f"headrace.{sub[0]}", sub[1], partition)
        if group != at.low():
            yield f"the group stands at {group}, the ledger at {at.low()}"
        letters = {
            number >> PARTITION_BITS for number, *_ in self.dead(sub) if _partition(number) == partition
        }
        if len(letters) < at.dead or not letters <= passed:
            yield f"{at.dead} dead, letters of {sorted(letters)}"

    def _versions(self, at: codec.Position) -> Iterator[str]:
        afters = [one.after for one in at.ranges]
        if afters != sorted(set(afters)) or any(not at.start - 1 <= after <= at.high for after in afters):
            yield f"ranges after {afters} of ({at.start}, {at.high}]"
        if at.taken and (not afters or afters[0] != at.start - 1):
            yield f"ranges after {afters} do not begin with {at.start}"


def _number(partition: int, offset: int) -> int:
    """Return a row's number; -1 before the first offset."""
    return offset << PARTITION_BITS | partition if offset >= 0 else -1


def _range_version(at: codec.Position, offset: int) -> str | None:
    return next((one.version for one in reversed(at.ranges) if one.after < offset), None)


def _about(letter: At) -> int:
    return _number(letter.partition, int(letter.headers["dead_offset"]))


def _partition(number: int) -> int:
    return number % (1 << PARTITION_BITS)
