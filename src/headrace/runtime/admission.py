"""From a claimed batch to a line: which events are to be run."""

from __future__ import annotations

from headrace import errors
from headrace.event.envelope import Head, Stamp
from headrace.gate.admit import Admit, admit
from headrace.gate.retry import crashed_out
from headrace.ports import Chance, Journal, OpenState, Row
from headrace.runtime.flight import Flight, Line
from headrace.runtime.plan import Plan

SPAN_BYTES = 8


class Admission:
    """Decides by the stamp of an event, once per stamp, and by its attempts."""

    def __init__(self, journal: Journal, chance: Chance, known_types: frozenset[str]) -> None:
        self._journal, self._chance = journal, chance
        self._known_types = known_types
        self._admitted: dict[int, Admit | errors.EventError] = {}
        #: Stamps met so far, by number.
        self.stamps: dict[int, Stamp] = {}

    def heads(self, flight: Flight) -> list[Head | None]:
        """Return the envelopes of a batch; ``None`` for one that cannot be read, which is finished here."""
        decode = self._journal.decode_head
        rows = flight.batch.rows
        try:
            return [decode(row[5]) for row in rows]
        except ValueError:
            return [self._head(flight, row) for row in rows]

    def _head(self, flight: Flight, row: Row) -> Head | None:
        try:
            return self._journal.decode_head(row[5])
        except ValueError as fault:
            flight.fail(row, None, errors.HeadCorrupt(str(fault), offset=row[0]), "")
            return None

    async def learn(self, plan: Plan, heads: list[Head | None]) -> None:
        """Decide about stamps that were not met before."""
        for number in {head.stamp for head in heads if head is not None} - self._admitted.keys():
            await self._decide(plan, number)

    async def _decide(self, plan: Plan, number: int) -> None:
        stamp = await self._journal.stamp(number)
        self.stamps[number] = stamp or Stamp("", "", 0)
        wanted, topic = plan.handler.consumes.type, plan.topic.name
        self._admitted[number] = admit(stamp, wanted, self._known_types, topic)

    def line_of(
        self,
        flight: Flight,
        heads: list[Head | None],
        waits: dict[str, int],
    ) -> Line:
        """Return the events to be run, in commit order; new ones of a key that waits are given back."""
        admitted, rows = self._admitted, flight.batch.rows
        drawn = self._chance.bytes(SPAN_BYTES * len(rows))
        spans = [drawn[at : at + SPAN_BYTES] for at in range(0, len(drawn), SPAN_BYTES)]
        line: Line = []
        for row, head, span in zip(rows, heads, spans, strict=True):
            if head is None or (admitted[head.stamp] is not Admit.RUN and self._passed(flight, row, head)):
                continue
            if flight.batch.attempts and self._crashed(flight, row, head):
                continue
            key = head.key
            if key in waits and not flight.batch.attempts:
                # Claimed before the journal knew that an earlier event waits.  One that was open is not
                # meant: the journal has seen that it is the first of its key.
                waits[key] += 1
                flight.give_back(row, OpenState.BLOCKED)
                continue
            line += (flight, row, head, span)
        return line

    def _passed(self, flight: Flight, row: Row, head: Head) -> bool:
        """Finish an event that is not for this handler, or not acceptable."""
        verdict = self._admitted[head.stamp]
        if isinstance(verdict, errors.EventError):
            flight.fail(row, head, verdict, self.stamps[head.stamp].type)
        else:
            flight.outcome.done.append(row)
            flight.left -= 1
        return True

    def _crashed(self, flight: Flight, row: Row, head: Head) -> bool:
        """Finish an event that has taken the process with it too often."""
        attempt = flight.attempt_of(row)
        if not (attempt.crashes and crashed_out(attempt, flight.plan.handler.retry)):
            return False
        error = errors.HandlerCrashed(crashes=attempt.crashes, handler=flight.plan.handler.name)
        flight.fail(row, head, error, self.stamps[head.stamp].type)
        return True
