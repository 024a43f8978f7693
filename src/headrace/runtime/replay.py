"""History through one version of a handler: a worker of its own that gives way to live work."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace import errors
from headrace.event.contract import NAME
from headrace.ports import Batch, Clock, Consumer, Outcome, Settled, Survey, VersionInfo
from headrace.ports.replay import Order, Replay, ReplayPlan, Replays, ReplayState
from headrace.runtime.handlers import Handler
from headrace.runtime.plan import Beside, Plan, side_topic
from headrace.runtime.serving import Pinned
from headrace.runtime.worker import Worker

#: Events claimed at once: a commit of more would keep the writers of live work waiting.
BATCH_MAX = 64
#: Beside live work, where less is claimed at once.
BATCH_BESIDE_LIVE_MAX = 32
#: Live handlers that have taken something within this time are at work.
LIVE_MS = 1_000.0
#: Where a claim is no part of a commit, nobody waits for it: what a transaction costs is shared by more.
BATCH_APART_MAX, BATCH_APART_BESIDE_LIVE_MAX = 256, 128
#: Beside them a replay rests after each batch, so many times as long as it took: a twentieth of the time is
#: its own, or one live event in twenty would feel it, and the p95 with it.
REST_TIMES = 19
#: So long at most, for the sake of handlers that take seconds.
REST_MS_MAX = 250.0
#: While live handlers have events in hand a batch waits this long at most, so that a replay beside work
#: that never rests still gets on (20 batches a second).
YIELD_MS_MAX = 50.0
#: Between two looks whether they still have.
YIELD_LOOK_MS = 2.0
#: Between two looks whether all is done, and at what live has closed meanwhile.
LOOK_S = 0.1


class Pace:
    """A consumer that takes little at a time, no more than so many a second, and lets live work go first."""

    def __init__(self, consumer: Consumer, replays: Replays, clock: Clock, rate: float | None) -> None:
        self._consumer, self._replays, self._clock = consumer, replays, clock
        self._rate = rate
        #: When the next event may be taken, and since when live work goes first, on the boot clock.
        self._next_ns = clock.boot_ns()
        self._yields_ns = 0
        self._pause_s = 0.0
        #: When the last batch was claimed; how much live has taken, and when it was seen to have taken more.
        self._began_ns = 0
        self._live_taken = -1
        self._live_ns = 0
        #: Events in hand.
        self._aloft = 0
        self.claims_apart, self.settle_after_ms = consumer.claims_apart, consumer.settle_after_ms

    async def take(self, limit: int, version: VersionInfo) -> Batch | None:
        """Claim events, unless it is too early."""
        self._pause_s = await self._early_s()
        if self._pause_s:
            return None
        batch = await self._consumer.take(min(limit, self._batch_max()), version)
        if batch is not None:
            self._yields_ns, self._began_ns = 0, self._clock.boot_ns()
            self._aloft += len(batch.rows)
            if self._rate is not None:
                now = self._clock.boot_ns()
                self._next_ns = max(now, self._next_ns) + int(len(batch.rows) * 1e9 / self._rate)
        return batch

    def _batch_max(self) -> int:
        """Return how much may be claimed at once: of a rate a tenth of a second's worth."""
        alone, beside = BATCH_MAX, BATCH_BESIDE_LIVE_MAX
        if self.claims_apart:
            alone, beside = BATCH_APART_MAX, BATCH_APART_BESIDE_LIVE_MAX
        most = beside if self._beside_live() else alone
        return most if self._rate is None else max(1, min(most, int(self._rate / 10)))

    def _beside_live(self) -> bool:
        return self._clock.boot_ns() - self._live_ns < LIVE_MS * 1e6

    async def _early_s(self) -> float:
        """Return how long to wait, or 0."""
        now = self._clock.boot_ns()
        if now < self._next_ns:
            return (self._next_ns - now) / 1e9
        taken, running = await self._replays.live_load()
        if taken != self._live_taken:
            # What it had taken before this process came says nothing of now.
            self._live_ns = now if self._live_taken >= 0 else 0
            self._live_taken = taken
        if running:
            self._live_ns = now
        left_s = (self._began_ns - now) / 1e9 + REST_MS_MAX / 1000
        if self._aloft and left_s > 0 and self._beside_live():
            # One batch at a time, or they would follow on each other without a rest between; but those of
            # handlers that wait for seconds burden nobody.
            return left_s
        if not running:
            return 0.0
        self._yields_ns = self._yields_ns or now
        return YIELD_LOOK_MS / 1000 if now - self._yields_ns < YIELD_MS_MAX * 1e6 else 0.0

    async def settle(self, parts: Sequence[tuple[Batch, Outcome]], *, limit: int = 0) -> list[Settled]:
        """Commit outcomes; the next batch is claimed by itself, when its time has come."""
        del limit
        settled = await self._consumer.settle(parts)
        self._pause_s = 0.0  # it was until the end of the batch
        for (_, outcome), answer in zip(parts, settled, strict=True):
            self._aloft -= len(outcome) - len(answer.conflicts)  # those come once more, as dead letters
        now = self._clock.boot_ns()
        if self._beside_live():
            rest_ns = min(REST_TIMES * (now - self._began_ns), int(REST_MS_MAX * 1e6))
            self._next_ns = max(self._next_ns, now + rest_ns)
        return settled

    async def wait(self, seconds: float) -> None:
        """Return when there may be something to take."""
        pause_s, self._pause_s = self._pause_s, 0.0
        if pause_s and not self._aloft:
            # Commits of live work do not wake it: that costs both.
            await self._clock.sleep(min(seconds, pause_s))
        else:
            await self._consumer.wait(min(seconds, pause_s) if pause_s else seconds)

    def more(self) -> bool:
        """Return whether `take` may find something at once."""
        return not self._pause_s and self._consumer.more()

    @property
    def rebalances(self) -> int:
        """How often the partitions held were others than before."""
        return self._consumer.rebalances

    async def balance(self) -> int:
        """Take partitions up to the fair share."""
        return await self._consumer.balance()

    def wake(self) -> None:
        """Have `wait` return."""
        self._consumer.wake()

    def hurry(self, within_s: float) -> None:
        """Wait so much longer at most for others who write."""
        self._consumer.hurry(within_s)

    def next_due_ns(self) -> int | None:
        """Return when the earliest waiting event may run."""
        return self._consumer.next_due_ns()

    def held(self) -> int:
        """Return the number of partitions held."""
        return self._consumer.held()

    async def answers(self) -> None:
        """Ask each part of the journal."""
        await self._consumer.answers()

    async def survey(self) -> Survey:
        """Look how far behind the partitions held are."""
        return await self._consumer.survey()

    async def release(self) -> int:
        """Hand back every partition."""
        return await self._consumer.release()


def subscription_name(order: Order) -> str:
    """Return what emitted ids are derived from: as live, or of this side (and ledger) alone."""
    if order.side is None:
        return order.handler
    return "~".join([order.handler, order.side, *([order.again] if order.again else [])])


class ReplayWorker(Worker):
    """Runs one replay in this process; another process with the same order shares it."""

    def __init__(self, like: Worker, order: Order, *, rate: float | None = None) -> None:
        super().__init__(**like.parts())
        self._order, self._rate = order, rate
        self._replays = self._journal.replays()
        (self._handler,) = self._handlers
        check_order(order, self._handler)
        inference = self._inference(self._handler)
        self._pinned = Pinned(self._handler, self._journal, inference, self._clock, self._compiled)
        self._replay: Replay | None = None

    async def _compiled(self, version: VersionInfo) -> Plan:
        """Return the plan of the version, once it is known what it is to run."""
        assert self._replay is not None, "it was begun"
        order, subscription = self._order, self._replay.subscription
        beside = None if order.side is None else Beside(order.side, subscription_name(order))
        return await self._compiler(self._handler, subscription, beside)(version)

    async def _sweep(self) -> None:
        """Leave retention to live workers: this app may be one that is only tried."""

    async def plan(self) -> ReplayPlan:
        """Return what would be handled; nothing is written."""
        return await self._replays.plan(self._order, await self._pinned.load())

    async def begin(self, *, keep: bool = True) -> Replay | ReplayPlan:
        """Allot history and prepare to run it; a plan comes back where there is nothing to do."""
        begun = await self._replays.begin(self._order, await self._pinned.load())
        if isinstance(begun, ReplayPlan):
            return begun
        self._replay = begun
        await self._resources.open(list(self._handler.needs.values()))
        lease = self._lease = await self._journal.join(self._settings.lease_ms)
        await self._pinned.serve(begun.plan.version)
        consumer = self._journal.consumer(lease, begun.subscription)
        pace = Pace(consumer, self._replays, self._clock, self._rate)
        self.servers.append(self._serving(self._handler, pace, self._pinned))
        self._keep(lease, keep=keep)
        return begun

    async def finish(self) -> int:
        """Hand back what is held, leave, and free the model."""
        try:
            return await super().finish()
        finally:
            self._pinned.close()

    async def state(self) -> ReplayState:
        """Return how far the replay is."""
        assert self._replay is not None, "it was begun"
        return await self._replays.state(self._replay.subscription)

    async def until_done(self, stop: asyncio.Event, tell: Callable[[ReplayState], object]) -> None:
        """Handle what was allotted; a replay that follows goes on until ``stop`` is set."""
        watch = asyncio.create_task(self._watch(stop, tell))
        watch.add_done_callback(lambda _: stop.set())  # whatever ends it: nobody would see that all is done
        try:
            await self.run(stop)
        finally:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch

    async def _watch(self, stop: asyncio.Event, tell: Callable[[ReplayState], object]) -> None:
        assert self._replay is not None, "it was begun"
        while not stop.is_set():
            try:
                if self._order.follow and await self._replays.extend(self._replay.subscription):
                    self.servers[0].wake()
                state = await self.state()
                tell(state)
                if state.complete and not self._order.follow:
                    return
            except errors.JournalError as fault:
                if not fault.retryable:
                    raise
            await self._clock.sleep(LOOK_S)


def check_order(order: Order, handler: Handler) -> None:
    """Raise `ReplayRefused` for an order that contradicts itself."""
    problem = ""
    if order.again is not None and order.side is None:
        problem = "what was handled may be handled again only beside the live results, not among them"
    elif order.follow and (order.to_offset, order.to_us, order.chain) != (None, None, None):
        problem = "it cannot follow what is bounded by --to or --chain"
    for name in (order.side, order.again):
        if name is not None and not NAME.fullmatch(name):
            problem = problem or f"{name!r} has characters that are not allowed in a name"
    if order.side is not None:
        for contract in handler.emits:
            if not NAME.fullmatch(side_topic(contract.topic, order.side)):
                problem = problem or f"the name of the side is too long beside topic {contract.topic}"
    if problem:
        raise errors.ReplayRefused(handler=order.handler, problem=problem)
