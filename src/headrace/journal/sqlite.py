"""The embedded journal: the port of the runtime on one SQLite file."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import apsw

from headrace import errors
from headrace.codec.head import decode_head, decode_stamp, encode_stamp
from headrace.event.contract import NAME
from headrace.event.envelope import Stamp
from headrace.journal.append import Appender, event_row
from headrace.journal.connection import Connection, Patience
from headrace.journal.consumer import SqliteConsumer
from headrace.journal.file import mapped
from headrace.journal.handlers import born_as, rename, revived
from headrace.journal.notify import ALL, Tell, Watch, notify_path
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.replay_consumer import ReplayConsumer
from headrace.journal.replays import SqliteReplays
from headrace.journal.retention import SqliteSweeper
from headrace.journal.versions import Versions
from headrace.ports import (
    Chance,
    Clock,
    Faults,
    Keep,
    NewEvent,
    Offered,
    Receipt,
    Row,
    Subscription,
    TopicInfo,
    VersionInfo,
    VersionOffer,
    Worker,
)

PARTITIONS_DEFAULT = 16
#: The low ten bits of a place are the partition.
PARTITIONS_MAX = 1_024
#: Between two tries to renew a lease while others write.
RENEW_NAP_S = 0.0005
#: A worker that leaves waits so long for others who write: all is handed back, and its lease runs out anyway.
LEAVE_S_MAX = 1.0


class SqliteJournal:
    """Events, progress and versions in one file (``:memory:`` for tests: one connection, one process)."""

    #: Look for commits of others every few milliseconds, as where there is no inotify.
    polling = False

    def __init__(
        self, path: str, *, clock: Clock, chance: Chance, faults: Faults, durability: str = "full"
    ) -> None:
        self.address = path
        self._clock, self._chance, self._faults = clock, chance, faults
        self._durability = durability
        self._connection: Connection | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._topics: dict[str, TopicInfo] = {}
        self._stamps: dict[Stamp, int] = {}
        self._stamp_of: dict[int, Stamp] = {}
        self._audience: set[SqliteConsumer] = set()
        self._watch: Watch | None = None
        self._seen_version = 0

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open or create the file; harmless when it is open."""
        if self._connection is not None:
            return
        self._connection = db = Connection(
            self.address,
            durability=self._durability,
            clock=self._clock,
            chance=self._chance,
            faults=self._faults,
        )
        self._loop = asyncio.get_running_loop()
        self._appender = Appender(db, self._type_of)
        self._versions = Versions(db)
        db.on_commit = self._wake

    async def close(self) -> None:
        """Commit what is queued and close the file; harmless when it is closed."""
        if self._connection is None:
            return
        with suppress(errors.JournalForked):
            await self._appender.drain()
        if self._watch is not None:
            self._watch.close()
            self._watch = None
        self._connection.close()
        self._connection = None

    def connection(self) -> Connection:
        """Return the write connection, for those who look after the file; raises `JournalClosed`."""
        return self._db()

    def _db(self) -> Connection:
        if self._connection is None:
            raise errors.JournalClosed
        if self._loop is not asyncio.get_running_loop():
            self._connection.check_process()  # a forked child has a loop of its own, too
            raise errors.JournalLoopBound
        return self._connection

    def _wake(self, tell: Tell) -> None:
        for consumer in self._audience:
            consumer.hear(tell)

    def _wake_if_changed(self, tell: Tell) -> None:
        """Wake the consumers when another connection has committed; our own commits have told them.

        Where news may be our own, the file is asked whether others have committed too.  It says so once,
        and not to which topics; and who would tell may be late, or have died.
        """
        db = self._connection
        if db is None:
            return
        if isinstance(tell, bool) or db.told_so(tell):
            with suppress(errors.JournalError):
                found = db.changed_elsewhere()
                if found == self._seen_version:
                    return
                self._seen_version = found
            tell = ALL
        self._wake(tell)

    # --- topics and stamps --------------------------------------------------------------------

    async def topic(self, name: str, partitions: int | None = None) -> TopicInfo:
        """Return a topic, creating it when it is new."""
        found = self._topics.get(name) or self._read_topic(name) or await self._add_topic(name, partitions)
        if partitions is not None and found.partitions != partitions:
            raise errors.TopicMismatch(topic=name, found=found.partitions, asked=partitions)
        self._topics[name] = found
        return found

    def _read_topic(self, name: str) -> TopicInfo | None:
        db = self._db()
        row = db.row(db.queries.topic_get, (name,))
        return None if row is None else TopicInfo(*row)

    async def _add_topic(self, name: str, partitions: int | None) -> TopicInfo:
        if not NAME.fullmatch(name):
            raise errors.TopicInvalid(topic=name)
        count = PARTITIONS_DEFAULT if partitions is None else partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise errors.TopicInvalid(f"It has 1 to {PARTITIONS_MAX} partitions, not {count}.", topic=name)
        db = self._db()
        bindings = (name, self._chance.bytes(16), count, self._clock.wall_us())
        await db.write(lambda: db.ex(db.queries.topic_add, bindings))
        found = self._read_topic(name)
        if found is None:  # pragma: no cover - the row was just written
            raise errors.JournalCorrupt(path=self.address, problem=f"topic {name} vanished")
        return found

    async def intern(self, stamps: Sequence[Stamp]) -> list[int]:
        """Return the numbers of stamps, in order."""
        new = [stamp for stamp in stamps if stamp not in self._stamps]
        if new:
            db = self._db()
            numbers = await db.write(lambda: [self._intern(db, stamp) for stamp in new], tell=False)
            self._stamps.update(zip(new, numbers, strict=True))
            self._stamp_of.update(zip(numbers, new, strict=True))
        return [self._stamps[stamp] for stamp in stamps]

    def _intern(self, db: Connection, stamp: Stamp) -> int:
        value = encode_stamp(stamp)
        db.ex(db.queries.stamp_add, (value,))
        return int(db.row(db.queries.stamp_get, (value,))[0])

    async def stamp(self, number: int) -> Stamp | None:
        """Return the stamp of a number, or ``None`` when nobody interned it."""
        return self._known_stamp(self._db(), number)

    def _known_stamp(self, db: Connection, number: int) -> Stamp | None:
        found = self._stamp_of.get(number)
        if found is None:
            row = db.row(db.queries.stamp_value, (number,))
            try:
                found = None if row is None else decode_stamp(row[0])
            except ValueError:  # not one that Headrace wrote
                return None
            if found is not None:
                self._stamp_of[number] = found
        return found

    def _type_of(self, number: int) -> str:
        """Inside a transaction: the event type of a stamp, also of one that another app has interned."""
        found = self._known_stamp(self._db(), number)
        return "" if found is None else found.type

    # --- events -------------------------------------------------------------------------------

    #: Returns the envelope of a stored head; raises `ValueError` for bytes that are not one.
    decode_head = staticmethod(decode_head)
    emitted = staticmethod(event_row)

    @staticmethod
    def where(row: Row, /) -> str:
        """Return where an event lies, for people."""
        return f"offset {row[0]}"

    def place(self, topic: TopicInfo, partition: int) -> int:
        """Return topic and partition as one number."""
        return topic.id << 10 | partition

    async def publish(self, unit: Sequence[NewEvent]) -> list[Receipt]:
        """Write events, all or none; returns when they are on disk."""
        self._db()
        receipts = await self._appender.publish(unit)
        self._faults.at("publish.committed")
        return receipts

    # --- versions -----------------------------------------------------------------------------

    async def offer(self, offer: VersionOffer) -> Offered:
        """Make a version known; one never seen before becomes the active one."""
        self._db()
        return await self._versions.offer(offer)

    async def activate(self, handler: str, version: str) -> VersionInfo:
        """Make a known version the active one."""
        self._db()
        return await self._versions.activate(handler, version)

    # --- consuming ----------------------------------------------------------------------------

    async def subscribe(
        self, handler: str, topic: str, *, latest: bool = False, was: str | None = None
    ) -> Subscription:
        """Return the live subscription of a handler; a new one starts at the earliest retained event."""
        info = await self.topic(topic)
        db = self._db()
        if was is not None:
            await db.write(partial(rename, db, was, handler), tell=False)
        number = await db.write(lambda: self._subscribe(db, handler, info, latest=latest), tell=False)
        return Subscription(number, handler, info, born_as(db, handler))

    def sweeper(self, app: str, rules: Sequence[Keep], window_us: int) -> SqliteSweeper:
        """Return what keeps the topics of an app within their retention."""
        return SqliteSweeper(self._db(), self.topic, app, rules, window_us)

    def _subscribe(self, db: Connection, handler: str, topic: TopicInfo, *, latest: bool) -> int:
        db.ex(db.queries.handler_add, (handler,))
        handler_id = db.row(db.queries.handler_get, (handler,))[0]
        found = db.row(db.queries.subscription_get, (handler_id, topic.id))
        known = revived(db, handler_id, topic.id, handler) if found is None else int(found[0])
        if known is not None:
            return known
        now = self._clock.wall_us()
        number = int(db.row(db.queries.subscription_add, (handler_id, topic.id, now))[0])
        start = db.row(db.queries.event_last)[0] if latest else 0
        for partition in range(topic.partitions):
            db.ex(db.queries.position_add, (number, self.place(topic, partition), start))
        return number

    def reader(self) -> Reader:
        """Return a reader: on a connection of its own, or on the one there is in memory."""
        db = self._db()
        return Reader(db if db.memory else db.file)

    async def join(self, lease_ms: int) -> Worker:
        """Make this process known as a worker and begin to watch for the commits of others."""
        db = self._db()
        if self._watch is None and not db.memory:
            self._watch = Watch(notify_path(db.file), self._wake_if_changed, topics=(), polling=self.polling)
        boot, now = self._clock.boot_id(), self._clock.boot_ns()
        bindings = (os.getpid(), boot, now + lease_ms * 1_000_000, lease_ms, self._clock.wall_us())

        def work() -> int:
            db.ex(db.queries.worker_forget, (boot, now))
            db.ex(db.queries.member_forget)
            return int(db.row(db.queries.worker_add, bindings)[0])

        return SqliteWorker(db, await db.write(work, tell=False), lease_ms)

    def consumer(
        self, worker: Worker, subscription: Subscription, *, at_least_once: bool = False
    ) -> SqliteConsumer:
        """Return this worker's share of a subscription; one file has nothing cheaper than a transaction."""
        del at_least_once
        if self._watch is not None:
            self._watch.listen(subscription.topic.id)
        kind = ReplayConsumer if subscription.replay else SqliteConsumer
        return kind(self._db(), worker.id, subscription, self._audience)

    def replays(self) -> SqliteReplays:
        """Return the replays of this journal."""
        return SqliteReplays(self._db(), self._versions)


class SqliteWorker:
    """A process that holds leases; renews them on a connection of its own, from a thread."""

    def __init__(self, db: Connection, number: int, lease_ms: int) -> None:
        self.id = number
        self.lease_ms = lease_ms
        self._db = db
        self._own: apsw.Connection | None = None
        self._renew_sql = load("queries.sql").worker_renew

    def renew(self) -> bool:
        """Move the end of the lease; returns ``False`` when the worker was struck off."""
        if self._db.memory:
            return True  # one connection, one process: nobody could take over
        clock = self._db.clock
        with mapped(self._db.path):
            if self._own is None:
                self._own = apsw.Connection(self._db.file)
                self._own.execute("PRAGMA synchronous=NORMAL")
                self._own.execute("PRAGMA wal_autocheckpoint=0")
            # SQLite's own busy handler sleeps up to 0.1 s between two tries: beside busy writers it starves.
            end_ns = clock.boot_ns() + self.lease_ms * 1_000_000 // 4
            while True:
                until = clock.boot_ns() + self.lease_ms * 1_000_000
                bindings = (self.id, os.getpid(), clock.boot_id(), until, self.lease_ms, clock.wall_us())
                try:
                    return bool(self._own.execute(self._renew_sql, bindings).fetchall())
                except apsw.BusyError:
                    if clock.boot_ns() >= end_ns:
                        raise errors.JournalBusy(path=self._db.path, waited_s=self.lease_ms / 4_000) from None
                clock.nap(RENEW_NAP_S)

    async def leave(self) -> None:
        """Note that this worker has stopped."""
        bindings = (self._db.clock.wall_us(), self.id)
        patience = Patience(self._db.clock)
        patience.hurry(LEAVE_S_MAX)
        work = partial(self._db.ex, self._db.queries.worker_leave, bindings)
        await self._db.write(work, patience=patience)
        if self._own is not None:
            self._own.close()
            self._own = None
