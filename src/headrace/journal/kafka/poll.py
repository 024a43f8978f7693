"""The thread that talks to the group: it polls, and takes and gives up partitions."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace import errors
from headrace.codec.ledger import FORM, LEDGER_PARTITION, POSITION, Position, read_key, read_position
from headrace.journal.kafka.allotted import Allotted
from headrace.journal.kafka.client import REQUEST_TIMEOUT_S, Cluster, Doing, Topic, coded, reading
from headrace.journal.kafka.ends import Ends
from headrace.journal.kafka.fetch import Fetcher
from headrace.ports import World

_log = logging.getLogger("headrace.journal")

#: Records of one burst: the first is waited for, the others are those that are there.
BURST = 500
WAIT_S = 0.1
#: So long a full loop is waited for before partitions are paused, which throws away what was fetched ahead.
ROOM_S = 0.5
#: What a worker calls itself in its groups, with its pid: `headrace status` shows who has what.
CLIENT = "headrace"
#: Bytes that librdkafka fetches ahead.
AHEAD_KIB = 16_384
#: Bytes of one partition in an answer: all of them are to be worked, not one after the other.
PARTITION_BYTES = 131_072
#: How long the thread may be away from the group (a rebalance reads ledgers): heartbeats go on meanwhile.
AWAY_MS_MAX = 300_000
#: The last positions of partitions are looked for in so many records of the ledger first.
LAST_RECORDS = 1_000
LEAVING_S_MAX = 2.0
#: A member hears of a rebalance with the answer to a heartbeat: a newcomer waits for it.
HEARTBEATS_A_LEASE = 20
#: How often it is noted where partitions end.
ENDS_S = 1.0


#: Partition n of the source and of the commands go to one owner: nothing else but `range` sees to that.
_BY_BROKER = {"group.protocol": "consumer", "group.remote.assignor": "range"}


def _classic(lease_ms: int) -> dict[str, Any]:
    """Return settings for a group that its members balance; with KIP-848 the time is the broker's."""
    return {
        "partition.assignment.strategy": "range",
        "session.timeout.ms": lease_ms,
        "heartbeat.interval.ms": lease_ms // HEARTBEATS_A_LEASE,
    }


class Start(NamedTuple):
    """A partition that was assigned: how far the subscription has come, and under which assignment."""

    partition: int
    epoch: int
    position: Position
    #: The first offset that the topic still has.
    low: int
    #: True for a subscription that has not written down anything yet.
    new: bool


class Own(NamedTuple):
    """The topics of a subscription."""

    ledger: str
    #: What persons have decided about dead letters; partitioned like the source.
    commands: str


class Events(NamedTuple):
    """Who is told, on the event loop."""

    assigned: Callable[[list[Start]], None]
    gone: Callable[[list[int]], None]
    records: Callable[[list[Message]], None]
    #: For a replay: nothing that it was allotted comes after these offsets, by partition.
    ended: Callable[[dict[int, int]], None]
    failed: Callable[[BaseException], None]
    #: Awaited on the loop before partitions are given up in order.
    leaving: Callable[[list[int]], Coroutine[Any, Any, None]]


class Poller:
    """One member of the group of a subscription.

    Every assignment gets a number.  It is raised when the partition is revoked or lost, so that an outcome of
    before is known for what it is, whenever its handler ends.  The group's metadata is taken in ``on_assign``
    only: taken afresh after a revocation it would let a stale owner commit (tried, accepted).
    """

    def __init__(  # noqa: PLR0913 - the parts of a member, and who hears of it
        self,
        cluster: Cluster,
        group: str,
        topic: Topic,
        own: Own,
        events: Events,
        world: World,
        *,
        lease_ms: int,
        allotted: Allotted | None = None,
    ) -> None:
        config = {
            "client.id": f"{CLIENT}-{os.getpid()}",
            **reading(cluster, group),
            "queued.max.messages.kbytes": AHEAD_KIB,
            "max.partition.fetch.bytes": PARTITION_BYTES,
            "max.poll.interval.ms": AWAY_MS_MAX,
            **(_BY_BROKER if cluster.by_broker else _classic(lease_ms)),
            "enable.partition.eof": allotted is not None,
        }
        self._address, self._doing = cluster.address, Doing("read", topic.name, group)
        self.topic, self._own = topic, own
        self._consumer = Consumer(config)
        #: With KIP-848 partitions come and go one by one, else all are given up first at every change.
        self._one_by_one = cluster.by_broker
        self._fetcher = Fetcher(cluster, group, world.clock)
        self._faults = world.faults
        self._events, self._loop = events, asyncio.get_running_loop()
        self._latest = False
        self._ends = Ends(self._consumer, topic.name, allotted)
        self._stopped = threading.Event()
        self._mine: set[int] = set()
        #: Partitions of the commands: given, and read (which begins with the partition of the source).
        self._given: set[int] = set()
        self._heard: set[int] = set()
        #: The first command of each partition that is not carried out yet.
        self._commands: dict[int, int] = {}
        self._paused = False
        self._clock, self._look_ns = world.clock, 0
        #: The offset that the next record of each partition gets, as the brokers have told last.
        self.ends: dict[int, int] = {}
        #: Set while there is room on the loop for more.
        self._room = threading.Event()
        self._room.set()
        #: Held while a transaction is under way: partitions are given up before or after it.
        self.committing = threading.Lock()
        #: The group's metadata, as of the last assignment.
        self.metadata: object = None
        #: Number of the assignment of each partition; only ever raised.
        self.epochs: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name=f"headrace-poll-{group}", daemon=True)

    def start(self, *, latest: bool) -> None:
        """Join the group."""
        self._latest = latest
        self._thread.start()

    def _tell(self, what: Callable[[Any], None], value: object) -> None:
        try:
            self._loop.call_soon_threadsafe(what, value)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._stopped.set()

    # --- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._consumer.subscribe(
                [self.topic.name, self._own.commands],
                on_assign=self._on_assign,
                on_revoke=self._on_revoke,
                on_lost=self._on_lost,
            )
            while not self._stopped.is_set():
                self._breathe(full=not self._room.wait(ROOM_S))
                self._ends.go_on(paused=self._paused)
                self._look_ahead()
                self._hand_on(self._consumer.consume(1, WAIT_S))
        except Exception as fault:  # noqa: BLE001 - whatever ends the thread, the consumer has to know
            failed = fault
            if isinstance(fault, KafkaException):
                failed = coded(fault, self._address, self._doing)
            self._tell(self._events.failed, failed)
        finally:
            self._consumer.close()
            self._fetcher.close()

    def see_room(self, *, full: bool) -> None:
        """On the loop: say whether enough is waiting."""
        if full:
            self._room.clear()
        else:
            self._room.set()

    def _breathe(self, *, full: bool) -> None:
        """Pause while enough is waiting on the loop, go on when it is not."""
        if full is self._paused:
            return
        read = self._mine - self._ends.at.keys()
        where = [TopicPartition(self.topic.name, partition) for partition in read]
        if where:
            (self._consumer.pause if full else self._consumer.resume)(where)
        self._paused = full

    def _look_ahead(self) -> None:
        """Note now and then where partitions end; asked by another thread, the library would hang."""
        now = self._clock.boot_ns()
        if now < self._look_ns:
            return
        self._look_ns = now + int(ENDS_S * 1e9)
        found: dict[int, int] = {}
        for partition in self._mine:
            where = TopicPartition(self.topic.name, partition)
            _, end = self._consumer.get_watermark_offsets(where, cached=True)
            if end >= 0:  # else the brokers have told nothing yet
                found[partition] = end
        self.ends = found

    def _hand_on(self, found: list[Message]) -> None:
        if not found:
            return
        found += self._consumer.consume(BURST, 0)
        records, eaten = list[Message](), set[int]()
        for message in found:
            error = message.error()
            if self._ends.beyond(message):
                continue
            if error is None:
                records.append(message)
            elif error.code() == KafkaError._AUTO_OFFSET_RESET:  # noqa: SLF001 - the library names it so
                eaten.add(message.partition() or 0)
            elif error.code() != KafkaError._PARTITION_EOF and not error.retriable():  # noqa: SLF001 - as above
                self._tell(self._events.failed, coded(error, self._address, self._doing))
        if records:
            self._tell(self._events.records, records)
        new = self._ends.reached(self._mine)
        if new:
            self._tell(self._events.ended, new)
        if eaten:
            self._take_again(eaten)

    # --- assignments --------------------------------------------------------------------------

    def _on_assign(self, consumer: Consumer, given: Sequence[TopicPartition]) -> None:
        self.metadata = consumer.consumer_group_metadata()
        self._given |= {one.partition for one in given if one.topic == self._own.commands}
        self._begin(consumer, [one.partition for one in given if one.topic == self.topic.name])

    def _begin(self, consumer: Consumer, partitions: Iterable[int]) -> None:
        """Read partitions from where the ledger says, and the commands that belong to them."""
        starts = self._starts_of(consumer, list(partitions))
        where = [
            TopicPartition(self.topic.name, one.partition, max(one.position.high + 1, one.low))
            for one in starts
        ]
        self._commands |= {one.partition: one.position.commands for one in starts}
        self._mine |= {one.partition for one in starts}
        new = (self._mine & self._given) - self._heard
        self._heard |= new
        where += [
            TopicPartition(self._own.commands, partition, self._commands[partition]) for partition in new
        ]
        if self._one_by_one:
            consumer.incremental_assign(where)
        else:
            consumer.assign(where)
        self._paused = self._room.is_set()  # what came is not paused, what stayed may be
        if starts:
            self._tell(self._events.assigned, starts)

    def _take_again(self, eaten: set[int]) -> None:
        """Begin once more where retention was quicker than the worker.

        What is in hand is dropped with the old assignment.  On the classic protocol all begin again, because
        partitions cannot be given to the library one by one.
        """
        again = eaten & self._mine if self._one_by_one else set(self._mine)
        _log.warning("%s: retention has eaten events before they were handled", self.topic.name)
        taken = [TopicPartition(self.topic.name, partition) for partition in again]
        with self.committing:
            self._give_up(taken)
        heard = [TopicPartition(self._own.commands, partition) for partition in again & self._heard]
        self._heard -= again
        self._unassign(self._consumer, taken + heard)
        self._begin(self._consumer, again)

    def _starts_of(self, consumer: Consumer, partitions: list[int]) -> list[Start]:
        """Return how far the subscription has come in partitions, as its ledger says."""
        if not partitions:
            return []
        # The answer waits for transactions that are under way; after it the ledger is whole.
        asked = [TopicPartition(self.topic.name, partition) for partition in partitions]
        try:
            consumer.committed(asked, timeout=REQUEST_TIMEOUT_S)
        except KafkaException as fault:  # raised through the library it would be no exception any more
            raise coded(fault, self._address, self._doing) from fault
        found = self._read_ledger(set(partitions))
        return [self._start_of(partition, found.get(partition)) for partition in partitions]

    def _start_of(self, partition: int, found: Position | None) -> Start:
        low, high = self._fetcher.bounds(self.topic.name, partition)
        known = max(self._ends.stop(partition), 0 if found is None else found.high + 1)
        if known > high:
            problem = f"{self.topic.name}/{partition} ends at {high}, but {known - 1} was there before."
            raise errors.JournalUnavailable(problem, path=self._address, hint="the brokers have lost records")
        start = self._ends.first(partition, high if self._latest else low)
        position = found or Position(high=start - 1, start=start, topic_id=self.topic.topic_id)
        self._faults.at("take.ledger")
        epoch = self.epochs[partition] = self.epochs.get(partition, 0) + 1
        return Start(partition, epoch, position, low, new=found is None)

    def _read_ledger(self, wanted: set[int]) -> dict[int, Position]:
        """Return the last positions in the ledger: looked for at the end, then ever further back."""
        first, end = self._fetcher.bounds(self._own.ledger, LEDGER_PARTITION)
        found: dict[int, Position] = {}
        back = LAST_RECORDS
        while wanted - found.keys():
            start = max(first, end - back)
            for message in self._fetcher.read(self._own.ledger, LEDGER_PARTITION, start, end):
                key = read_key(message.key())
                if key is not None and key.kind == POSITION and key.partition in wanted:
                    found[key.partition] = read_position(message.value() or b"")
            if start == first:
                break
            back *= 8
        for position in found.values():
            if position.form > FORM:
                raise errors.JournalNewer(path=self._address, found=position.form, known=FORM)
        return {at: one for at, one in found.items() if one.topic_id == self.topic.topic_id}

    def _on_revoke(self, consumer: Consumer, taken: Sequence[TopicPartition]) -> None:
        with self.committing:
            self._give_up(taken)
        leaving = self._events.leaving([one.partition for one in taken if one.topic == self.topic.name])
        try:
            asyncio.run_coroutine_threadsafe(leaving, self._loop).result(LEAVING_S_MAX)
        except TimeoutError:
            pass  # the next owner is careful where it need not be
        except RuntimeError:  # the loop is closed
            leaving.close()
        self._unassign(consumer, taken)

    def _on_lost(self, consumer: Consumer, taken: Sequence[TopicPartition]) -> None:
        _log.warning("%s: the group went on without this worker; its results are dropped", self.topic.name)
        self._give_up(taken)
        self._unassign(consumer, taken)

    def _unassign(self, consumer: Consumer, taken: Sequence[TopicPartition]) -> None:
        if self._one_by_one:
            consumer.incremental_unassign(list(taken))
        else:
            consumer.unassign()

    def _give_up(self, taken: Sequence[TopicPartition]) -> None:
        silent = {one.partition for one in taken if one.topic == self._own.commands}
        self._given -= silent
        self._heard -= silent
        partitions = [one.partition for one in taken if one.topic == self.topic.name]
        for partition in partitions:
            self.epochs[partition] = self.epochs.get(partition, 0) + 1
        self._mine -= set(partitions)
        self._ends.forget(partitions)
        if partitions:
            self._tell(self._events.gone, partitions)

    def alive(self) -> bool:
        """Return whether the thread runs; it ends with an error that it has told."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Leave the group; waits for the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(REQUEST_TIMEOUT_S)
