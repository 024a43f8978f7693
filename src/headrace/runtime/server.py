"""One handler being served by a worker: take, start, settle, again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress

from headrace import errors
from headrace.event.lineage import text_of
from headrace.gate.rate import Rate
from headrace.ports import Batch, Clock, Consumer, ServerState, Settled
from headrace.runtime.deadline import DeadlineWatch
from headrace.runtime.flight import Flight, Landing
from headrace.runtime.handlers import Handler
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.rhythm import OUTAGE_S_MAX, OUTAGE_S_MIN, PARTING_S_MAX, Rhythm, insist, rest
from headrace.runtime.serving import RELOAD_LOOK_MS, Serving, Shared, Versions
from headrace.runtime.window import LITTLE, Window

_log = logging.getLogger("headrace.worker")

#: How often a server with much in flight looks whether what has ended may be committed.
PACE_MS = 1.0
#: So long a small batch is waited for, where claims are made apart: most models have answered by then.
SOON_MS = 10.0
#: So soon again a server with many events in hand, but free slots, looks for events of other keys.
HUNGRY_MS = 2.0
#: So often a server without partitions looks whether one has become free (some 0.1 ms each): whoever stops
#: hands over at once.
HOMELESS_S = 0.1
#: The longest sleep of an idle server; commits wake it earlier.
IDLE_S = 1.0


class Server:
    """Serves one subscription until it is stopped."""

    def __init__(
        self,
        handler: Handler,
        consumer: Consumer,
        versions: Versions,
        pipeline: Pipeline,
        clock: Clock,
        shared: Shared,
    ) -> None:
        self.name = handler.name
        self.consumer, self.versions, self.pipeline = consumer, versions, pipeline
        self._clock = clock
        self._quiet, self._observer, self._balance_s = shared.quiet, shared.observer, shared.balance_s
        self._where, self._concurrency = shared.where, handler.concurrency
        self._topic = handler.consumes.topic
        self._rate = Rate(handler.rate_per_s)
        self._deadline = DeadlineWatch(pipeline, clock, handler.deadline_ms)
        self._flights: list[Flight] = []
        self._settle_after_ms = consumer.settle_after_ms
        self._claimed: deque[tuple[Batch, Serving]] = deque()
        #: An outcome that is being written while the next events are claimed and handled.
        self._writing: asyncio.Task[None] | None = None
        self._window = Window(handler.concurrency, apart=consumer.claims_apart)
        self._stopping = False
        self._found = False  # did the last look find events?
        self._launched_ns = 0  # when the last batch began
        self._rhythm = Rhythm(clock)
        self.handed_back = 0
        #: Why the journal cannot be worked with at present.
        self._outage = ""
        self._commit_s: float | None = None
        #: Events finished so far in this process.
        self.finished = 0

    # --- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until `stop`; outages of the journal are waited out, with one line in the log each."""
        outage_s = 0.0
        while not self._stopping:
            try:
                progressed = await self.step()
                if outage_s:
                    await self.consumer.answers()  # the step may have needed nothing, or a part of it only
                    _log.warning("%s: the journal answers again", self.name)
                outage_s, self._outage = 0.0, ""
            except errors.JournalError as fault:
                if not fault.retryable:
                    raise
                if not outage_s and not self._stopping:
                    _log.warning("[%s] %s: %s Trying again until it answers.", fault.code, self.name, fault)
                self._outage = str(fault)
                outage_s = min(OUTAGE_S_MAX, outage_s * 2 or OUTAGE_S_MIN)
                await rest(outage_s, self._clock, lambda: self._stopping)
                continue
            if not (progressed and self.consumer.more()):
                await self.consumer.wait(self._patience_s())  # not at all when it was woken meanwhile

    def stop(self) -> None:
        """Ask the loop to end; what still waits for others who write is tried again when it parts."""
        self._stopping = True
        self.consumer.hurry(0.0)
        self.wake()

    def wake(self) -> None:
        """Have the loop look again."""
        self.consumer.wake()

    async def step(self) -> bool:
        """Do what can be done now; returns whether anything was."""
        await self._keep_house()
        crowded = 2 * self._aloft() > self._window.bound
        progressed = await self._launch()
        if self.consumer.claims_apart:
            progressed |= await self._claim(crowded=crowded)
        # With much in flight, batches that end one after the other share a transaction, and with it a flush;
        # where claims are apart they share the one that comes after the one under way.
        hurries = not crowded or self.consumer.claims_apart
        if not self._soon_s() and (hurries or self._rhythm.every("settle", self._settle_after_ms)):
            progressed |= await self._land_ripe()
        if not self.consumer.claims_apart:
            progressed |= await self._claim(crowded=crowded)
        return progressed

    async def _claim(self, *, crowded: bool) -> bool:
        """Take more and start it.

        With much in flight a transaction for each small batch would leave no time for handlers; with little
        in flight nothing waits.
        """
        progressed = False
        pause_ms = HUNGRY_MS if self.pipeline.hungry() else self._settle_after_ms
        if self._may_take() and (not crowded or self._rhythm.every("take", pause_ms)):
            progressed = await self._take()
        return await self._launch() or progressed

    def _may_take(self) -> bool:
        free = not (self._claimed or self._quiet.suspects or self._lands_first())
        return free and self.versions.serving is not None and self._room() > 0

    def _lands_first(self) -> bool:
        """Is what is in hand so little that it is to be written before more is claimed?

        Only where claims have no part in the transaction of an outcome: with much in hand the next batch is
        claimed before, so that handlers have something to do meanwhile.
        """
        little = self.consumer.claims_apart and self._aloft() <= LITTLE and not self._writes()
        return little and (self._soon_s() > 0 or any(self._ripe(flight) for flight in self._flights))

    def _soon_s(self) -> float:
        """Return how long a small batch that has just begun is waited for, to be written with the others."""
        last = self._flights[-1] if self._flights and self.consumer.claims_apart else None
        if last is None or not last.left or len(last.batch.rows) > LITTLE:
            return 0.0
        return max(0.0, SOON_MS / 1e3 - (self._clock.boot_ns() - self._launched_ns) / 1e9)

    def _aloft(self) -> int:
        return sum(flight.left for flight in self._flights)

    def state(self) -> ServerState:
        """Return how it goes, for those who watch."""
        serving = self.versions.serving
        return ServerState(
            handler=self.name,
            topic=self._topic,
            version=serving.plan.version.name if serving else "",
            in_flight=self._aloft(),
            held=self.consumer.held(),
            rebalances=self.consumer.rebalances,
            outage=self._outage,
        )

    def idle(self) -> bool:
        """Return whether nothing is in flight."""
        return not (self._flights or self._claimed)

    async def _keep_house(self) -> None:
        if self._rhythm.due("balance", self._pace_s()):
            if self.versions.serving is None:
                await self._hand_back_all()
            else:
                await self.consumer.balance()
        if self._rhythm.due("model", RELOAD_LOOK_MS / 1000):
            if self.versions.serving is None:
                await self.versions.follow()
                self._rhythm.forget("balance")
            else:
                await self.versions.look()
        self._watch_deadlines()

    def _pace_s(self) -> float:
        """Return how long until the next balance: a group of brokers tells by itself of what is free."""
        homeless = not (self.consumer.held() or self.consumer.claims_apart)
        return min(self._balance_s, HOMELESS_S) if homeless else self._balance_s

    def _watch_deadlines(self) -> None:
        if not self._flights:
            self._rhythm.forget("deadline")  # else an idle server wakes up for it a thousand times a second
        elif self._rhythm.due("deadline", self._deadline.interval_s):
            self._deadline.look()

    async def _hand_back_all(self) -> None:
        """Nobody here can run the active version: let others have the partitions."""
        if self.idle():
            await self.consumer.release()

    def _patience_s(self) -> float:
        patience = max(0.001, self._rhythm.wait_s(IDLE_S))
        for wait_s in (self._limited_s(), self._soon_s()):
            patience = min(patience, wait_s or patience)
        if len(self._flights) > 1 and not self._writes() and any(not one.left for one in self._flights):
            patience = min(patience, PACE_MS / 1000)
        if self._flights or self._claimed:
            patience = min(patience, self._settle_after_ms / 1000)
        if self._flights and self.pipeline.hungry():
            patience = min(patience, HUNGRY_MS / 1000) if self._found else patience
        return patience

    # --- take ---------------------------------------------------------------------------------

    def _room(self) -> int:
        if self.pipeline.abandoned >= self._concurrency:
            return 0  # as many handlers hang as may run: taking more would only pile up threads
        aloft = self._aloft()
        # What is handled, and waits until what was before it is written, is in hand as well.
        waits = sum(flight.finished() for flight in self._flights) if self._writes() else 0
        free = self._window.free(aloft + waits, hungry=self.pipeline.hungry)
        return min(free, self._rate.room(self._clock.boot_ns(), aloft)) if self._rate.limited else free

    def _limited_s(self) -> float:
        """Return how long until its rate lets the handler have what is there; 0: nothing waits for that."""
        limited = self._rate.limited and self.consumer.more()
        return self._rate.wait_s(self._clock.boot_ns()) if limited else 0.0

    def next_due_ns(self) -> int | None:
        """Return when there is something to do although nothing happens, on the boot clock."""
        limited_s = self._limited_s()
        return self._clock.boot_ns() + int(limited_s * 1e9) if limited_s else self.consumer.next_due_ns()

    async def _take(self) -> bool:
        serving = self.versions.serving
        assert serving is not None
        try:
            batch = await self.consumer.take(self._room(), serving.plan.version)
        except errors.VersionInactive:
            await self.versions.follow()
            return self.versions.serving is not None
        self._found = batch is not None
        if batch is None:
            return False
        self._note_claimed(batch, serving)
        return True

    def _note_claimed(self, batch: Batch, serving: Serving) -> None:
        """Keep a claimed batch until it can start: nothing that fails in between may forget it."""
        assert serving.plan.version.id == batch.version.id, "a claim pins the version that is served"
        self._claimed.append((batch, serving))
        self._rate.take(len(batch.rows))
        self._quiet.suspects += batch.alone

    async def _launch(self) -> bool:
        """Start what is claimed; a suspect of a crash only when nothing else of the process is in flight."""
        launched = False
        while self._claimed:
            batch, serving = self._claimed[0]
            if self._quiet.aloft and (batch.alone or self._quiet.lone):
                break
            if serving.gather is not None:
                serving.gather.coming = self.pipeline.coming
            self._flights.append(await self.pipeline.start(serving.plan, batch, serving.gather))
            self._quiet.aloft += 1
            self._quiet.lone = batch.alone
            self._claimed.popleft()
            self._launched_ns = self._clock.boot_ns()
            launched = True
        return launched

    # --- settle -------------------------------------------------------------------------------

    async def _land_ripe(self) -> bool:
        """Commit what is ready, oldest batch first: of two events of a key the later is never the first."""
        if self._writes():
            return False
        await self._written()
        ripe = [at for at, flight in enumerate(self._flights) if self._ripe(flight)]
        if not ripe:
            return False
        # Whoever is before a ripe one is asked too, all at one moment: threads go on while we look.
        landings = self.pipeline.collect(self._flights[: ripe[-1] + 1])
        landings = [one for at, one in enumerate(landings) if at in ripe or one.outcome]
        if not self.consumer.claims_apart or sum(len(one.outcome) for one in landings) <= LITTLE:
            await self._land(landings)
        else:
            self._writing = asyncio.create_task(self._land(landings))
            self._writing.add_done_callback(lambda _: self.wake())
            await asyncio.sleep(0)  # it begins before the next claim does, which it would have to wait for
        return True

    def _writes(self) -> bool:
        return self._writing is not None and not self._writing.done()

    async def _written(self) -> None:
        """Wait for the outcome that is being written, if there is one; raises what has become of it."""
        writing, self._writing = self._writing, None
        if writing is not None:
            await writing

    def _ripe(self, flight: Flight) -> bool:
        if not flight.left:
            return True
        if not flight.started_ns:
            return False
        age_ms = (self._clock.boot_ns() - flight.started_ns) / 1e6
        # A first settlement also frees the partitions of slow events for events of other keys.
        return age_ms >= self._settle_after_ms and (flight.finished() > 0 or not flight.landed)

    async def _land(self, landings: list[Landing]) -> None:
        """Commit what flights have come to, and claim the next batch, in one transaction."""
        if not landings:
            return
        parts = [(one.flight.batch, one.outcome) for one in landings]
        began_ns = self._clock.boot_ns()
        try:
            settled = await self.consumer.settle(parts, limit=self._next_limit())
        except BaseException:
            self.pipeline.restore(landings)
            raise
        self._commit_s = (self._clock.boot_ns() - began_ns) / 1e9
        for landing, answer in zip(landings, settled, strict=True):
            self._landed(landing, answer)

    def _next_limit(self) -> int:
        """Return how much to claim together with an outcome."""
        stays = self.consumer.claims_apart or self._quiet.suspects or self._stopping or self._claimed
        return 0 if stays else self._room()

    def _landed(self, landing: Landing, settled: Settled) -> None:
        """Take note of a committed outcome."""
        landing.flight.started_ns = self._clock.boot_ns()  # the rest gets as much time again
        self._window.adapt(in_time=landing.complete)
        ends = landing.complete and not settled.conflicts
        self.pipeline.settled(landing, ends=ends)
        self._bury_conflicts(landing, settled.conflicts)
        if ends:
            self._end(landing.flight)
        if settled.next is not None:
            self._note_claimed(settled.next, Serving(landing.flight.plan, landing.flight.gather))
        self._report(landing, settled.stale | settled.conflicts.keys())

    def _end(self, flight: Flight) -> None:
        self._flights.remove(flight)
        self._quiet.aloft -= 1
        self._quiet.suspects -= flight.batch.alone

    def _bury_conflicts(self, landing: Landing, conflicts: Mapping[int, bytes]) -> None:
        """Events whose derived ids are taken: dead letters instead of what they came to."""
        for row in landing.outcome.done:
            if row[0] in conflicts:
                taken = text_of(conflicts[row[0]])
                error = errors.DerivedConflict(handler=self.name, event_id=taken)
                self.pipeline.bury(landing.flight, row, error)

    def _report(self, landing: Landing, dropped: AbstractSet[int]) -> None:
        outcome = landing.outcome
        self.finished += len(outcome.offsets() - dropped) - len(outcome.waiting)
        landing.log_dead(self._where)
        if self._observer is None:
            return
        now = self._clock.wall_us()
        latencies = [now - time for time in self.pipeline.times_of(outcome.done, dropped)]
        commit_s, self._commit_s = self._commit_s, None
        self._observer.committed(landing.report(dropped, latencies, commit_s))

    # --- the end ------------------------------------------------------------------------------

    async def finish(self, grace_s: float) -> int:
        """Let what runs end within the grace time, hand back the rest; returns how many were handed back."""
        self._stopping = True  # whoever stops a worker that did not run: nothing more may be claimed
        self.pipeline.drop_lines()
        deadline = self._clock.boot_ns() + int(grace_s * 1e9)
        while self._flights and self.pipeline.slots and self._clock.boot_ns() < deadline:
            self._watch_deadlines()  # a stop gives nobody more time than the handler's own deadline
            await self._clock.sleep(self._settle_after_ms / 1000)
        await self.pipeline.cancel()
        with suppress(errors.JournalError):  # what could not be written is tried again below
            await self._written()
        for batch, serving in self._claimed:  # claimed, but not begun
            self._flights.append(self.pipeline.flight(serving.plan, batch, serving.gather))
            self._quiet.aloft += 1
        self._claimed.clear()
        self.handed_back += sum(self.pipeline.give_back(flight) for flight in self._flights)
        self.consumer.hurry(PARTING_S_MAX)
        await insist(self._part, self._clock)
        self.versions.close()
        return self.handed_back

    async def _part(self) -> None:
        await self._land(self.pipeline.collect(list(self._flights)))
        await self.consumer.release()
