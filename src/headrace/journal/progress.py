"""How far each handler has come: published = waiting + running + parked + done + dead + expired."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from headrace.journal.connection import Connection
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.versions import info_of
from headrace.ports import Clock, OpenState, Subscription, Survey, VersionInfo
from headrace.ports.look import Owner, Progress, Replayed, Topic, moment

#: Events that a survey looks at: a larger backlog reads as this one.
SURVEY_ROWS_MAX = 100_000


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
                    owners=_owners(owners[sub], boot, now),
                    serving=serving.get(sub, 0),
                    workers=workers,
                    oldest_waiting=_time_of(reader, oldest.get(sub)),
                )
            )
    return found


def replays(reader: Reader, clock: Clock) -> list[Replayed]:
    """Return every replay, all at one moment."""
    queries: Any = load("progress.sql")
    boot, now = clock.boot_id(), clock.boot_ns()
    with reader.snapshot():
        opened = _by_subscription(reader.rows(queries.open_counts))
        owners = _by_subscription(reader.rows(queries.owners))
        return [
            Replayed(
                handler=handler,
                topic=reader.topic(topic),
                version=version(reader, number),
                side=side,
                again=again,
                follow=bool(follow),
                allotted=allotted,
                waiting=0 if complete else allotted - running - done - dead - expired,
                open={state: count for state, count in opened[sub] if state != OpenState.RUNNING},
                running=running,
                done=done,
                dead=dead,
                emitted=emitted,
                skipped=json.loads(skipped),
                complete=bool(complete),
                owners=_owners(owners[sub], boot, now),
                begun=moment(begun_us),
                expired=expired,
            )
            for (
                sub, handler, topic, number, side, again, follow, allotted, skipped, emitted, running, done,
                dead, expired, complete, begun_us,
            ) in reader.rows(queries.replays)
        ]  # fmt: skip


def _owners(found: Iterable[tuple[Any, ...]], boot: str, now: int) -> tuple[Owner, ...]:
    return tuple(Owner(pid, held, its_boot == boot and until > now) for pid, its_boot, until, held in found)


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
