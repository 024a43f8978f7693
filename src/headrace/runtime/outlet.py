"""Publishing the events of an app into one open journal, and from threads that have no event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import TimeoutError as Late
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from pydantic import BaseModel

from headrace import errors
from headrace.event.contract import Contract, Event, contract_of
from headrace.ports import Journal, World
from headrace.runtime.plan import stamp_of
from headrace.runtime.publish import Options, Publisher, Several, Unit

T = TypeVar("T")
#: A publish waits at most half a minute for another writer, and for a flush; whoever waits for its loop
#: longer than this waits for one that is blocked.
PUBLISH_S_MAX = 60.0


class Published(NamedTuple):
    """What became of one published event."""

    event_id: UUID
    #: True when the same event was in the journal already.
    duplicate: bool


def unit_of(event: Event | Several, options: Options) -> Sequence[tuple[Event, Options]]:
    """Return what is published as one unit.

    Raises `EnvelopeInvalid` where several would share an option, `NotAnEvent` for what is none.
    """
    if isinstance(event, Event):
        return [(event, options)]
    if not _are_several(event):
        raise _no_event("The argument", event)
    shared = Options(parents=options.parents)
    if options != shared:
        given = next(at for at in Options.__slots__ if getattr(options, at) != getattr(shared, at))
        problem = "several events cannot share it; publish pairs of an event and its Options"
        raise errors.EnvelopeInvalid(attribute=given, problem=problem)
    return [_pair(one, shared, at) for at, one in enumerate(event)]


def _are_several(found: object) -> bool:
    one = isinstance(found, (type, str, bytes, Mapping, BaseModel))
    return isinstance(found, Iterable) and not one


def _pair(one: object, shared: Options, at: int) -> tuple[Event, Options]:
    """Return an event of several with its options."""
    hint = 'a pair is ``(event, Options(event_id="..."))``'
    match one:
        case Event():
            return one, shared
        case (Event() as event, Options() as options):
            return event, options
        case (Event(), object() as wrong):
            raise _no_event(f"[{at}][1]", wrong, hint)
        case _:
            raise _no_event(f"[{at}]", one, hint if isinstance(one, tuple) else None)


def _no_event(place: str, found: object, hint: str | None = None) -> errors.NotAnEvent:
    kind = type(found).__name__
    told = "None" if found is None else f"of type {kind}, not an event"
    if isinstance(found, type):
        told = f"the class {found.__name__}, not an event"
    return errors.NotAnEvent(place=place, found=told, hint=hint)


class Outlet:
    """Publishes for one app into one journal, on the event loop that the journal is open on."""

    def __init__(self, journal: Journal, world: World, app: str, principal: str, bytes_max: int) -> None:
        self.journal = journal
        self._app = app
        self._publisher = Publisher(journal, world, f"headrace/{app}", principal, bytes_max)
        self._stamps: dict[str, int] = {}

    async def publish(self, unit: Sequence[tuple[Event, Options]]) -> list[Published]:
        """Publish all or none; returns when they are on disk."""
        if not unit:
            return []
        whole = Unit(len(unit), self.journal.address)
        for event, options in unit:
            contract = contract_of(type(event))
            stamp = self._stamps.get(contract.type) or await self._stamp(contract)
            whole.add(await self._publisher.prepare(contract, event, options, stamp), contract.type)
        receipts = await self.journal.publish(whole.records)
        return [Published(UUID(bytes=one.event_id), one.duplicate) for one in receipts]

    async def _stamp(self, contract: Contract) -> int:
        (known,) = await self.journal.intern([stamp_of(contract, self._app)])
        self._stamps[contract.type] = known
        return known


class Aside:
    """A journal that is open on an event loop in a thread of its own, for code that has no loop."""

    def __init__(self, opened: Callable[[], Coroutine[Any, Any, Outlet]]) -> None:
        self._opened = opened
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outlet: Outlet | None = None

    def publish(self, unit: Sequence[tuple[Event, Options]]) -> list[Published]:
        """Publish and wait; may be called from any thread."""
        with self._lock:
            if self._loop is None or self._pid != os.getpid():  # a forked child has no thread but its own
                self._pid = os.getpid()
                self._loop = self._started()
                self._outlet = None
            if self._outlet is None:
                self._outlet = waited(self._opened(), self._loop)
            outlet, loop = self._outlet, self._loop
        return waited(outlet.publish(unit), loop)

    def _started(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.new_event_loop()
        threading.Thread(target=_turn, args=(loop,), name="headrace-publish", daemon=True).start()
        return loop

    def close(self) -> None:
        """Close the journal and end the thread; harmless when that is done."""
        with self._lock:
            loop, outlet = self._loop, self._outlet
            self._loop = self._outlet = None
            if loop is None or self._pid != os.getpid():
                return
            if outlet is not None:
                waited(outlet.journal.close(), loop)
            loop.call_soon_threadsafe(loop.stop)


def _turn(loop: asyncio.AbstractEventLoop) -> None:
    try:
        loop.run_forever()
    finally:
        loop.close()


def waited(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Return what comes of work on the loop of another thread; raises `JournalUnavailable`."""
    try:
        found = asyncio.run_coroutine_threadsafe(work, loop)
    except RuntimeError:  # the loop has been closed meanwhile
        work.close()
        raise errors.JournalClosed from None
    try:
        return found.result(PUBLISH_S_MAX)
    except Late:
        found.cancel()
        raise errors.JournalUnavailable(
            f"Its event loop is silent for {PUBLISH_S_MAX:.0f} s: nobody knows what became of the event.",
            path="(publish_sync)",
            hint="publish it again under the same event_id; look for what blocks the event loop",
        ) from None
