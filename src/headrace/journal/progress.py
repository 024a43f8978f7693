"""How far each handler has come: published = waiting + running + parked + done + dead + expired."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from headrace.journal.connection import Connection
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.versions import info_of
from headrace.ports import Clock, OpenState, Subscription, Survey, VersionInfo

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
#: Events that a survey looks at: a larger backlog reads as this one.
SURVEY_ROWS_MAX = 100_000


class Owner(NamedTuple):
    """A worker that holds partitions of a subscription."""

    pid: int
    partitions: int
    #: False when its lease has run out: another worker will take over.
    alive: bool


class Progress(NamedTuple):
    """One subscription, counted from its start."""

    handler: str
    topic: str
    active: VersionInfo | None
    partitions: int
    published: int
    #: Not taken yet.
    untaken: int
    #: Taken before; by state: retry, blocked, returned, redriven, parked.
    open: dict[str, int]
    running: int
    done: int
    dead: int
    expired: int
    taken: int
    owners: tuple[Owner, ...]
    #: Live workers that serve it; and live workers of the journal, whatever they serve.
    serving: int
    workers: int
    oldest_waiting: datetime | None

    @property
    def parked(self) -> int:
        """Events that wait for something else than time."""
        return self.open.get(OpenState.PARKED, 0)

    @property
    def waiting(self) -> int:
        """Events that wait for their turn: new ones, and those that were taken before."""
        return self.untaken + sum(self.open.values()) - self.parked

    @property
    def sound(self) -> bool:
        """Does the equation hold?"""
        closed = self.done + self.dead + self.expired
        taken = self.running + sum(self.open.values()) + closed
        return self.published == self.untaken + self.taken and self.taken == taken

    @property
    def trouble(self) -> str:
        """Why nothing moves although something waits, or an empty string."""
        if not self.waiting or any(owner.alive for owner in self.owners):
            return ""
        if not self.workers:
            return "no live worker"
        if self.serving:
            return "no partition has an owner yet"
        return "no live worker has the active version" if self.active else "no version is active yet"


class Topic(NamedTuple):
    """A topic and how much it holds."""

    name: str
    partitions: int
    events: int


def moment(us: int) -> datetime:
    """Return microseconds since 1970 as a time."""
    return _EPOCH + timedelta(microseconds=us)


def topics(reader: Reader) -> list[Topic]:
    """Return the topics of a journal, by name."""
    return [Topic(*row) for row in reader.rows(load("progress.sql").topics)]


def progress(reader: Reader, clock: Clock) -> list[Progress]:
    """Return the progress of every live subscription, all at one moment."""
    queries: Any = load("progress.sql")
    boot, now = clock.boot_id(), clock.boot_ns()
    with reader.snapshot():
        counts = {row[0]: row[1:] for row in reader.rows(queries.counts)}
        opened = _by_subscription(reader.rows(queries.open_counts))
        owners = _by_subscription(reader.rows(queries.owners))
        oldest = dict(reader.rows(queries.oldest_unfinished))
        serving = dict(reader.rows(queries.members, (boot, now)))
        ((workers,),) = reader.rows(queries.workers, (boot, now))
        found: list[Progress] = []
        for sub, handler, topic, active in reader.rows(queries.subscriptions):
            partitions, published, untaken, taken, running, done, dead, expired = counts.get(sub, (0,) * 8)
            found.append(
                Progress(
                    handler=handler,
                    topic=reader.topic(topic),
                    active=version(reader, active),
                    partitions=partitions,
                    published=published,
                    untaken=untaken,
                    open={state: count for state, count in opened[sub] if state != OpenState.RUNNING},
                    running=running,
                    done=done,
                    dead=dead,
                    expired=expired,
                    taken=taken,
                    owners=tuple(
                        Owner(pid, held, its_boot == boot and until > now)
                        for pid, its_boot, until, held in owners[sub]
                    ),
                    serving=serving.get(sub, 0),
                    workers=workers,
                    oldest_waiting=_time_of(reader, oldest.get(sub)),
                )
            )
    return found


def survey(reader: Reader, subscription: Subscription, worker: int, clock: Clock) -> Survey:
    """Return how far behind the partitions of one worker are."""
    queries: Any = load("progress.sql")
    sub, topic = subscription.id, subscription.topic.id
    with reader.snapshot():
        lag = {partition: 0 for (partition,) in reader.rows(queries.held, (sub, worker))}
        lag |= dict(reader.rows(queries.lags, (sub, topic, worker, SURVEY_ROWS_MAX)))
        ((unowned,),) = reader.rows(queries.unowned, (sub, clock.boot_id(), clock.boot_ns()))
    return Survey(lag, unowned)


async def surveyed(db: Connection, subscription: Subscription, worker: int) -> Survey:
    """Look, in a thread on a connection of its own: many rows must not hold up the loop."""
    if db.memory:
        return survey(Reader(db), subscription, worker, db.clock)

    def look() -> Survey:
        reader = Reader(db.path)
        try:
            return survey(reader, subscription, worker, db.clock)
        finally:
            reader.close()

    return await asyncio.to_thread(look)


def version(reader: Reader, number: int | None) -> VersionInfo | None:
    """Return a version by its number."""
    rows = reader.rows(load("progress.sql").version_info, (number,))
    return info_of(rows[0]) if rows else None


def _by_subscription(rows: Iterable[tuple[Any, ...]]) -> defaultdict[int, list[tuple[Any, ...]]]:
    found: defaultdict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for sub, *rest in rows:
        found[sub].append(tuple(rest))
    return found


def _time_of(reader: Reader, offset: int | None) -> datetime | None:
    event = None if offset is None else reader.at(offset)
    return None if event is None or event.problem else event.envelope.time
