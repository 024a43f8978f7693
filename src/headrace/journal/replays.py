"""Replays in one SQLite journal: what each is allotted, in one transaction, and how far it is."""

from __future__ import annotations

import json
from functools import partial
from typing import Any, NamedTuple

from headrace import errors
from headrace.journal.allotment import REASONS, Cut, Interval, allotted, union, wanted
from headrace.journal.connection import Connection
from headrace.journal.handlers import born_as
from headrace.journal.queries import load
from headrace.journal.reader import Reader
from headrace.journal.replay_plan import Ground, counts_of, ground_of, of_time, window_of
from headrace.journal.versions import Versions, info_of, meant
from headrace.ports import Subscription, TopicInfo, VersionInfo, VersionOffer
from headrace.ports.replay import Order, Replay, ReplayPlan, ReplayState

#: A plan is made again when somebody has redriven or replayed meanwhile; nobody does that for long.
TRIES_MAX = 20


class _Draft(NamedTuple):
    """A plan, and what it was made of."""

    plan: ReplayPlan
    ground: Ground
    window: list[Interval]
    cuts: dict[int, list[Cut]]


class SqliteReplays:
    """Plans, begins and extends replays."""

    def __init__(self, db: Connection, versions: Versions) -> None:
        self._db, self._versions = db, versions
        self._own: Any = load("replay.sql")

    # --- the port -----------------------------------------------------------------------------

    async def plan(self, order: Order, offer: VersionOffer) -> ReplayPlan:
        """Return what `begin` would allot."""
        version = self._version(order, offer)
        reader = self._reader()
        try:
            return self._draft(reader, order, version).plan
        finally:
            reader.close()

    async def begin(self, order: Order, offer: VersionOffer) -> Replay | ReplayPlan:
        """Allot in one transaction, or go on with an unfinished replay of the same order.

        Events are counted before, without the lock that live work needs: they do not change.  Under it the
        plan is made again; where it is another one by then, nothing is written, and it begins anew.
        """
        reader = self._reader()
        try:
            for _ in range(TRIES_MAX):
                version = self._version(order, offer)  # somebody may have made it known meanwhile
                under_way = self._under_way(order, version)
                if under_way is not None:
                    return under_way
                draft = self._draft(reader, order, version)
                if not (draft.plan.allotted or order.follow):
                    return draft.plan
                begun = await self._db.write(partial(self._begin, order, offer, draft))
                if begun is not None:
                    self._db.faults.at("replay.begun")
                    return begun
        finally:
            reader.close()
        problem = f"dead letters were redriven, or other replays begun, {TRIES_MAX} times meanwhile"
        raise errors.ReplayRefused(handler=order.handler, problem=problem, hint="try again")

    async def extend(self, replay: Subscription) -> int:
        """Allot what live has closed since."""
        if not self._news(replay):
            return 0
        count = await self._db.write(partial(self._extend, replay), tell=False)
        self._db.faults.at("replay.extended")
        return count

    async def state(self, replay: Subscription) -> ReplayState:
        """Return how far it is."""
        count, emitted, running, done, dead, expired, complete = self._db.row(self._own.state, (replay.id,))
        return ReplayState(count, running, done, dead, emitted, bool(complete), expired)

    async def live_load(self) -> tuple[int, int]:
        """Return how many events live handlers have taken so far, and have in hand."""
        taken, running = self._db.row(self._own.live_load)
        return taken, running

    # --- versions -----------------------------------------------------------------------------

    def _version(self, order: Order, offer: VersionOffer) -> VersionInfo:
        """Return the version that the process can run; one that nobody knows yet has the number 0."""
        found = self._versions.find(offer)
        info = self._versions.info(found[0]) if found else self._to_be(offer)
        return meant(info, order.handler, order.version)

    def _to_be(self, offer: VersionOffer) -> VersionInfo:
        known, following = self._db.row(self._own.epoch, (offer.model, offer.digest))
        epoch = following if known is None else known
        return info_of(
            (0, offer.handler, offer.declared, offer.model, offer.digest, epoch, offer.model_declared)
        )

    # --- planning -----------------------------------------------------------------------------

    def _reader(self) -> Reader:
        return Reader(self._db if self._db.memory else self._db.file)

    def _draft(self, reader: Reader, order: Order, version: VersionInfo) -> _Draft:
        with reader.snapshot():
            ground = ground_of(reader.rows, order, version.id or None)
        window = window_of(reader, order, ground)
        cuts = ground.cuts(order, window, version.id or None)
        counts = counts_of(reader, ground.topic, cuts)
        skipped = {reason: counts[reason] for reason in REASONS if counts[reason]}
        return _Draft(ReplayPlan(version, counts["allotted"], skipped), ground, window, cuts)

    def _under_way(self, order: Order, version: VersionInfo) -> Replay | None:
        """Return an unfinished replay of the same order."""
        live = self._db.row(self._own.live, (order.handler, order.topic))
        if live is None or not version.id:
            return None
        _, topic, name, partitions, handler = live
        same = (handler, topic, version.id, order.side, order.again, wanted(order))
        for sub, count, skipped in self._db.rows(self._own.same, same):
            *_, complete = self._db.row(self._own.state, (sub,))
            if order.follow or not complete:
                of = self._subscription(sub, order.handler, TopicInfo(topic, name, partitions))
                return Replay(of, ReplayPlan(version, count, json.loads(skipped)), resumed=True)
        return None

    def _subscription(self, sub: int, handler: str, topic: TopicInfo) -> Subscription:
        return Subscription(sub, handler, topic, born_as(self._db, handler), replay=True)

    # --- beginning ----------------------------------------------------------------------------

    def _begin(self, order: Order, offer: VersionOffer, draft: _Draft) -> Replay | None:
        """Inside a transaction: allot what was planned; ``None`` when it is another plan by now."""
        plan = draft.plan
        found = self._versions.find(offer)
        known = found[0] if found else None
        under_way = self._under_way(order, plan.version)
        if under_way is not None:
            return under_way  # somebody was quicker
        ground = ground_of(self._db.rows, order, known).only(draft.ground)
        if (known or 0) != plan.version.id or ground.cuts(order, draft.window, known) != draft.cuts:
            return None
        version = self._versions.know(offer, trial=True)
        now = self._db.clock.wall_us()
        ((sub,),) = self._db.rows(self._own.subscription_add, (ground.handler, ground.topic.id, now))
        about = (order.side, order.again, wanted(order), int(order.follow), plan.allotted)
        self._db.ex(self._own.replay_add, (sub, version, *about, json.dumps(plan.skipped), now))
        self._allot(sub, version, order, ground, draft.cuts)
        self._db.faults.at("replay.allotted")
        plan = plan._replace(version=self._versions.info(version))
        return Replay(self._subscription(sub, order.handler, ground.topic), plan, resumed=False)

    def _allot(
        self, sub: int, version: int, order: Order, ground: Ground, cuts: dict[int, list[Cut]]
    ) -> None:
        given = {tp: allotted(found) for tp, found in cuts.items()}
        if order.follow:  # how far was looked, also where nothing was found
            for tp, line in ground.lines.items():
                given[tp].append((line.closed, line.closed))
        start = min(found[0][0] for found in given.values() if found)
        for tp, found in given.items():
            self._db.ex(self._db.queries.position_add, (sub, tp, start))
            self._db.ex(self._db.queries.range_add, (sub, tp, start, version))
            for after, upto in found:
                self._db.ex(self._own.allot, (sub, tp, after, upto))

    # --- following ----------------------------------------------------------------------------

    def _order(self, replay: Subscription) -> tuple[Order, int]:
        """Return what of an order concerns what is allotted later, and the version."""
        version, again, wanted = self._db.row(self._own.order_of, (replay.id,))
        bounds: dict[str, Any] = json.loads(wanted)
        order = Order(
            handler=replay.handler,
            topic=replay.topic.name,
            again=again,
            from_us=bounds.get("from_us"),
            from_offset=bounds.get("from_offset"),
            follow=True,
        )
        return order, version

    def _ends(self, replay: Subscription) -> dict[int, int]:
        return dict(self._db.rows(self._own.ends, (replay.id,)))

    def _news(self, replay: Subscription) -> bool:
        """Return whether live has closed something that was not looked at."""
        ends, lines = self._ends(replay), ground_of(self._db.rows, *self._order(replay)).lines
        return any(line.closed > ends[tp] for tp, line in lines.items())

    def _extend(self, replay: Subscription) -> int:
        """Inside a transaction: allot what live has closed behind what was looked at before."""
        order, version = self._order(replay)
        ends, ground = self._ends(replay), ground_of(self._db.rows, order, version)
        reader = Reader(self._db)  # of the same transaction
        cuts: dict[int, list[Cut]] = {}
        for tp, line in ground.lines.items():
            part = union([(max(ends[tp], (order.from_offset or 1) - 1), line.closed)])
            cuts[tp] = ground.cut(order, tp, of_time(reader, order, ground.topic, part), version)
        count = counts_of(reader, ground.topic, cuts)["allotted"]
        for tp, line in ground.lines.items():
            for after, upto in allotted(cuts[tp]):
                if self._db.row(self._own.allot_on, (replay.id, tp, after, upto)) is None:
                    self._db.ex(self._own.allot, (replay.id, tp, after, upto))
            if line.closed > ends[tp]:
                self._db.ex(self._own.allot_looked, (replay.id, tp, ends[tp]))
                self._db.ex(self._own.allot, (replay.id, tp, line.closed, line.closed))
        self._db.ex(self._own.replay_grows, (count, replay.id))
        return count
