"""A batch on its way through a handler: its events in lines by key, and what they came to so far."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from headrace import errors
from headrace.event.contract import Event
from headrace.event.envelope import Head, Stamp
from headrace.event.lineage import text_of
from headrace.gate.retry import Dead, RetryPolicy, decide
from headrace.ports import (
    FIRST_ATTEMPT,
    Attempt,
    Batch,
    BatchReport,
    DeadLetter,
    OpenState,
    Outcome,
    Row,
    Waiting,
)
from headrace.runtime.frames import users_traceback
from headrace.runtime.gather import Ask, Gather
from headrace.runtime.plan import Plan

_log = logging.getLogger("headrace.worker")

#: Lines of an earlier attempt's error kept with an event, and the size of a traceback in a dead letter.
ERROR_CHARS_MAX = 500
TRACEBACK_CHARS_MAX = 16_000

#: Stands for events that are derived later, with all others of the batch.
LATER = object()
#: One event on its way: its flight, row, head and span, the event where it was decoded ahead, and the id of
#: the first event that follows.
Entry = tuple["Flight", Row, Head, bytes, Event | None, bytes]
#: The events of one key, in order; run one after the other.
Line = list[Entry]


@dataclass(slots=True, eq=False)
class Flight:
    """One claimed batch being handled."""

    plan: Plan
    batch: Batch
    gather: Gather | None
    chance: Callable[[], float]
    #: Events that no outcome names yet.
    left: int = 0
    outcome: Outcome = field(default_factory=Outcome)
    #: What handlers returned and is still to be derived: emission, row, head, span, value, id, confidence.
    returned: list[tuple[Any, Row, Head, bytes, Any, bytes, float | None]] = field(default_factory=list[Any])
    #: When its walkers had their first turn, on the boot clock; 0 = they had none yet.
    started_ns: int = 0
    #: Was there a first settlement?
    landed: bool = False
    #: Offsets that earlier, partial outcomes have named.
    settled: set[int] = field(default_factory=set[int])

    def begin(self, now_ns: Callable[[], int]) -> None:
        """Note that the walkers have had their first turn."""
        self.started_ns = now_ns()

    def ask(self) -> Ask:
        """Return the model as one call of an async handler gets it."""
        assert self.gather is not None, "a worker takes nothing without its model"
        return Ask(self.gather)

    def attempt_of(self, row: Row) -> Attempt:
        """Return how often the event has been tried, this time included."""
        return self.batch.attempts.get(row[0], FIRST_ATTEMPT)

    def finished(self) -> int:
        """Return how many events are ready to be committed."""
        return len(self.outcome) + len(self.returned)

    def note(self, row: Row, made: Any, stamps: Mapping[int, Stamp]) -> None:
        """Note what an event came to: nothing, one row of the journal, or a list of them."""
        if self.returned:  # what follows from the events of a key keeps their order
            self.derive(stamps)
        outcome = self.outcome
        outcome.done.append(row)
        if type(made) is tuple:
            outcome.emitted.append(made)
            outcome.causes.append(row[0])
        elif made is not None:
            outcome.emitted += made
            outcome.causes += [row[0]] * len(made)
        self.left -= 1

    def derive(self, stamps: Mapping[int, Stamp]) -> None:
        """Make the events that follow from what handlers returned, one after the other in one go.

        Only what cannot fail but for good comes here, so no later event of a key is held by it.
        """
        returned, self.returned = self.returned, []
        outcome = self.outcome
        done, emitted, causes = outcome.done.append, outcome.emitted.append, outcome.causes.append
        for emission, row, head, span, value, event_id, confidence in returned:
            try:
                made = emission.derive(row, head, span, value, event_id, confidence)
            except Exception as fault:  # noqa: BLE001 - it is this event's alone, whatever it is
                kind = stamps[head.stamp].type
                refused = isinstance(fault, errors.HeadraceError)
                self.left += 1
                self.fail(row, head, fault if refused else errors.PayloadInvalid(str(fault), type=kind), kind)
            else:
                done(row)
                emitted(made)
                causes(row[0])

    def collect(self, stamps: Mapping[int, Stamp]) -> Outcome:
        """Return what is ready, and start anew."""
        self.derive(stamps)
        outcome, self.outcome = self.outcome, Outcome()
        return outcome

    def restore(self, outcome: Outcome) -> None:
        """Take back an outcome that could not be committed."""
        newer, self.outcome = self.outcome, outcome
        outcome.emitted += newer.emitted
        outcome.causes += newer.causes
        outcome.done += newer.done
        outcome.waiting += newer.waiting
        outcome.dead += newer.dead

    def unfinished(self) -> list[Row]:
        """Return the events that no outcome names."""
        named = self.settled | self.outcome.offsets()
        return [row for row in self.batch.rows if row[0] not in named]

    def fail(self, row: Row, head: Head | None, error: BaseException, kind: str) -> bool:
        """Note a failed attempt; returns whether the event waits (and its key with it)."""
        policy: RetryPolicy = self.plan.handler.retry
        attempt = self.attempt_of(row)
        crashed = isinstance(error, errors.PoolCrashed)
        verdict = decide(error, attempt, policy, self.chance())
        self.left -= 1
        if isinstance(verdict, Dead):
            self.outcome.dead.append(self._letter(row, head, error, kind, verdict))
            return False
        line = f"{_code_of(error)}: {_said(error)}"[:ERROR_CHARS_MAX]
        attempt = attempt._replace(errors=(*attempt.errors, line), crashes=attempt.crashes + crashed)
        self.outcome.waiting.append(Waiting(row, OpenState.RETRY, attempt, verdict.after_ms))
        return True

    def late(self, error: BaseException) -> errors.DeadlineExceeded:
        """Return the error of an event that was cancelled because of its deadline."""
        handler = self.plan.handler
        late = errors.DeadlineExceeded(handler=handler.name, deadline_ms=handler.deadline_ms)
        return late.with_traceback(error.__traceback__)

    def give_back(self, row: Row, state: OpenState) -> None:
        """Leave an event open whose attempt was not begun, or was stopped by us: it does not count."""
        self.left -= 1
        attempt = self.attempt_of(row)
        attempt = attempt._replace(number=max(0, attempt.number - 1))
        self.outcome.waiting.append(Waiting(row, state, attempt))

    def _letter(
        self, row: Row, head: Head | None, error: BaseException, kind: str, verdict: Dead
    ) -> DeadLetter:
        coded = _coded(error, self.plan.handler.name)
        told = str(coded) if self.plan.handler.name in str(coded) else f"In {self.plan.handler.name}: {coded}"
        if coded.hint:
            told = f"{told} Hint: {coded.hint.replace('``', '`')}"
        return DeadLetter(
            row=row,
            reason=verdict.reason,
            code=coded.code,
            error=told,
            traceback=_stack(error),
            attempt=self.attempt_of(row),
            trace=head.trace if head else b"",
            type=kind,
        )


class Landing(NamedTuple):
    """What a flight had come to at one moment."""

    flight: Flight
    outcome: Outcome
    #: Is that all?
    complete: bool

    def log_dead(self, where: Callable[[Row], str]) -> None:
        """Tell which events go to the dead letters."""
        name = self.flight.plan.handler.name
        for letter in self.outcome.dead:
            event_id = text_of(letter.row[2])
            # Not the error itself: its text may hold what the payload holds, and logs are not erased.
            _log.error(
                "%s: event %s at %s goes to the dead letters (%s, %s); `headrace dlq show` has the error",
                name, event_id, where(letter.row), letter.reason, letter.code,
                extra={"event_id": event_id, "trace_id": letter.trace.hex(), "handler": name},
            )  # fmt: skip

    def report(
        self, dropped: AbstractSet[int], latencies_us: list[int], commit_s: float | None
    ) -> BatchReport:
        """Return what an observer is told when it has been committed, but for what was dropped."""
        outcome = self.outcome
        kept = [one for one in outcome.waiting if one.row[0] not in dropped]
        return BatchReport(
            handler=self.flight.plan.handler.name,
            version=self.flight.plan.version.name,
            latencies_us=latencies_us,
            emitted=len(outcome.emitted),
            waiting=len(outcome.waiting),
            dead=len(outcome.dead),
            retried=sum(one.state is OpenState.RETRY for one in kept),
            reasons=tuple(one.reason for one in outcome.dead if one.row[0] not in dropped),
            commit_s=commit_s,
        )


def _coded(error: BaseException, handler: str) -> errors.HeadraceError:
    if isinstance(error, errors.HeadraceError):
        return error
    return errors.HandlerFailed(f"({_said(error)})", handler=handler, error=type(error).__name__)


def _code_of(error: BaseException) -> str:
    return error.code if isinstance(error, errors.HeadraceError) else type(error).__name__


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as fault:  # noqa: BLE001 - the user's __str__ may do anything
        return f"(its text cannot be read: {type(fault).__name__})"


def _stack(error: BaseException) -> str:
    if isinstance(error, errors.HeadraceError) and error.__traceback__ is None:
        return ""
    text = users_traceback(error)
    return text if len(text) <= TRACEBACK_CHARS_MAX else "...\n" + text[-TRACEBACK_CHARS_MAX:]
