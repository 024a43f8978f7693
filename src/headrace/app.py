"""`App`: topics, handlers and models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, overload

from headrace import errors
from headrace.event.contract import NAME, Contract, Event, contract_of
from headrace.event.envelope import PRINCIPAL_CHARS_MAX
from headrace.event.lineage import check_text
from headrace.gate.retention import Retention, keeps
from headrace.gate.retry import RetryPolicy
from headrace.runtime.handlers import DEADLINE_MS_DEFAULT, EXACTLY_ONCE, Handler, caller_names, declare
from headrace.runtime.provide import Provider, provider
from headrace.runtime.publish import Options, ParentRef, Said, Several
from headrace.settings import MEMORY, Settings, check_arguments, load
from headrace.wiring import journal_of, worker_settings

if TYPE_CHECKING:
    import asyncio

    from headrace.ports import Chance, Clock, Faults, Journal, Keep, Model, Observer
    from headrace.runtime.outlet import Aside, Outlet, Published
    from headrace.runtime.provide import Resources
    from headrace.runtime.worker import Worker

F = TypeVar("F", bound=Callable[..., Any])


class App:
    """An application: its handlers, the events they exchange, and the journal they share.

    ``name`` is part of the name of each handler (``name.function``), under which the journal keeps its
    progress.  ``journal`` overrides the setting of that name.  ``events`` names event classes that no
    handler mentions, so that they are known on their topics.  ``retention`` says how long the topics of
    event classes keep their events (``{Ticket: Retention(age=timedelta(days=30))}``); others keep them for
    ever.  ``lifespan`` is called with the app, and its asynchronous context is entered in every process that
    handles events, before the first and until after the last.  An app can be opened, run and closed by one
    event loop at a time; it holds nothing open until then, so it may be imported before a fork.
    """

    def __init__(
        self,
        name: str,
        *,
        journal: str | None = None,
        events: Iterable[type[Event]] = (),
        principal: str | None = None,
        settings: Settings | None = None,
        retention: Mapping[type[Event], Retention] | None = None,
        lifespan: Callable[[App], AbstractAsyncContextManager[object]] | None = None,
    ) -> None:
        check_arguments(
            "headrace.App",
            name=(name, (str,), "text"),
            journal=(journal, (str, NoneType), "text: a path or an address"),
            events=(events, (Iterable,), "a list of event classes"),
            settings=(settings, (Settings, NoneType), "an object of Settings"),
            retention=(retention, (Mapping, NoneType), "a mapping of event classes to Retention"),
        )
        if not NAME.fullmatch(name):
            problem = f"it is 1 to 200 of letters, digits, '.', '_' and '-', not {name!r}"
            raise errors.SettingInvalid(
                name="name", origin="headrace.App", problem=problem, hint="App('support')"
            )
        self.name = name
        self.principal = principal or f"service:{name}"
        check_text("principal", self.principal, PRINCIPAL_CHARS_MAX)
        self.handlers: dict[str, Handler] = {}
        self.contracts: dict[str, Contract] = {}
        self.providers: dict[Any, Provider] = {}
        self._lifespan = lifespan
        self._provided: Mapping[Any, object] = {}
        self._journal_url = journal
        self._given = settings
        self._settings: Settings | None = settings
        self._world: World | None = None
        self._outlet: Outlet | None = None
        self._aside: Aside | None = None
        #: Closed by its owner, it does not open by itself any more; how many ``async with`` have it open.
        self._closed, self._uses = False, 0
        #: The thread and the event loop that the journal is open on.
        self._home: tuple[int, asyncio.AbstractEventLoop] | None = None
        for event in events:
            self._know(contract_of(event))
        self.retention: dict[str, Keep] = {}
        for contract, keep in keeps(retention or {}):
            self._know(contract)
            self.retention[contract.topic] = keep

    # --- declaring ----------------------------------------------------------------------------

    @overload
    def handler(self, fn: F) -> F: ...
    @overload
    def handler(
        self,
        fn: None = None,
        *,
        model: Model | None = None,
        name: str | None = None,
        version: str | int = 1,
        retry: RetryPolicy | None = None,
        concurrency: int | None = None,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
        rate_per_s: float | None = None,
        start: str = "earliest",
        offload: str = "thread",
        delivery: str = EXACTLY_ONCE,
        was: str | None = None,
    ) -> Callable[[F], F]: ...
    def handler(  # noqa: PLR0913 - every argument is a keyword with a default
        self,
        fn: F | None = None,
        *,
        model: Model | None = None,
        name: str | None = None,
        version: str | int = 1,
        retry: RetryPolicy | None = None,
        concurrency: int | None = None,
        deadline_ms: int = DEADLINE_MS_DEFAULT,
        rate_per_s: float | None = None,
        start: str = "earliest",
        offload: str = "thread",
        delivery: str = EXACTLY_ONCE,
        was: str | None = None,
    ) -> F | Callable[[F], F]:
        """Declare a function as a handler; it stays an ordinary function that can be called.

        The first parameter is the event consumed, the return annotation what may be emitted.  Optional
        parameters: ``model``, ``ctx``, and by their types what `provide` gives.  A plain ``def`` runs in a
        thread, or with ``offload="process"`` in a process of its own (pure-Python work; no ``model``, no
        ``ctx``).  ``version`` (with the model's) decides what counts as handled: changed code without a
        changed ``version`` is not handled again. ``concurrency``, ``deadline_ms`` and ``rate_per_s`` (events
        that begin in a second) hold in one process; the workers of one ``headrace run`` share the rate.
        ``start`` is where a handler that is new to the journal begins: ``earliest`` or ``latest``.
        ``delivery="at_least_once"``: on Kafka what is emitted does not wait for a transaction; after a crash
        events may be handled again, and what they emit appear twice, under the same ids.  ``was`` is the name
        that the function had before: the renamed handler goes on where that one was.

        Raises `SignatureInvalid`, `HandlerTwice`, `TypeTwice`.
        """
        local_names = caller_names(1)

        def register(fn: F) -> F:
            declared = declare(
                fn,
                app=self.name,
                name=name,
                model=model,
                version=version,
                retry=retry,
                concurrency=concurrency,
                deadline_ms=deadline_ms,
                rate_per_s=rate_per_s,
                start=start,
                offload=offload,
                delivery=delivery,
                was=was,
                provided=self.providers,
                local_names=local_names,
            )
            self._register(declared)
            return fn

        return register if fn is None else register(fn)

    def provide(self, fn: F) -> F:
        """Declare a function that makes what handlers below ask for by its type: a pool, a client.

        The return annotation is the type; a function that yields once closes what it gave after that (``->
        AsyncIterator[Pool]``).  Parameters are types provided above it.  It is called once in every process
        that has a handler which asks for it, before the first event; the newest is closed first.

        Raises `ProviderInvalid`.
        """
        made = provider(fn, self.providers, caller_names(1))
        self.providers[made.gives] = made
        return fn

    def _register(self, handler: Handler) -> None:
        names = {handler.name, handler.was} - {None}
        for known in self.handlers.values():
            if names & {known.name, known.was}:  # one of them would have no history
                raise errors.HandlerTwice(handler=handler.name, first=known.where, second=handler.where)
        for contract in (handler.consumes, *handler.emits):
            self._know(contract)
        self.handlers[handler.name] = handler

    def _know(self, contract: Contract) -> None:
        known = self.contracts.setdefault(contract.type, contract)
        if known.cls is not contract.cls:
            raise errors.TypeTwice(type=contract.type, first=known.where, second=contract.where)

    # --- life ---------------------------------------------------------------------------------

    @property
    def settings(self) -> Settings:
        """The settings in force, read once; the ``journal`` argument of the app wins."""
        if self._settings is None:
            flags = {} if self._journal_url is None else {"journal": self._journal_url}
            self._settings = load(flags)
        return self._settings

    def configure(self, flags: Mapping[str, Any]) -> None:
        """Let flags of the command line win over everything else; before the app is opened."""
        own = {} if self._journal_url is None else {"journal": self._journal_url}
        self._settings = load(own | {name: value for name, value in flags.items() if value is not None})

    def place_in(self, world: World) -> None:
        """Use other parts of the world (a clock, chance, faults, a journal); before the app is opened."""
        self._world = world

    @contextmanager
    def borrowed(
        self, world: World, handlers: dict[str, Handler], given: Mapping[Any, object]
    ) -> Generator[None]:
        """Put the closed app into another world for a while, with other handlers and provided things."""
        if self._home is not None:
            raise errors.JournalLoopBound("The app is open.", hint="close it first, or use an app of its own")
        before = self._world, self.handlers, self._provided, self._closed
        self._world, self.handlers, self._provided, self._closed = world, handlers, given, False
        try:
            yield
        finally:
            self._world, self.handlers, self._provided, self._closed = before

    async def open(self) -> None:
        """Open the journal, also after `close`; harmless when open.  Raises the `JournalError` family."""
        if self._home is not None:
            return
        import asyncio

        self._world = self._world or World()
        self._outlet = await self._opened(self._world.journal or journal_of(self.settings, self._world))
        self._home, self._closed = (threading.get_ident(), asyncio.get_running_loop()), False

    async def _opened(self, journal: Journal) -> Outlet:
        from headrace.runtime.outlet import Outlet

        await journal.open()
        world, bytes_max = self._world or World(), self.settings.payload_bytes_max
        return Outlet(journal, world, self.name, self.principal, bytes_max)

    async def close(self) -> None:
        """Close the journal; harmless when it is closed.

        From then on `publish` raises `JournalClosed`, until `open`, `run` or ``async with`` opens it again.
        """
        if self._home is not None and self._outlet is not None:
            self._closed = True
            await self._outlet.journal.close()
        self._home = self._outlet = None
        self._uses = 0

    async def __aenter__(self) -> Self:
        await self.open()
        self._uses += 1
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._uses -= 1
        if self._uses <= 0:  # else it is open around this one
            await self.close()

    @property
    def journal(self) -> Journal:
        """The open journal; raises `JournalClosed`."""
        if self._outlet is None:
            raise errors.JournalClosed
        return self._outlet.journal

    # --- publishing ---------------------------------------------------------------------------

    @overload
    async def publish(self, event: Event, **options: Unpack[Said]) -> Published: ...
    @overload
    async def publish(self, event: Several, *, parents: Sequence[ParentRef] = ()) -> list[Published]: ...
    async def publish(self, event: Event | Several, **options: Unpack[Said]) -> Published | list[Published]:
        """Publish one event, or several as one unit: all or none.  Returns when they are on disk.

        Options: ``event_id``, ``parents``, ``traceparent``, ``tracestate``, ``headers``; of several events
        each may have its own, as a pair with `Options`.  ``event_id`` makes a repeated publish harmless: same
        id and same content succeed without effect, other content raises `EventConflict`.  ``parents`` are ids
        or envelopes of events that caused this one; they must be in the journal or in the same unit, else
        `ParentMissing`.  A unit has at most 10,000 events and 64 MiB, else `UnitTooLarge`.

        An app that was never opened opens by itself; one that was closed raises `JournalClosed`.

        Raises the `EventError` and `JournalError` families; nothing was written then.
        """
        found = await self._publish(event, Options(**options))
        return found[0] if isinstance(event, Event) else found

    async def _publish(self, event: Event | Several, options: Options) -> list[Published]:
        from headrace.runtime.outlet import unit_of

        unit = unit_of(event, options)
        if self._closed:
            raise errors.JournalClosed("The app was closed before.")
        await self.open()
        assert self._outlet is not None
        return await self._outlet.publish(unit)

    @overload
    def publish_sync(self, event: Event, **options: Unpack[Said]) -> Published: ...
    @overload
    def publish_sync(self, event: Several, *, parents: Sequence[ParentRef] = ()) -> list[Published]: ...
    def publish_sync(self, event: Event | Several, **options: Unpack[Said]) -> Published | list[Published]:
        """`publish` for code without an event loop: a script, a thread, a cell of a notebook.

        Waits until the events are on disk.  From a thread beside the loop that the app is open on, that loop
        does it; else a thread of the app's own, with a connection of its own, which only `close_sync` ends.
        """
        found = self._publish_sync(event, Options(**options))
        return found[0] if isinstance(event, Event) else found

    def _publish_sync(self, event: Event | Several, options: Options) -> list[Published]:
        from headrace.runtime.outlet import Aside, unit_of, waited

        unit, home = unit_of(event, options), self._home
        if home is not None and self._outlet is not None and home[0] != threading.get_ident():
            return waited(self._outlet.publish(unit), home[1])
        if (self._world is not None and self._world.journal is not None) or self.settings.journal == MEMORY:
            hint = "await app.publish(...) on the loop that the app is open on"
            raise errors.JournalLoopBound("A journal in memory has one connection.", hint=hint)
        self._aside = self._aside or Aside(self._open_aside)
        return self._aside.publish(unit)

    async def _open_aside(self) -> Outlet:
        return await self._opened(journal_of(self.settings, self._world or World()))

    def close_sync(self) -> None:
        """End what `publish_sync` has opened; harmless when there is nothing."""
        if self._aside is not None:
            self._aside.close()

    # --- running ------------------------------------------------------------------------------

    def worker(self, *, only: Iterable[str] | None = None, observer: Observer | None = None) -> Worker:
        """Return a worker for the handlers of this app (or some of them); the app must be open."""
        from headrace.runtime.worker import Worker

        world = self._world or World()
        wanted = set(self.handlers) if only is None else set(only)
        return Worker(
            self.journal,
            [handler for name, handler in self.handlers.items() if name in wanted],
            world,
            app=self.name,
            known_types=frozenset(self.contracts),
            observer=observer,
            settings=worker_settings(self.settings, self.retention.values()),
            resources=self._resources(),
        )

    def _resources(self) -> Resources:
        from headrace.runtime.provide import Resources

        lifespan = None if self._lifespan is None else partial(self._lifespan, self)
        return Resources(self.providers, lifespan, self._provided)

    async def run(self, stop: asyncio.Event | None = None, *, observer: Observer | None = None) -> int:
        """Handle events in this process until ``stop`` is set (or the task is cancelled).

        Opens the app if it is not open, and leaves it open: ``async with app:`` closes it.
        Returns how many events were handed back unfinished.
        """
        import asyncio

        await self.open()
        worker = self.worker(observer=observer)
        stop = stop or asyncio.Event()
        await worker.start_or_finish(stop)
        return await worker.run(stop)


class World:
    """The outside as an app sees it: clock, chance, failpoints, and a journal if not the settings' one."""

    def __init__(
        self,
        *,
        clock: Clock | None = None,
        chance: Chance | None = None,
        faults: Faults | None = None,
        journal: Journal | None = None,
    ) -> None:
        from headrace.ports import NoFaults
        from headrace.world import SystemChance, SystemClock

        self.clock: Clock = clock or SystemClock()
        self.chance: Chance = chance or SystemChance()
        self.faults: Faults = faults or NoFaults()
        self.journal = journal
