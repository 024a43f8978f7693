"""Is a worker alive, and is it fit for work: looked at from its loop, asked for by another thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from headrace import errors
from headrace.ports import Clock, Consumer
from headrace.ports.observer import ServerState, Survey

#: How often the loop shows that it turns, and how often it asks the journal how far behind it is.
BEAT_S, SURVEY_S = 0.25, 5.0
NOTHING = Survey({}, 0)


class Watched(Protocol):
    """One server of a worker."""

    consumer: Consumer

    def state(self) -> ServerState:
        """Return how it goes."""
        ...


class Verdict(NamedTuple):
    """An answer and why; without a reason it is yes."""

    reasons: list[str]

    @property
    def good(self) -> bool:
        """Is there nothing against it?"""
        return not self.reasons


class Look(NamedTuple):
    """One handler as it was seen last."""

    state: ServerState
    survey: Survey
    #: Why the journal could not say how far behind the handler is.
    problem: str = ""


class Health:
    """Keeps looking at the servers of a worker."""

    def __init__(self, clock: Clock, silence_ms_max: int) -> None:
        self._clock = clock
        self._silence_ns_max = silence_ms_max * 1_000_000
        self._seen_ns = clock.boot_ns()
        #: Replaced whole, so that another thread sees one look or the next.
        self.looks: tuple[Look, ...] = ()

    async def watch(self, servers: Sequence[Watched]) -> None:
        """Look until cancelled."""
        surveys: list[tuple[Survey, str]] = [(NOTHING, "")] * len(servers)
        due_ns, held = 0, list[int]()
        while True:
            self._see(servers, surveys)
            before, held = held, [look.state.held for look in self.looks]
            if self._seen_ns >= due_ns or held != before:
                surveys = [await self._ask(server) for server in servers]
                due_ns = self._clock.boot_ns() + int(SURVEY_S * 1e9)
                self._see(servers, surveys)
            await self._clock.sleep(BEAT_S)

    def _see(self, servers: Sequence[Watched], surveys: Sequence[tuple[Survey, str]]) -> None:
        self.looks = tuple(
            Look(server.state(), *asked) for server, asked in zip(servers, surveys, strict=True)
        )
        self._seen_ns = self._clock.boot_ns()

    async def _ask(self, server: Watched) -> tuple[Survey, str]:
        try:
            return await server.consumer.survey(), ""
        except errors.JournalError as fault:
            return NOTHING, str(fault)

    def silence_s(self) -> float:
        """Return for how long the event loop has not turned."""
        return (self._clock.boot_ns() - self._seen_ns) / 1e9

    def live(self) -> Verdict:
        """Does the event loop turn?"""
        silence_s = self.silence_s()
        if silence_s * 1e9 <= self._silence_ns_max:
            return Verdict([])
        return Verdict([f"the event loop has not turned for {silence_s:.1f} s: something blocks it"])

    def ready(self) -> Verdict:
        """Is everything there to handle events, here or in another worker?"""
        reasons = self.live().reasons
        if not self.looks:
            return Verdict([*reasons, "the worker has not started yet"])
        for state, survey, problem in self.looks:
            outage = state.outage or problem
            if outage:
                reasons.append(f"{state.handler}: {outage}")
            elif not state.held and survey.unowned:
                why = (
                    "none of them could be taken" if state.version else "this worker lacks the active version"
                )
                reasons.append(f"{state.handler}: {survey.unowned} partitions have no owner, and {why}")
        return Verdict(reasons)
