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
from collections import deque
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Executor
from contextlib import nullcontext
from typing import Any
from uuid import UUID

from headrace import errors
from headrace.codec.head import payload_hash
from headrace.event.contract import Event
from headrace.event.envelope import Envelope, Head, Place, Stamp, envelope_of
from headrace.event.lineage import Derivation
from headrace.gate.admit import Admit, admit
from headrace.gate.retry import crashed_out
from headrace.ports import Batch, Chance, Clock, Faults, Journal, OpenState, Row
from headrace.runtime.context import Context
from headrace.runtime.flight import Flight, Line
from headrace.runtime.gather import Ask, AskFromThread, Gather
from headrace.runtime.plan import Emission, Plan

#: Events that one handling may emit.
EMITS_MAX = 10_000
#: A plain handler that has not finished its line after this long gets company: further threads start.
THREAD_RAMP_S = 0.002
#: A handler that does not heed the cancellation of a stop is waited for this long.
STOP_S_MAX = 1.0


class Slot:
    """One walker: which event it is at, for the deadline."""

    __slots__ = ("abandoned", "expired", "flight", "head", "line", "row", "seen", "seen_ns", "task", "thread")

    def __init__(self) -> None:
        self.flight: Flight | None = None
        self.line: Line = []
        self.row: Row | None = None
        self.head: Head | None = None
        self.task: asyncio.Task[None] | None = None
        self.thread = 0
        self.seen: Row | None = None
        self.seen_ns = 0
        self.expired = False  # its event is over its deadline and is being cancelled
        self.abandoned = False  # it did not heed the cancellation: what it comes to is dropped


class Pipeline:
    """Runs the events of one subscription through its handler."""

    def __init__(
        self,
        journal: Journal,
        *,
        clock: Clock,
        chance: Chance,
        faults: Faults,
        known_types: frozenset[str],
        wake: Callable[[], None],
        concurrency: int,
        threads: Executor | None,
    ) -> None:
        self._journal = journal
        self._clock, self._chance, self._faults = clock, chance, faults
        self._known_types = known_types
        self._wake = wake
        self._concurrency = concurrency
        self._threads = threads
        self._admitted: dict[int, Admit | errors.EventError] = {}
        self._stamps: dict[int, Stamp] = {}
        self._lines: deque[Line] = deque()
        self.slots: set[Slot] = set()
        #: Walkers that did not heed their deadline and still run.
        self.abandoned = 0
        self._lock: Any = nullcontext() if threads is None else threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._ramping = False

    # --- from a batch to lines ----------------------------------------------------------------

    async def start(self, plan: Plan, batch: Batch, gather: Gather | None) -> Flight:
        """Admit the events of a batch and let the walkers have them."""
        flight = Flight(plan, batch, gather, self._chance.unit, left=len(batch.rows))
        flight.started_ns = self._clock.boot_ns()
        await self._learn(plan, batch.rows)
        self._lines.extend(self._lines_of(flight))
        if self._lines and not self.slots:
            self._add_walkers(1)
        if not flight.left:
            self._wake()
        return flight

    async def _learn(self, plan: Plan, rows: list[Row]) -> None:
        """Decide about stamps that were not met before."""
        for row in rows:
            try:
                number = self._journal.decode_head(row[5]).stamp
            except ValueError:
                continue
            if number not in self._admitted:
                stamp = await self._journal.stamp(number)
                self._stamps[number] = stamp or Stamp("", "", 0)
                topic, wanted = plan.topic.name, plan.handler.consumes.type
                self._admitted[number] = admit(stamp, wanted, self._known_types, topic)

    def _lines_of(self, flight: Flight) -> list[Line]:
        lines: list[Line] = []
        by_key: dict[str, Line] = {}
        for row in flight.batch.rows:
            head = self._admit(flight, row)
            if head is None:
                continue
            line = None if head.key is None else by_key.get(head.key)
            if line is not None:
                line += (row, head)
                continue
            line = [flight, row, head]
            lines.append(line)
            if head.key is not None:
                by_key[head.key] = line
        return lines

    def _admit(self, flight: Flight, row: Row) -> Head | None:
        """Return the envelope of an event that is to be run; all others are finished here."""
        try:
            head = self._journal.decode_head(row[5])
        except ValueError as fault:
            flight.fail(row, None, errors.HeadCorrupt(str(fault), offset=row[0]), "")
            return None
        verdict = self._admitted[head.stamp]
        if verdict is Admit.SKIP:
            flight.outcome.done.append(row)
            flight.left -= 1
            return None
        if isinstance(verdict, errors.EventError):
            flight.fail(row, head, verdict, self._stamps[head.stamp].type)
            return None
        attempt = flight.attempt_of(row)
        if attempt.crashes and crashed_out(attempt, flight.plan.handler.retry):
            error = errors.HandlerCrashed(crashes=attempt.crashes, handler=flight.plan.handler.name)
            flight.fail(row, head, error, self._stamps[head.stamp].type)
            return None
        return head

    # --- walkers ------------------------------------------------------------------------------

    def _add_walkers(self, count: int) -> None:
        for _ in range(min(count, len(self._lines), self._concurrency - len(self.slots))):
            slot = Slot()
            self.slots.add(slot)
            if self._threads is None:
                slot.task = self._loop.create_task(self._walk(slot))
                slot.task.add_done_callback(lambda _, slot=slot: self._gone(slot))
            else:
                run = contextvars.copy_context().run
                job = self._loop.run_in_executor(self._threads, run, _drive, self._walk(slot))
                job.add_done_callback(lambda job, slot=slot: self._gone(slot, job))
        if not self._ramping:
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
        if self._lines and self.slots:
            self._add_walkers(len(self.slots))

    def _gone(self, slot: Slot, job: asyncio.Future[None] | None = None) -> None:
        self.slots.discard(slot)
        self.abandoned -= slot.abandoned
        if job is not None and not job.cancelled() and (fault := job.exception()):
            self._loop.call_exception_handler({"message": "a walker of a plain handler failed", "exception": fault})
        if self._lines and not self.slots:
            self._add_walkers(1)

    async def _walk(self, slot: Slot) -> None:
        """Take line after line and run its events; the one place where events meet handlers."""
        base = contextvars.copy_context()
        slot.thread = threading.get_ident() if self._threads is not None else 0
        lines = self._lines
        while lines:
            try:
                line = lines.popleft()
            except IndexError:  # another thread was quicker
                return
            flight: Flight = line[0]
            plan = flight.plan
            slot.flight, slot.line = flight, line
            simple = not plan.handler.wants
            for at in range(1, len(line), 2):
                row, head = slot.row, slot.head = line[at], line[at + 1]
                self._faults.at("handle.before")
                try:
                    event = plan.handler.consumes.decode(row[6])
                    if simple:
                        emitted = await plan.call(event)
                        children = [] if emitted is None else self._derive(plan, row, head, emitted, None)
                    else:
                        children = await self._call(flight, row, head, event)
                except BaseException as error:  # noqa: BLE001 - sorted out in one place
                    if self._failed(slot, flight, row, head, error):
                        self._block(flight, line, at + 2)
                        break
                    if slot.abandoned:
                        return
                    continue
                self._faults.at("handle.after")
                if not self._done(slot, flight, row, children):
                    return
            slot.row = None
            if contextvars.copy_context() != base:
                # The handler set context variables; the next event must not see them.
                return

    def _done(self, slot: Slot, flight: Flight, row: Row, children: list[Any]) -> bool:
        """Note what an event came to; returns ``False`` when its deadline has been quicker."""
        with self._lock:
            if slot.abandoned:
                return False
            slot.row = None
            outcome = flight.outcome
            outcome.done.append(row)
            if children:
                outcome.emitted += children
                outcome.causes += [row[0]] * len(children)
            flight.left -= 1
        if not flight.left:
            self._wake_loop()
        return True

    def _wake_loop(self) -> None:
        if self._threads is None:
            self._wake()
        else:
            self._loop.call_soon_threadsafe(self._wake)

    def _block(self, flight: Flight, line: Line, start: int) -> None:
        """The rest of a line waits for the event before it."""
        with self._lock:
            for at in range(start, len(line), 2):
                flight.give_back(line[at], OpenState.BLOCKED)
        if not flight.left:
            self._wake_loop()

    def _failed(self, slot: Slot, flight: Flight, row: Row, head: Head, error: BaseException) -> bool:
        """Note a failure; returns whether the event waits for a further attempt."""
        if slot.abandoned:
            return False
        if isinstance(error, asyncio.CancelledError):
            if slot.expired:
                slot.expired = False
                if slot.task is not None:
                    slot.task.uncancel()
                error = self._late(flight, error)
            elif slot.task is not None and slot.task.cancelling():
                raise error  # the worker stops; `stop` hands the event back
        elif isinstance(error, (KeyboardInterrupt, GeneratorExit)):
            raise error
        with self._lock:
            if slot.abandoned:
                return False
            waits = flight.fail(row, head, error, self._stamps[head.stamp].type)
        if not flight.left:
            self._wake_loop()
        return waits

    def _late(self, flight: Flight, error: BaseException) -> errors.DeadlineExceeded:
        handler = flight.plan.handler
        late = errors.DeadlineExceeded(handler=handler.name, deadline_ms=handler.deadline_ms)
        return late.with_traceback(error.__traceback__)

    def abandon(self, slot: Slot, error: errors.HeadraceError) -> None:
        """Give up on a walker that cannot be stopped: its event fails, the rest of its line goes on."""
        with self._lock:
            if slot.abandoned or slot.row is None or slot.flight is None or slot.head is None:
                return
            slot.abandoned = True
            self.abandoned += 1
            flight, row, line = slot.flight, slot.row, slot.line
            waits = flight.fail(row, slot.head, error, self._stamps[slot.head.stamp].type)
        self.slots.discard(slot)
        rest = next(at for at in range(1, len(line), 2) if line[at] is row) + 2
        if waits:
            self._block(flight, line, rest)
        elif rest < len(line):
            self._lines.appendleft([flight, *line[rest:]])
        self._wake()
        self._add_walkers(1)

    def drop_lines(self) -> None:
        """Begin nothing more: the worker stops."""
        self._lines.clear()

    async def cancel(self) -> None:
        """Stop the walkers; what they were at stays unfinished."""
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

    # --- one call -----------------------------------------------------------------------------

    async def _call(self, flight: Flight, row: Row, head: Head, event: Event) -> list[Any]:
        """Run a handler that asks for more than its event."""
        plan, wants = flight.plan, flight.plan.handler.wants
        given: dict[str, Any] = {}
        ask: Ask | None = None
        ctx: Context | None = None
        if "model" in wants:
            if flight.gather is None:  # pragma: no cover - the worker takes nothing without its model
                raise errors.ModelMissing(path="?", handler=plan.handler.name)
            ask = Ask(flight.gather) if plan.handler.is_async else AskFromThread(flight.gather, self._loop)
            given[wants["model"]] = ask
        if "ctx" in wants:
            ctx = self._context(flight, row, head)
            given[wants["ctx"]] = ctx
        value = await plan.call(event, **given)
        confidence = ask.confidence if ask else None
        named = ctx.taken() if ctx else []
        if not named:
            return [] if value is None else self._derive(plan, row, head, value, confidence)
        return self._derive_all(plan, row, head, [*named, *((one, None) for one in _each(value))], confidence)

    def _context(self, flight: Flight, row: Row, head: Head) -> Context:
        plan = flight.plan
        key = UUID(bytes=Derivation(plan.handler.name, "").named(row[2], "idempotency"))

        def made() -> Envelope:
            place = Place(plan.topic.name, row[1] - self._journal.place(plan.topic, 0), row[0])
            return envelope_of(row[2], row[4], head, self._stamps[head.stamp], place)

        return Context(plan.handler.name, key, flight.attempt_of(row).number, made)

    def _derive(self, plan: Plan, row: Row, head: Head, value: object, confidence: float | None) -> list[Any]:
        """Make the events that follow; the quick way for one value."""
        emission = plan.emissions.get(type(value))  # type: ignore[call-overload]
        if emission is None:
            return self._derive_all(plan, row, head, [(one, None) for one in _each(value)], confidence)
        return [self._child(plan, emission, row, head, value, plan.derivation.child(row[2], 0), confidence)]

    def _derive_all(
        self,
        plan: Plan,
        row: Row,
        head: Head,
        values: list[tuple[Any, str | None]],
        confidence: float | None,
    ) -> list[Any]:
        if len(values) > EMITS_MAX:
            raise errors.EmitsTooMany(handler=plan.handler.name, limit=EMITS_MAX)
        children: list[Any] = []
        names: set[str] = set()
        for ordinal, (value, name) in enumerate(values):
            emission = plan.emissions.get(type(value))
            if emission is None:
                allowed = ", ".join(one.contract.type for one in plan.emissions.values()) or "nothing"
                raise errors.EmitRefused(handler=plan.handler.name, emitted=type(value).__name__, allowed=allowed)
            if name in names:
                raise errors.EmitUnnamed(f"The name {name!r} is used twice.", handler=plan.handler.name)
            if name is not None:
                names.add(name)
                event_id = plan.derivation.named(row[2], name)
            else:
                event_id = plan.derivation.child(row[2], ordinal)
            children.append(self._child(plan, emission, row, head, value, event_id, confidence))
        return children

    def _child(
        self,
        plan: Plan,
        emission: Emission,
        row: Row,
        head: Head,
        value: Any,
        event_id: bytes,
        confidence: float | None,
    ) -> Any:
        """Derive one event: id, parents, chain, trace, provenance."""
        depth = row[4] + 1
        if depth > plan.depth_max:
            raise errors.DepthExceeded(event_id=event_id.hex(), depth=depth, limit=plan.depth_max)
        body = emission.encode(value)
        key = emission.key_of(value)
        parent = row[2]
        child = Head(
            stamp=emission.stamp,
            parents=(parent,),
            root=head.root or parent,
            trace=head.trace,
            span=self._span(),
            flags=head.flags,
            input_hash=payload_hash(row[6]),
            time_us=self._clock.wall_us(),
            principal=plan.principal,
            key=key,
            confidence=confidence,
            tracestate=head.tracestate,
        )
        place = emission.place_of(key, event_id)
        return self._journal.emitted(place, event_id, row[3], depth, child, body)

    def _span(self) -> bytes:
        return self._chance.bytes(8)


def _drive(walk: Any) -> None:
    """In a thread: run a walker of a plain handler; nothing in it suspends."""
    try:
        walk.send(None)
    except StopIteration:
        return
    walk.close()
    raise errors.SignatureInvalid(handler="?", problem="a plain handler suspended; declare it with async def")


def _each(value: object) -> Iterator[object]:
    """Return the events of what a handler returned: none, one, or a list."""
    if value is None:
        return iter(())
    if isinstance(value, (list, tuple)):
        return iter(value)
    return iter((value,))
