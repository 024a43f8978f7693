"""Which version of a handler this worker serves: loads, offers, reloads, and follows what is active."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from headrace import errors
from headrace.ports import Clock, Journal, LoadedModel, Observer, Offered, Row, VersionInfo, VersionOffer
from headrace.runtime.gather import Gather
from headrace.runtime.handlers import Handler
from headrace.runtime.plan import Plan
from headrace.runtime.reload import INTERVAL_MS, Watch
from headrace.runtime.threads import Threads

_log = logging.getLogger("headrace.model")

#: How often a model file is looked at; a change must hold for one more look before it is loaded.
RELOAD_LOOK_MS = INTERVAL_MS
#: Weights kept in memory: those that serve, and one more (a roll-back, or a file put in place too early).
LOADED_MAX = 2


@dataclass(slots=True)
class Quiet:
    """Lets a suspect of a crash run with nothing else in the process.

    While there are suspects no server takes anything new; a suspect starts once nothing is aloft, and what
    was being claimed at that moment waits until it has ended.
    """

    suspects: int = 0
    aloft: int = 0
    #: Is what is aloft a suspect?
    lone: bool = False


@dataclass(frozen=True, slots=True)
class Shared:
    """What the servers of a worker have in common."""

    quiet: Quiet
    observer: Observer | None
    balance_s: float
    #: Where an event lies, for people.
    where: Callable[[Row], str]


@dataclass(frozen=True, slots=True)
class Serving:
    """What a batch is handled with."""

    plan: Plan
    gather: Gather | None


class Versions:
    """The version of one handler in this process."""

    def __init__(
        self,
        handler: Handler,
        journal: Journal,
        executor: Executor,
        clock: Clock,
        compiled: Callable[[VersionInfo], Awaitable[Plan]],
    ) -> None:
        self._handler = handler
        self._journal = journal
        self._executor = executor
        self._clock = clock
        self._loader = Threads(1, f"headrace-load-{handler.name}")
        self._compiled = compiled
        self._loaded: dict[str, LoadedModel] = {}
        self._watch: Watch | None = None
        self._told = ""
        self._loading: asyncio.Future[LoadedModel | errors.HeadraceError | None] | None = None
        #: ``None`` while this worker has not got the active version.
        self.serving: Serving | None = None

    async def start(self) -> None:
        """Load the model and offer the version; raises the `ModelError` family when it cannot be loaded."""
        model = await self._load()
        if model is not None and self._handler.model is not None:
            self._watch = Watch(self._handler.model, model)
        await self._adopt(model, await self._offer(model))

    async def _load(self) -> LoadedModel | None:
        if self._handler.model is None:
            return None
        return await asyncio.get_running_loop().run_in_executor(self._loader, self._handler.model.load)

    async def look(self) -> None:
        """Take notice of a changed model file; a broken one leaves the old version serving."""
        if self._loading is not None and self._loading.done():
            loaded, self._loading = self._loading, None
            await self._take_up(loaded.result())
        watch = self._watch
        if watch is None or self._loading is not None or not watch.poll(self._clock.boot_ns() / 1e9):
            return
        # Beside the work, on a thread of its own: a large model takes seconds to build and to warm up.
        self._loading = asyncio.get_running_loop().run_in_executor(self._loader, watch.load)

    async def _take_up(self, found: LoadedModel | errors.HeadraceError | None) -> None:
        if isinstance(found, errors.HeadraceError):
            _log.error(
                "[%s] model of %s: the new file is not used, the old one keeps serving: %s Hint: %s",
                found.code, self._handler.name, found, found.hint,
            )  # fmt: skip
        elif found is not None:
            await self._adopt(found, await self._offer(found))

    async def follow(self) -> None:
        """Serve the version that the journal calls active, if this process can."""
        candidates: list[LoadedModel | None] = [*self._loaded.values()]
        for model in candidates or [None]:
            offered = await self._offer(model)
            if offered.active.id == offered.mine.id:
                await self._adopt(model, offered)
                return
        if self.serving is not None:
            self.serving = None
            if self._watch is not None:
                self._watch.again()  # the file may hold the active version by now; tried once
        await self.look()

    def close(self) -> None:
        """Free the models."""
        self._loader.shutdown(cancel_futures=True)
        for model in self._loaded.values():
            model.close()
        self._loaded.clear()
        self.serving = None

    async def _offer(self, model: LoadedModel | None) -> Offered:
        return await self._journal.offer(self._offer_of(model))

    def _offer_of(self, model: LoadedModel | None) -> VersionOffer:
        offer = VersionOffer(self._handler.name, self._handler.version)
        if model is None:
            return offer
        return offer._replace(model=model.name, digest=model.digest, model_declared=model.declared)

    async def _adopt(self, model: LoadedModel | None, offered: Offered) -> None:
        if model is not None:
            # The newest stand last; batches in flight hold their own reference to older ones.
            self._loaded.pop(model.digest, None)
            self._loaded[model.digest] = model
            self._forget_old()
        if offered.active.id != offered.mine.id:
            self._refuse(offered)
            return
        declared = self._handler.model
        gather = None
        if model is not None and declared is not None:
            gather = Gather(
                model, self._executor, batch_max=declared.batch_max, wait_ms=declared.batch_wait_ms
            )
        self.serving = Serving(await self._compiled(offered.mine), gather)
        self._told = ""
        if self._watch is not None:
            self._watch.serving = model
        _log.info("%s serves version %s", self._handler.name, offered.mine.name)

    def _forget_old(self) -> None:
        serving = self.serving.gather.model if self.serving and self.serving.gather else None
        idle = [digest for digest, model in self._loaded.items() if model is not serving]
        for digest in idle[: len(self._loaded) - LOADED_MAX]:
            del self._loaded[digest]

    def _refuse(self, offered: Offered) -> None:
        fault = errors.VersionInactive(
            handler=self._handler.name, version=offered.mine.name, active=offered.active.name
        )
        if self._told != offered.mine.name:  # once per version, not at every look
            self._told = offered.mine.name
            # A step of the documented way back: nothing has failed.
            _log.warning("[%s] %s Hint: %s", fault.code, fault, fault.hint)


class Pinned(Versions):
    """The version of a replay: what the files hold at its start, whatever is active and whatever comes."""

    _model: LoadedModel | None = None

    async def load(self) -> VersionOffer:
        """Load the model; return what this process can run.  Raises the `ModelError` family."""
        self._model = await self._load()
        return self._offer_of(self._model)

    async def serve(self, version: VersionInfo) -> None:
        """Be ready for events under the version that the journal has made of the offer."""
        await self._adopt(self._model, Offered(version, version))

    async def look(self) -> None:
        """Leave the files alone: another version would be another replay."""

    async def follow(self) -> None:
        """Stay: what is active does not matter."""
