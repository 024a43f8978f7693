"""A worker process: one server per handler, leases kept alive by a thread, an orderly end."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from headrace import errors
from headrace.ports import (
    Clock,
    Consumer,
    Journal,
    Keep,
    Observer,
    Subscription,
    Timing,
    VersionInfo,
    World,
)
from headrace.ports import Worker as Lease
from headrace.runtime.emission import Limits, Origin
from headrace.runtime.handlers import AT_LEAST_ONCE, Handler
from headrace.runtime.offload import ProcessPool
from headrace.runtime.pipeline import Pipeline
from headrace.runtime.plan import Beside, Plan, as_async, compile_plan
from headrace.runtime.provide import Resources
from headrace.runtime.server import Server
from headrace.runtime.serving import Quiet, Shared, Versions
from headrace.runtime.threads import Threads

_log = logging.getLogger("headrace.worker")

#: A renewal that failed is tried again so often before the next is due: a lease outlasts a stutter.
RENEWALS_PER_INTERVAL = 8
#: Between two steps of retention: it has at most a third of the write lock, and nothing while all is kept.
SWEEP_PAUSE_S_MIN, SWEEP_PAUSE_TIMES, SWEEP_IDLE_S = 0.002, 2, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What a worker can be told."""

    lease_ms: int = 10_000
    stop_grace_ms: int = 10_000
    #: How long topics keep their events, and how long ids are known after that.
    keeps: tuple[Keep, ...] = ()
    dedup_window_s: int = 2_592_000
    limits: Limits = field(default_factory=Limits)


class Worker:
    """Handles the events of an app in this process."""

    def __init__(  # noqa: PLR0913 - the parts of a process, by name
        self,
        journal: Journal,
        handlers: Sequence[Handler],
        world: World,
        *,
        app: str,
        known_types: frozenset[str],
        observer: Observer | None = None,
        settings: WorkerSettings | None = None,
        resources: Resources | None = None,
    ) -> None:
        self._journal = journal
        self._handlers = handlers
        self._app = app
        self._known_types = known_types
        self._world, self._clock = world, world.clock
        self._observer = observer
        self._settings = settings or WorkerSettings()
        self._resources = resources or Resources({}, None, {})
        self._pools: list[Threads | ProcessPool] = []
        self._quiet = Quiet()
        self._keeper: Keeper | None = None
        self._lease: Lease | None = None
        self.servers: list[Server] = []
        #: What is served, and by which handler.
        self._subscribed: dict[tuple[int, str], str] = {}

    async def start(self, *, keep: bool = True) -> None:
        """Join the journal, load the models, prepare a server per handler.

        Raises the `ModelError` family when a model cannot be loaded, `ProviderFailed` when what handlers
        share cannot be made: nothing was taken then.
        """
        await self._resources.open([kind for handler in self._handlers for kind in handler.needs.values()])
        self._lease = await self._journal.join(self._settings.lease_ms)
        for handler in self._handlers:
            self.servers.append(await self._server(handler, self._lease))
        self._keep(self._lease, keep=keep)

    async def start_or_finish(self, stop: asyncio.Event | None = None) -> None:
        """`start`; where that fails, what was opened and joined until then is left again.

        With ``stop`` set meanwhile it comes back at once, and `run` leaves what there is.
        """
        limit = asyncio.timeout(None)  # in this task: what handlers share is closed where it was opened
        try:
            async with limit:
                hearing = asyncio.create_task(_heard(stop or asyncio.Event(), limit))
                try:
                    await self.start()
                finally:
                    hearing.cancel()
        except BaseException as fault:
            if isinstance(fault, TimeoutError) and limit.expired():
                return
            await self.finish()
            raise

    def _keep(self, lease: Lease, *, keep: bool) -> None:
        if keep:
            longest = max((handler.deadline_ms for handler in self._handlers), default=0)
            self._keeper = Keeper(lease, self._clock, self._settings.lease_ms, longest)
            self._keeper.start()

    def parts(self) -> dict[str, Any]:
        """Return what this worker was made of, for one of another kind."""
        return {
            "journal": self._journal, "handlers": self._handlers, "world": self._world, "app": self._app,
            "known_types": self._known_types, "observer": self._observer, "settings": self._settings,
            "resources": self._resources,
        }  # fmt: skip

    async def _server(self, handler: Handler, lease: Lease) -> Server:
        topic = handler.consumes.topic
        subscription = await self._journal.subscribe(
            handler.name, topic, latest=handler.start_latest, was=handler.was
        )
        self._check_alone(handler, subscription)
        at_least_once = handler.delivery == AT_LEAST_ONCE
        consumer = self._journal.consumer(lease, subscription, at_least_once=at_least_once)
        compiled = self._compiler(handler, subscription)
        versions = Versions(handler, self._journal, self._inference(handler), self._clock, compiled)
        await versions.start()
        return self._serving(handler, consumer, versions)

    def _check_alone(self, handler: Handler, subscription: Subscription) -> None:
        """Refuse a handler that has taken the former name of another: the journal takes both for one."""
        served = subscription.id, subscription.born or handler.name
        other = self._subscribed.setdefault(served, handler.name)
        if other != handler.name:
            problem = "one name is a former one of the other, and the journal takes both for one handler"
            hint = "give the new handler a name that none had before"
            raise errors.RenameRefused(handler=handler.name, was=other, problem=problem, hint=hint)

    def _inference(self, handler: Handler) -> Threads:
        # One thread for each model: a slow one does not hold up another, and batches of one do not overlap.
        inference = Threads(1, f"headrace-model-{handler.name}")
        self._pools.append(inference)
        return inference

    def _compiler(
        self, handler: Handler, subscription: Subscription, beside: Beside | None = None
    ) -> Callable[[VersionInfo], Awaitable[Plan]]:
        """Return what makes the plan of a version."""
        processes = ProcessPool(handler.name, handler.concurrency) if handler.offload == "process" else None
        if processes is not None:
            self._pools.append(processes)
        call = _call_of(handler, processes)
        if handler.needs:
            values = self._resources.values
            call = partial(call, **{name: values[kind] for name, kind in handler.needs.items()})
        if isinstance(self._observer, Timing):
            call = self._observer.timed(handler.name, call)
        origin = Origin(self._app, f"service:{self._app}", self._settings.limits, self._clock)

        async def compiled(version: VersionInfo) -> Plan:
            born = subscription.born
            return await compile_plan(handler, version, self._journal, origin, call, born=born, beside=beside)

        return compiled

    def _serving(self, handler: Handler, consumer: Consumer, versions: Versions) -> Server:
        pipeline = Pipeline(
            self._journal,
            self._world,
            known_types=self._known_types,
            wake=consumer.wake,
            concurrency=handler.concurrency,
            threads=None if handler.is_async or handler.offload == "process" else self._pool(handler),
        )
        balance_s = self._settings.lease_ms / 1000 / 4
        shared = Shared(self._quiet, self._observer, balance_s, self._journal.where)
        return Server(handler, consumer, versions, pipeline, self._clock, shared)

    def _pool(self, handler: Handler) -> Threads:
        # As many threads again for those that hang: `Server` takes nothing more once all of them do.
        pool = Threads(2 * handler.concurrency, f"headrace-{handler.name}")
        self._pools.append(pool)
        return pool

    async def run(self, stop: asyncio.Event) -> int:
        """Serve until ``stop`` is set; returns how many events were handed back unfinished."""
        tasks = [asyncio.create_task(server.run(), name=server.name) for server in self.servers]
        waiter = asyncio.create_task(stop.wait())
        beat, sweep = asyncio.create_task(self._beat()), asyncio.create_task(self._sweep())
        try:
            done, _ = await asyncio.wait([*tasks, waiter], return_when=asyncio.FIRST_COMPLETED)
            for task in done - {waiter}:
                task.result()  # a server ends by itself only with an error
        finally:
            waiter.cancel()
            sweep.cancel()
            for server in self.servers:
                server.stop()
            await asyncio.gather(*tasks, return_exceptions=True)
            try:
                handed_back = await self.finish()
            finally:
                beat.cancel()  # the lease is needed until all is handed back
        return handed_back

    async def _beat(self) -> None:
        """Show the keeper that the event loop lives."""
        while True:
            if self._keeper is not None:
                self._keeper.loop_seen()
            await self._clock.sleep(self._settings.lease_ms / 1000 / 6)

    async def _sweep(self) -> None:
        """Keep the topics within their retention, a little between batches."""
        window_us = self._settings.dedup_window_s * 1_000_000
        sweeper = self._journal.sweeper(self._app, self._settings.keeps, window_us)
        failing = False
        while True:
            began_ns, more = self._clock.boot_ns(), False
            try:
                more = await sweeper.step()
                failing = False
            except errors.JournalError as fault:
                if not failing:  # once per outage
                    _log.warning("[%s] retention waits: %s", fault.code, fault)
                failing = True
            except Exception:  # noqa: BLE001 - events are handled all the same; the next start tries again
                _log.exception("retention has ended until the worker starts again")
                return
            took_s = (self._clock.boot_ns() - began_ns) / 1e9
            await self._clock.sleep(
                max(SWEEP_PAUSE_S_MIN, took_s * SWEEP_PAUSE_TIMES) if more else SWEEP_IDLE_S
            )

    async def finish(self) -> int:
        """Hand back what is held and leave; returns how many events were unfinished."""
        handed_back = 0
        try:
            grace_s = self._settings.stop_grace_ms / 1000
            # Side by side: the grace is that of the process, and a server that fails keeps back only its own.
            ends = [server.finish(grace_s) for server in self.servers]
            for end in await asyncio.gather(*ends, return_exceptions=True):
                if isinstance(end, BaseException):
                    raise end
                handed_back += end
            if self._keeper is not None:
                self._keeper.stop()  # before the lease's own connection is closed
            if self._lease is not None:
                await self._lease.leave()
        except errors.JournalError as fault:
            # What we hold is taken over when the lease runs out; nothing is lost.
            _log.warning("[%s] left without handing back: %s", fault.code, fault)
        finally:
            if self._keeper is not None:
                self._keeper.stop()
            for pool in self._pools:
                pool.shutdown(wait=False, cancel_futures=True)
            await self._resources.close()
        return handed_back


async def _heard(stop: asyncio.Event, limit: asyncio.Timeout) -> None:
    """End what has a limit once a stop is asked for."""
    await stop.wait()
    limit.reschedule(0.0)


def _call_of(handler: Handler, processes: ProcessPool | None) -> Callable[..., Awaitable[Any]]:
    """Return the handler's function in the shape of a coroutine function."""
    if processes is not None:
        return processes.calling(handler.fn)
    return handler.fn if handler.is_async else as_async(handler.fn)


class Keeper:
    """Renews the lease from a thread, so that a long or a blocking handler does not lose it.

    When the event loop has not moved for longer than the longest deadline of a handler, the process counts
    as hung: the lease is left to run out and others take over.
    """

    def __init__(self, lease: Lease, clock: Clock, lease_ms: int, deadline_ms: int) -> None:
        self._lease = lease
        self._clock = clock
        self._interval_s = lease_ms / 1000 / 3
        self._silence_ns_max = (deadline_ms + lease_ms) * 1_000_000
        self._seen_ns = clock.boot_ns()
        self._stopped = threading.Event()
        self._hung = self._failing = False
        self._thread = threading.Thread(target=self._run, name="headrace-lease", daemon=True)

    def start(self) -> None:
        """Begin to renew."""
        self._thread.start()

    def loop_seen(self) -> None:
        """Note that the event loop lives."""
        self._seen_ns = self._clock.boot_ns()

    def _run(self) -> None:
        wait_s = 0.0  # at once: models were loaded since the worker joined
        while not self._stopped.wait(wait_s):
            wait_s = self._interval_s
            if self._clock.boot_ns() - self._seen_ns > self._silence_ns_max:
                if not self._hung:
                    _log.error("the event loop is blocked beyond every deadline: the lease is not renewed")
                self._hung = True
                continue
            self._hung = False
            if not self._renewed():
                wait_s /= RENEWALS_PER_INTERVAL

    def _renewed(self) -> bool:
        try:
            if not self._lease.renew():
                _log.error("this worker was struck off the journal; its partitions go to others")
        except errors.JournalError as fault:
            if not self._failing:  # once per outage
                _log.warning("[%s] the lease could not be renewed: %s", fault.code, fault)
            self._failing = True
            return False
        self._failing = False
        return True

    def stop(self) -> None:
        """End the thread."""
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)
