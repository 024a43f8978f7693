"""Replays of a journal on Kafka: what each is allotted, once, and who works on it.

A replay is a consumer group of its own, with a ledger of its own; the code that claims, settles and takes
over is that of live work.  What is allotted stands in a topic of the handler, written by one at a time:
`Writer`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from headrace import errors
from headrace.codec.allotment import Allotment, grown
from headrace.event.contract import NAME
from headrace.journal.allotment import Interval, union, wanted
from headrace.journal.kafka.allotted import Allotted
from headrace.journal.kafka.allotter import Allotments, Quicker, Writer
from headrace.journal.kafka.client import Topic
from headrace.journal.kafka.course import Course, where_of
from headrace.journal.kafka.draft import Draft, Drafts
from headrace.journal.kafka.log import Log, own_topics
from headrace.journal.kafka.past import Past, no_history
from headrace.journal.kafka.replay_consumer import KafkaReplayConsumer
from headrace.journal.kafka.share import KafkaWorker, Wish
from headrace.journal.kafka.survey import Survey
from headrace.journal.kafka.topics import replay_name, replay_number, split_name
from headrace.journal.versions import meant
from headrace.ports import Clock, Subscription, VersionInfo, VersionOffer
from headrace.ports.replay import Order, Replay, ReplayPlan, ReplayState

#: Somebody else allots meanwhile, or a model gets the epoch that was planned with; nobody does that for long.
TRIES_MAX = 20
#: Between two of them, at most: whoever is quick lets the other finish.
AGAIN_S_MAX = 0.5
#: A replay that follows is allotted more so often: each time is a transaction, and one pass over the index.
EXTEND_S = 1.0


class _Work(NamedTuple):
    """A replay that this process has begun, or goes on with."""

    order: Order
    version: VersionInfo
    allotment: Allotment
    allotted: Allotted
    allotments: Allotments
    course: Course
    drafts: Drafts


class KafkaReplays:
    """Plans, begins and extends replays."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._opened: Survey | None = None
        self._works: dict[int, _Work] = {}
        self._extend_ns = 0

    @property
    def _survey(self) -> Survey:
        self._opened = self._opened or Survey(self._log)
        return self._opened

    async def close(self) -> None:
        """Disconnect."""
        survey, self._opened = self._opened, None
        if survey is not None:
            await survey.close()

    # --- the port -----------------------------------------------------------------------------

    async def plan(self, order: Order, offer: VersionOffer) -> ReplayPlan:
        """Return what `begin` would allot."""
        version = await self._version(order, offer)
        others = await Allotments(self._log, order.handler).read()
        draft = await (await self._drafts(order)).draft(version, others)
        return draft.plan

    async def begin(self, order: Order, offer: VersionOffer) -> Replay | ReplayPlan:
        """Allot in one transaction, or go on with an unfinished replay of the same order.

        History is read and counted before, while others may allot as well: what live has closed as done stays
        so.  Where another replay was allotted some of it meanwhile, nothing is written, and it begins anew.
        """
        allotments, drafts = Allotments(self._log, order.handler), await self._drafts(order)
        for _ in range(TRIES_MAX):
            version = await self._version(order, offer)
            others = await allotments.read()
            found = await self._under_way(order, version, others, drafts.topic)
            if found is None:
                draft = await drafts.draft(version, others)
                if not (draft.plan.allotted or order.follow):
                    return draft.plan
                version = await self._log.versions.try_out(offer)
                if version.name != draft.plan.version.name:
                    continue  # somebody else's model has got the epoch
                draft = draft._replace(plan=draft.plan._replace(version=version))
                allotment = await self._allot(order, draft, allotments, drafts)
                if allotment is None:
                    await self._log.clock.sleep(AGAIN_S_MAX * self._log.chance.unit())
                    continue
                self._log.faults.at("replay.begun")
            else:
                allotment = found
            allotted = Allotted(allotment.parts, where_of(allotment), bytes.fromhex(allotment.topic))
            work = _Work(
                order, version, allotment, allotted, allotments,
                Course(self._survey, order.handler, allotment.replay), drafts,
            )  # fmt: skip
            return await self._begun(work, resumed=found is not None)
        problem = f"other replays were begun {TRIES_MAX} times meanwhile"
        raise errors.ReplayRefused(handler=order.handler, problem=problem, hint="try again")

    async def _begun(self, work: _Work, *, resumed: bool) -> Replay:
        allotment, topic = work.allotment, await self._log.topic(work.order.topic)
        number = int(allotment.replay, 16)
        self._works[number] = work
        subscription = Subscription(number, work.order.handler, topic, replay=True)
        plan = ReplayPlan(work.version, allotment.allotted, allotment.skipped)
        return Replay(subscription, plan, resumed=resumed)

    async def state(self, replay: Subscription) -> ReplayState:
        """Return how far it is."""
        work = self._works[replay.id]
        return await work.course.state(work.allotment)

    async def live_load(self) -> tuple[int, int]:
        """Return a number that grows with what live handlers take.

        What they have in hand stands in their ledgers, which would have to be read each time: it is not told.
        """
        claims = await self._log.index.view.claims()
        return sum(one.upto for one in claims if not split_name(one.subscription)[1]), 0

    def consumer(self, worker: KafkaWorker, replay: Subscription) -> KafkaReplayConsumer:
        """Return a worker's share of a replay that was begun here."""
        work = self._works[replay.id]
        name = replay_name(replay.handler, work.allotment.replay)
        wish = Wish(latest=False, at_least_once=False, allotted=work.allotted)
        return KafkaReplayConsumer(self._log, worker, replay._replace(handler=name), wish)

    # --- planning -----------------------------------------------------------------------------

    async def _version(self, order: Order, offer: VersionOffer) -> VersionInfo:
        """Return the version that the process can run; one that nobody knows yet has the number 0."""
        return meant((await self._survey.known()).tried(offer), order.handler, order.version)

    async def _drafts(self, order: Order) -> Drafts:
        topic = await self._log.opened().find(order.topic)
        if topic is None:
            raise no_history(order.handler, order.topic)
        longest = own_topics(replay_name(order.handler, replay_number("")))[0]
        if not NAME.fullmatch(longest):  # before it is allotted what it could never handle
            problem = f"the topics of a replay are named after the handler: {longest} is too long a name"
            raise errors.ReplayRefused(handler=order.handler, problem=problem, hint="give it a shorter name")
        return Drafts(self._survey, Past(self._survey, order, topic), order)

    async def _under_way(
        self, order: Order, version: VersionInfo, known: Sequence[Allotment], topic: Topic
    ) -> Allotment | None:
        """Return an unfinished replay of the same order."""
        for one in reversed([one for one in known if _is_same(one, order, version.name, topic)]):
            state = await Course(self._survey, order.handler, one.replay).state(one)
            if order.follow or not state.complete:
                return one
        return None

    # --- allotting ----------------------------------------------------------------------------

    async def _allot(
        self, order: Order, draft: Draft, allotments: Allotments, drafts: Drafts
    ) -> Allotment | None:
        """Allot what was planned; ``None`` when somebody else was given some of it meanwhile."""
        version, topic = draft.plan.version.name, drafts.topic
        same = sum(_is_same(one, order, version, topic) for one in draft.others)
        allotment = Allotment(
            replay=_number(order, version, topic, same),
            version=version,
            topic=topic.topic_id.hex(),
            side=order.side,
            again=order.again,
            wanted=wanted(order),
            at_us=self._log.clock.wall_us(),
            parts=draft.parts,
            allotted=draft.plan.allotted,
            skipped=dict(draft.plan.skipped),
            follow=order.follow,
            looked=draft.looked if order.follow else {},
        )
        allotments.check(allotment)
        writer = await allotments.writer()
        now = await allotments.read()
        if sum(_is_same(one, order, version, topic) for one in now) > same or drafts.clashes(draft, now):
            return None
        return allotment if await _written(self._log.clock, writer, allotment, allotments, now) else None

    # --- following ----------------------------------------------------------------------------

    async def extend(self, replay: Subscription) -> int:
        """Allot to a replay that follows what live has closed since."""
        work, now_ns = self._works[replay.id], self._log.clock.boot_ns()
        if now_ns < self._extend_ns:
            return 0
        self._extend_ns = now_ns + int(EXTEND_S * 1e9)
        others = await work.allotments.read()
        known = next(one for one in others if one.replay == work.allotment.replay)
        if not await work.drafts.news(known.looked):
            return self._grown(work, known, replay)  # another process may have been here
        draft = await work.drafts.draft(work.version, others, known.looked)
        more = grown(known, _joined(known, draft), known.looked | draft.looked, draft.plan.allotted)
        work.allotments.check(more)
        writer = await work.allotments.writer()
        now = await work.allotments.read()
        if known not in now or work.drafts.clashes(draft, now):
            return 0  # the next time
        if not await _written(self._log.clock, writer, more, work.allotments, now):
            return 0
        self._log.faults.at("replay.extended")
        return self._grown(work, more, replay)

    def _grown(self, work: _Work, known: Allotment, replay: Subscription) -> int:
        """Take note of what was allotted since; return how many events that are."""
        count = known.allotted - work.allotment.allotted
        work.allotted.grow(known.parts)
        self._works[replay.id] = work._replace(allotment=known)
        return count


async def _written(
    clock: Clock, writer: Writer, record: Allotment, allotments: Allotments, before: Sequence[Allotment]
) -> bool:
    """Write an allotment; ``False`` where somebody else was quicker, or the topic has to say if it stands.

    Raises what else has hindered it: an outage, or rights that are missing, are no reason to begin anew.
    """
    try:
        await writer.write(record)
    except Quicker as fault:
        if fault.sure:
            return False
        await clock.sleep(AGAIN_S_MAX)  # a rival may have begun, and not committed yet
        if await allotments.read() != before:
            return False
        raise fault.error from fault
    return True


def _joined(known: Allotment, draft: Draft) -> dict[int, list[Interval]]:
    ats = known.parts.keys() | draft.parts.keys()
    return {at: union([*known.parts.get(at, []), *draft.parts.get(at, [])]) for at in sorted(ats)}


def _is_same(one: Allotment, order: Order, version: str, topic: Topic) -> bool:
    """Return whether an allotment was made for an order."""
    return (one.version, one.side, one.again, one.wanted, one.topic) == (
        version, order.side, order.again, wanted(order), topic.topic_id.hex(),
    )  # fmt: skip


def _number(order: Order, version: str, topic: Topic, same: int) -> str:
    """Return the number of a replay: that of an order, and how often it was allotted something before."""
    told = order.handler, version, order.side, order.again, wanted(order), topic.topic_id.hex(), same
    return replay_number(repr(told))
