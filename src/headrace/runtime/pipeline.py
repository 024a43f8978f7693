"""The way of one event, in order: read `Pipeline._walk` first.

A batch was claimed (which pinned the version).  `Pipeline.load` admits its events and puts them in lines,
one per key.  A *walker* takes line after line: decode -> handle -> derive -> note.  One walker does for
handlers that do not wait; each time one suspends, further walkers start, 1, 2, 4 ... up to the handler's
concurrency.  So a trivial handler costs no task per event, and a waiting one gets real concurrency.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Executor
from functools import partial
from typing import Any

from headrace import errors
from headrace.event.envelope import Head
from headrace.ports import Batch, Journal, NoFaults, OpenState, Row, World
from headrace.runtime.admission import Admission
from headrace.runtime.call import Caller, derive_one
from headrace.runtime.flight import LATER, Flight, Landing, Line
from headrace.runtime.gather import NOTHING_ASKED, Gather
from headrace.runtime.lines import Lines
from headrace.runtime.plan import Plan
from headrace.runtime.slot import Slot, changed, drive

#: A plain handler that has not finished its line after this long gets company: further threads start.
THREAD_RAMP_S = 0.002
#: So many are enough for handlers that suspend only for a turn of the loop.
WALKERS_ENOUGH = 32
#: A handler that does not heed the cancellation of a stop is waited for this long.
STOP_S_MAX = 1.0


class Pipeline:
    """Runs the events of one subscription through its handler."""

    def __init__(
        self,
        journal: Journal,
        world: World,
        *,
        known_types: frozenset[str],
        wake: Callable[[], None],
        concurrency: int,
        threads: Executor | None,
    ) -> None:
        self._journal = journal
        self._clock, self._chance = world.clock, world.chance
        # Two calls an event that do nothing would cost 2 %: outside of tests there are none.
        self._at_fault = None if isinstance(world.faults, NoFaults) else world.faults.at
        self._wake = wake
        self._concurrency = concurrency
        self._threads = threads
        self._admission = Admission(journal, world, known_types, on_loop=threads is None)
        self._stamps = self._admission.stamps
        self._lines = Lines()
        #: Events that wait by what is noted, but not committed yet, counted by key.
        self._waits: dict[str, int] = {}
        self.slots: set[Slot] = set()
        #: Walkers that did not heed their deadline and still run.
        self.abandoned = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._caller = Caller(journal, self._loop, self._stamps)
        #: What handlers see of context variables: nothing that another handler has set.
        self._context = contextvars.copy_context()
        self._ramping = self._stopped = False
        self._ready_before = 0  # lines that waited at the last look whether more walkers are needed

    def coming(self) -> bool:
        """Return whether somebody may be about to call a model: other walkers, or one who can begin."""
        return len(self.slots) > 1 or self._lines.waiting()

    # --- from a batch to lines ----------------------------------------------------------------

    async def start(self, plan: Plan, batch: Batch, gather: Gather | None) -> Flight:
        """Admit the events of a batch and let the walkers have them."""
        flight = self.flight(plan, batch, gather)
        heads = self._admission.heads(flight)
        all_run = await self._admission.learn(plan, heads)
        with self._lock:
            parted = bool(self.slots) or self._threads is not None or bool(self._lines.ready)
            if parted:
                self._lines.part(self.slots)
            line = self._admission.line_of(flight, heads, self._waits, all_run=all_run)
            self._lines.add(line, parted=parted)
        if self._lines.ready:
            self._add_walkers(max(1, len(self.slots)))  # those that are there wait for something
        # Its time runs from when the walkers have had their turn, however late this process gets the core.
        self._loop.call_soon(flight.begin, self._clock.boot_ns)
        if not flight.left:
            self._wake()
        return flight

    def flight(self, plan: Plan, batch: Batch, gather: Gather | None) -> Flight:
        """Return a batch as a flight that has not begun."""
        return Flight(plan, batch, gather, self._chance.unit, left=len(batch.rows))

    # --- walkers ------------------------------------------------------------------------------

    def _add_walkers(self, count: int) -> None:
        count = min(count, len(self._lines.ready), self._concurrency - len(self.slots))
        for _ in range(count):
            slot = Slot()
            self.slots.add(slot)
            if self._threads is None:
                slot.task = self._loop.create_task(self._walk(slot), context=self._context.copy())
                slot.task.add_done_callback(partial(self._gone, slot))
            else:
                job = self._loop.run_in_executor(self._threads, drive, slot, self._context.copy(), self._walk)
                job.add_done_callback(partial(self._gone, slot))
        # At full concurrency nothing is to be added; `_gone` looks again.
        if count > 0 and len(self.slots) < self._concurrency and not self._ramping:
            self._ramping = True
            self._ramp_later()

    def _ramp_later(self) -> None:
        if self._threads is None:
            self._loop.call_soon(self._ramp)
        else:
            self._loop.call_later(THREAD_RAMP_S, self._ramp)

    def _ramp(self) -> None:
        """Walkers that are still there wait for something: double their number."""
        self._ramping = False
        self._lines.part(self.slots)
        ready, walkers = len(self._lines.ready), len(self.slots)
        turned, self._ready_before = self._ready_before - ready, ready
        if not (ready and walkers):
            return
        if self._threads is None and walkers >= WALKERS_ENOUGH and turned >= walkers:
            self._ramping = True  # all of them went on meanwhile: they wait for the loop, not for the world
            self._ramp_later()
        else:
            self._add_walkers(walkers)

    def _gone(self, slot: Slot, walk: asyncio.Future[None]) -> None:
        self.slots.discard(slot)
        self.abandoned -= slot.abandoned  # an abandoned one has come back after all
        fault = asyncio.CancelledError("by itself") if walk.cancelled() else walk.exception()
        if fault and not (self._stopped or slot.abandoned):
            self._loop.call_exception_handler({"message": "a walker failed", "exception": fault})
            self._lose(slot, fault)
        if self._lines.ready and len(self.slots) in (0, self._concurrency - 1):
            self._add_walkers(1)

    async def _walk(self, slot: Slot) -> None:  # noqa: C901, PLR0912, PLR0915 - one way, in one place
        """Take line after line and run its events; the one place where events meet handlers."""
        base = contextvars.copy_context()
        lines, at_fault, locked = self._lines, self._at_fault, self._threads is not None
        ready, by_key = lines.ready, lines.by_key
        made: Any = None  # nothing, one row of the journal, or a list of them
        flight = call = decode = emission_of = asks = ask = emission = value = made
        while ready:
            try:
                line = ready.popleft()
            except IndexError:  # another thread was quicker
                return
            slot.line, at = line, 0
            while True:
                whose, row, head, span, event, child_id = line[at]
                if whose is not flight:  # the first one, or one of a later batch
                    flight = whose
                    call, decode, emission_of, asks = flight.plan.hot
                at += 1
                slot.at = at
                if at_fault is not None:
                    at_fault("handle.before")
                try:
                    if event is None:
                        event = decode(row[6])
                    if asks is None:
                        made = await self._caller.call(flight, row, head, span, event)
                    else:
                        ask = flight.ask() if asks else NOTHING_ASKED
                        value = await (call(event, **{asks: ask}) if asks else call(event))
                        emission = emission_of(value.__class__)
                        if emission is not None and emission.later:
                            made = LATER  # with all others of the batch: see `Flight.derive`
                        else:
                            made = derive_one(flight.plan, row, head, span, value, child_id, ask.confidence)
                except BaseException as error:  # noqa: BLE001 - sorted out in one place
                    if not self._failed(slot, flight, row, head, error):
                        return
                else:
                    if slot.expired:  # it was late, but came to an end all the same
                        slot.heeded()
                    if at_fault is not None:
                        at_fault("handle.after")
                    if locked:
                        if not self._note_locked(slot, flight, row, made):
                            return
                    elif slot.abandoned:
                        return
                    elif made is LATER:
                        flight.returned.append((emission, row, head, span, value, child_id, ask.confidence))
                        flight.left -= 1
                        if not flight.left:
                            self._wake()
                    else:
                        self._note(flight, row, made)
                if changed(base):
                    # The handler set context variables, which the next event must not see: begin anew.
                    self._hand_on(slot, at, head.key)
                    return
                if at >= len(line):
                    if not locked and line is not lines.whole:
                        by_key.pop(head.key, None)  # as `Lines.end`, spelled out
                        break
                    if self._ended(line, at, head.key):
                        break
            slot.at = 0
        if not locked:
            self.slots.discard(slot)  # at once: the next batch may start before `_gone` is called

    def _hand_on(self, slot: Slot, at: int, key: str | None) -> None:
        """Leave the rest of a line to another walker; the lines of its key stay one after the other."""
        with self._lock:
            if slot.line is self._lines.whole:
                self._lines.part(self.slots)
            rest = slot.line[at:]
            slot.line, slot.at = [], 0
            self._lines.by_key.pop(key, None)
            if rest:
                self._lines.ready.appendleft(rest)
                if key is not None:
                    self._lines.by_key[key] = rest
        self._loop.call_soon_threadsafe(self._add_walkers, 1, context=self._context)

    def _ended(self, line: Line, at: int, key: str | None) -> bool:
        """In a thread: close a line after its last event, unless the loop has just added one."""
        with self._lock:
            if at < len(line):
                return False
            self._lines.end(line, key)
            return True

    def _note(self, flight: Flight, row: Row, made: Any) -> None:
        """Note what an event came to: nothing, one row, or a list of them."""
        flight.note(row, made, self._stamps)
        if not flight.left:
            self._wake_loop()

    def _note_locked(self, slot: Slot, flight: Flight, row: Row, made: Any) -> bool:
        """In a thread; returns ``False`` when the deadline was quicker."""
        with self._lock:
            if slot.abandoned:
                return False
            slot.at = 0
            self._note(flight, row, made)
            return True

    def _wake_loop(self) -> None:
        if self._threads is None:
            self._wake()
        else:
            self._loop.call_soon_threadsafe(self._wake)

    def _hold(self, slot: Slot, key: str | None) -> None:
        """The rest of a line, and what may join it, waits for the event before it; the lock is held."""
        if slot.line is self._lines.whole:
            self._lines.part(self.slots)
        line, start = slot.line, slot.at
        if key is not None:
            self._waits[key] = self._waits.get(key, 0) + 1 + len(line) - start
        for flight, row, *_ in line[start:]:
            flight.give_back(row, OpenState.BLOCKED)
            if not flight.left:
                self._wake_loop()
        del line[start:]

    def _failed(self, slot: Slot, flight: Flight, row: Row, head: Head, error: BaseException) -> bool:
        """Note a failure; returns whether the walker may go on."""
        late = slot.expired and not slot.abandoned
        if late:
            slot.heeded()
        if late and isinstance(error, asyncio.CancelledError):
            error = flight.late(error)
        elif slot.task is not None and (
            isinstance(error, (KeyboardInterrupt, GeneratorExit)) or slot.task.cancelling()
        ):
            raise error  # the worker stops; `Server.finish` hands the event back
        with self._lock:
            if slot.abandoned:
                return False
            if flight.fail(row, head, error, self._stamps[head.stamp].type):
                self._hold(slot, head.key)
        if not flight.left:
            self._wake_loop()
        return True

    def abandon(self, slot: Slot, error: errors.HeadraceError) -> None:
        """Give up on a walker that cannot be stopped."""
        if self._lose(slot, error):
            self.abandoned += 1
            self.slots.discard(slot)
            self._wake()
            self._add_walkers(1)

    def _lose(self, slot: Slot, error: BaseException) -> bool:
        """A walker does not come back: its event fails, the rest of its line goes on."""
        with self._lock:
            if slot.abandoned or not slot.at:
                return False
            slot.abandoned = True
            flight, row, head, *_ = slot.line[slot.at - 1]
            if flight.fail(row, head, error, self._stamps[head.stamp].type):
                self._hold(slot, head.key)
        self._hand_on(slot, slot.at, head.key)
        if not flight.left:
            self._wake()
        return True

    def hungry(self) -> bool:
        """Return whether more keys could be handled at the same time."""
        return not self._lines.ready and len(self.slots) < self._concurrency

    def collect(self, flights: list[Flight]) -> list[Landing]:
        """Return what flights have come to so far, all at one moment.

        Two events of a key may be in two of them: taken one by one, the later could be there without the
        earlier.
        """
        with self._lock:
            return [
                Landing(flight, flight.collect(self._stamps), complete=not flight.left) for flight in flights
            ]

    def restore(self, landings: list[Landing]) -> None:
        """Take back outcomes that could not be committed."""
        with self._lock:
            for landing in landings:
                landing.flight.restore(landing.outcome)

    def settled(self, landing: Landing, *, ends: bool) -> None:
        """Note that an outcome is committed: from here on the journal itself holds back its keys."""
        with self._lock:
            landing.flight.landed = True
            if not ends:
                landing.flight.settled |= landing.outcome.offsets()
            for one in landing.outcome.waiting:
                returned = one.state is OpenState.RETURNED  # and its head perhaps unreadable
                if not returned and (key := self._journal.decode_head(one.row[5]).key) in self._waits:
                    self._waits[key] -= 1
                    if not self._waits[key]:
                        del self._waits[key]

    def give_back(self, flight: Flight) -> int:
        """Note the unfinished events of a flight as returned; returns how many they are."""
        with self._lock:
            flight.derive(self._stamps)
            back = flight.unfinished()
            for row in back:
                flight.give_back(row, OpenState.RETURNED)
            return len(back)

    def bury(self, flight: Flight, row: Row, error: errors.HeadraceError) -> None:
        """Make a dead letter of an event whose outcome the journal has refused for good."""
        with self._lock:
            flight.left += 1
            flight.fail(row, None, error, "")

    def drop_lines(self) -> None:
        """Begin nothing more: the worker stops."""
        self._lines.ready.clear()
        for slot in self.slots:
            with self._lock:
                del slot.line[slot.at or len(slot.line) :]

    async def cancel(self) -> None:
        """Stop the walkers; what they were at stays unfinished."""
        self._stopped = True  # from here on a failure may be the cancellation's doing
        tasks = [slot.task for slot in self.slots if slot.task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=STOP_S_MAX)
        with self._lock:
            for slot in self.slots:
                slot.abandoned = True
        self.slots.clear()

    def times_of(self, rows: list[Row], dropped: Collection[int]) -> list[int]:
        """Return when the events were published (microseconds), for latencies."""
        decode = self._journal.decode_head
        return [decode(row[5]).time_us for row in rows if row[0] not in dropped]
