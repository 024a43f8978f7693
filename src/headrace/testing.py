"""For tests of apps: a clock that is moved by hand, a model that echoes, failpoints, `run_until_idle`.

A test of an app is five lines, in memory, without a server and without a sleep::

    from headrace.testing import EchoModel, run_until_idle

    def test_route():
        ticket = Ticket(customer="ada", text="hi")
        result = run_until_idle(app, ticket, models={"route": EchoModel("greeting")})
        assert [one.intent for one in result.emitted(Routed)] == ["greeting"]
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from headrace import errors
from headrace.app import App, World
from headrace.event.contract import Event, contract_of
from headrace.event.label import Label
from headrace.journal.reader import PAGE_ROWS_MAX
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import (
    CARE_FAILPOINTS,
    FAILPOINTS,
    KAFKA_FAILPOINTS,
    REPLAY_FAILPOINTS,
    Chance,
    Faults,
    LoadedModel,
    Model,
    NoFaults,
)
from headrace.ports.look import StoredEvent
from headrace.runtime.rhythm import OUTAGE_S_MAX, OUTAGE_S_MIN
from headrace.runtime.server import Server
from headrace.world import SystemChance, SystemClock

E = TypeVar("E", bound=Event)

#: Steps without an end in sight: an app whose handlers feed each other never becomes idle.
STEPS_MAX = 1_000_000
#: Between two looks at handlers that are at work.
POLL_S = 0.0005
#: An outage of the journal that lasts longer, by the clock of the test, is what the test has to be told.
WAITED_S_MAX = 60.0


class ManualClock:
    """Time that moves only when told: `advance` (or a sleep, which returns at once) moves it."""

    def __init__(self, wall_us: int = 1_700_000_000_000_000) -> None:
        self._wall_us = wall_us
        self._boot_ns = 1_000_000_000

    def wall_us(self) -> int:
        """Return microseconds since 1970."""
        return self._wall_us

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970."""
        return self._wall_us * 1000

    def boot_ns(self) -> int:
        """Return nanoseconds since boot."""
        return self._boot_ns

    def boot_id(self) -> str:
        """Return a fixed name."""
        return "manual"

    async def sleep(self, seconds: float) -> None:
        """Move the time on and let others run."""
        self.advance(seconds)
        await asyncio.sleep(0)

    def nap(self, seconds: float) -> None:
        """Move the time on."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Move both clocks on."""
        self._boot_ns += int(seconds * 1e9)
        self._wall_us += int(seconds * 1e6)

    def set_wall(self, seconds: float) -> None:
        """Move the wall clock alone, also backwards, as an administrator or NTP may."""
        self._wall_us += int(seconds * 1e6)


class EchoModel:
    """A model without weights: gives every input the same label, or what a function makes of it.

    ``EchoModel("greeting")``, ``EchoModel("greeting", confidence=0.4)``,
    ``EchoModel(lambda text: Label(text.upper(), 1.0))``.
    """

    def __init__(
        self,
        answer: str | Callable[[Any], object],
        *,
        confidence: float = 1.0,
        name: str = "echo",
        version: str | None = None,
        batch_max: int = 64,
    ) -> None:
        self.name, self.batch_max, self.batch_wait_ms = name, batch_max, 0.0
        self.declared = version
        told = answer if isinstance(answer, str) else getattr(answer, "__qualname__", repr(answer))
        self.digest = hashlib.sha256(f"{told}\0{confidence}\0{version}".encode()).hexdigest()
        self._answer, self._confidence = answer, confidence

    def load(self, like: LoadedModel | None = None) -> LoadedModel:
        """Return itself: there is nothing to load."""
        del like
        return self

    def fingerprint(self) -> object:
        """Return a value that never changes."""
        return self.digest

    def infer(self, inputs: Sequence[object]) -> list[object]:
        """Return one answer per input."""
        if isinstance(self._answer, str):
            return [Label(self._answer, self._confidence) for _ in inputs]
        return [self._answer(one) for one in inputs]

    def close(self) -> None:
        """Do nothing."""


@dataclass(frozen=True, slots=True)
class Result:
    """What an app came to, once nothing was left to do."""

    #: Every event of the journal, published and emitted, in commit order.
    events: list[StoredEvent]
    #: Dead letters as ``(reason, code, error, payload)``.
    dead: list[tuple[str, str, str, bytes]]
    _published: int = field(repr=False)

    def emitted(self, kind: type[E]) -> list[E]:
        """Return the events of a class that handlers emitted, in commit order."""
        contract = contract_of(kind)
        return [
            contract.decode(one.payload)  # type: ignore[misc]  # the contract of E decodes to E
            for one in self.events
            if one.envelope.type == contract.type and one.envelope.handler is not None
        ]


def run_until_idle(
    app: App,
    *events: Event,
    models: Mapping[str, Model] | None = None,
    provide: Mapping[Any, object] | None = None,
    clock: ManualClock | None = None,
    chance: Chance | None = None,
    faults: Faults | None = None,
) -> Result:
    """Publish events in memory, handle everything that follows, return what came of it.

    The options are those of `until_idle`, the form for code that runs on an event loop.
    """
    return asyncio.run(
        until_idle(app, events, models=models, provide=provide, clock=clock, chance=chance, faults=faults)
    )


async def until_idle(
    app: App,
    events: Iterable[Event] = (),
    *,
    models: Mapping[str, Model] | None = None,
    provide: Mapping[Any, object] | None = None,
    clock: ManualClock | None = None,
    chance: Chance | None = None,
    faults: Faults | None = None,
) -> Result:
    """Publish events in memory, handle everything that follows, return what came of it.

    ``models`` puts other models in place, by the name of the handler's function; ``provide`` other things in
    the place of what `App.provide` would make, by their type.  Neither retries nor rates wait: the clock
    moves on by itself.  The app's own journal is not touched; its lifespan is entered.

    An outage of the journal (``faults=FailAt("settle.begin", JournalBusy(...))``) is waited out as by a
    worker, for at most a minute of that clock.  What is no outage is raised, and so is what `publish` or the
    start of the worker meets.
    """
    clock = clock or ManualClock()
    chance, faults = chance or SystemChance(), faults or NoFaults()
    journal = SqliteJournal(":memory:", clock=clock, chance=chance, faults=faults)
    world = World(clock=clock, chance=chance, faults=faults, journal=journal)
    with app.borrowed(world, _swapped(app, models), provide or {}):
        async with app:
            given = list(events)
            await app.publish(given)
            worker = app.worker()
            try:
                await worker.start(keep=False)
                await drain(worker.servers, clock)
            finally:
                await worker.finish()
            reader = journal.reader()
            return Result(_all(reader), reader.dead_rows(), len(given))


def _swapped(app: App, models: Mapping[str, Model] | None) -> dict[str, Any]:
    found = dict(app.handlers)
    for name, model in (models or {}).items():
        full = name if name in found else f"{app.name}.{name}"
        if full not in found:
            raise errors.SignatureInvalid(handler=full, problem="the app has no such handler")
        found[full] = replace(found[full], model=model)
    return found


class Patience:
    """Steps a server as a worker does: an outage of the journal is waited out, but not for ever."""

    def __init__(self, server: Server, clock: ManualClock) -> None:
        self._server, self._clock = server, clock
        self._wait_s = self._waited_s = 0.0

    async def step(self) -> bool:
        """Do what can be done now; raises what is no outage, and an outage that does not end."""
        try:
            progressed = await self._server.step()
        except errors.JournalError as fault:
            if not fault.retryable or self._waited_s >= WAITED_S_MAX:
                raise
            self._wait_s = min(OUTAGE_S_MAX, self._wait_s * 2 or OUTAGE_S_MIN)
            self._waited_s += self._wait_s
            await self._clock.sleep(self._wait_s)
            return True
        self._wait_s = self._waited_s = 0.0
        return progressed


async def drain(servers: Sequence[Server], clock: ManualClock) -> None:
    """Step servers until nothing is in flight, due, or waiting for a time to come."""
    patient = [Patience(server, clock) for server in servers]
    for _ in range(STEPS_MAX):
        if any([await one.step() for one in patient]):
            continue
        if any(not server.idle() for server in servers):
            # Handlers and models work in real time; the clock keeps step with it.
            began = asyncio.get_running_loop().time()
            await SystemClock().sleep(POLL_S)
            clock.advance(asyncio.get_running_loop().time() - began)
            continue
        due = [server.next_due_ns() for server in servers]
        times = [one for one in due if one is not None]
        if not times:
            return
        clock.advance(max(0.0, (min(times) - clock.boot_ns()) / 1e9))
    raise errors.DepthExceeded("The app does not become idle.", event_id="?", depth="?", limit=STEPS_MAX)


def _all(reader: Any) -> list[StoredEvent]:
    found: list[StoredEvent] = []
    while page := reader.events(after=found[-1].envelope.offset if found else 0):
        found += page
        if len(page) < PAGE_ROWS_MAX:
            break
    return found


class CrashAt:
    """Kills this process (SIGKILL) the ``hit``-th time that a failpoint is passed."""

    def __init__(self, point: str, hit: int = 1) -> None:
        _check(point)
        self._point, self._left = point, hit

    def at(self, point: str) -> None:
        """Die here, or pass."""
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)


class FailAt:
    """Raises an error the ``hit``-th time that a failpoint is passed, ``times`` times in a row.

    A retryable `JournalError` is an outage, which workers (and `run_until_idle`) wait out.
    """

    def __init__(self, point: str, error: BaseException, hit: int = 1, times: int = 1) -> None:
        _check(point)
        self._point, self._error = point, error
        self._hits = range(hit, hit + times)
        self._passed = 0

    def at(self, point: str) -> None:
        """Raise here, or pass."""
        if point == self._point:
            self._passed += 1
            if self._passed in self._hits:
                raise self._error


def _check(point: str) -> None:
    if point not in FAILPOINTS + CARE_FAILPOINTS + REPLAY_FAILPOINTS + KAFKA_FAILPOINTS:
        raise errors.SettingInvalid(
            name="failpoint", origin="the test", problem=f"{point!r} is not one of them"
        )
