"""Which version of a handler this worker serves: loads, offers, reloads, and follows what is active."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass

from headrace import errors
from headrace.ports import Journal, LoadedModel, Model, Offered, VersionInfo, VersionOffer
from headrace.runtime.gather import Gather
from headrace.runtime.handlers import Handler
from headrace.runtime.plan import Plan

_log = logging.getLogger("headrace.model")

#: How often a model file is looked at; a change must hold for one more look before it is loaded.
RELOAD_LOOK_MS = 200
#: Weights kept in memory: those that serve, and one more (a roll-back, or a file put in place too early).
LOADED_MAX = 2


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
        compiled: Callable[[VersionInfo], Awaitable[Plan]],
    ) -> None:
        self._handler = handler
        self._journal = journal
        self._executor = executor
        self._compiled = compiled
        self._loaded: dict[str, LoadedModel] = {}
        self._watch = Watch(handler.model) if handler.model else None
        self._told = ""
        #: ``None`` while this worker has not got the active version.
        self.serving: Serving | None = None

    async def start(self) -> None:
        """Load the model and offer the version; raises the `ModelError` family when it cannot be loaded."""
        model = await self._load() if self._handler.model else None
        await self._adopt(model, await self._offer(model))

    async def look(self) -> None:
        """Take notice of a changed model file; a broken one leaves the old version serving."""
        if self._watch is None or not self._watch.changed():
            return
        try:
            model = await self._load()
        except errors.HeadraceError as fault:
            _log.error(
                "model of %s: the new file is not used, the old one keeps serving: %s (%s)",
                self._handler.name, fault, fault.hint,
            )  # fmt: skip
            return
        if not self._is_serving(model):
            await self._adopt(model, await self._offer(model))

    async def follow(self) -> None:
        """Serve the version that the journal calls active, if this process can."""
        candidates: list[LoadedModel | None] = [*self._loaded.values()] or [None]
        for model in candidates:
            offered = await self._offer(model)
            if offered.active.id == offered.mine.id:
                await self._adopt(model, offered)
                return
        self.serving = None
        if self._watch is not None:
            self._watch.again()
            await self.look()

    def close(self) -> None:
        """Free the models."""
        for model in self._loaded.values():
            model.close()
        self._loaded.clear()
        self.serving = None

    def _is_serving(self, model: LoadedModel) -> bool:
        serving = self.serving
        return serving is not None and serving.gather is not None and serving.gather.model is model

    async def _load(self) -> LoadedModel:
        """Load off the loop; bytes that are in memory already are not kept twice."""
        assert self._handler.model is not None
        loop = asyncio.get_running_loop()
        old = self.serving.gather.model if self.serving and self.serving.gather else None
        model = await loop.run_in_executor(self._executor, self._handler.model.load, old)
        known = self._loaded.get(model.digest)
        if known is not None:
            model.close()
            return known
        self._loaded[model.digest] = model
        return model

    async def _offer(self, model: LoadedModel | None) -> Offered:
        offer = VersionOffer(self._handler.name, self._handler.version)
        if model is not None:
            offer = offer._replace(model=model.name, digest=model.digest, model_declared=model.declared)
        return await self._journal.offer(offer)

    async def _adopt(self, model: LoadedModel | None, offered: Offered) -> None:
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
        _log.info("%s serves version %s", self._handler.name, offered.mine.name)
        self._forget_old(model)

    def _refuse(self, offered: Offered) -> None:
        fault = errors.VersionInactive(
            handler=self._handler.name, version=offered.mine.name, active=offered.active.name
        )
        if self._told != offered.mine.name:  # once per version, not at every look
            self._told = offered.mine.name
            _log.error("%s (%s)", fault, fault.hint)

    def _forget_old(self, model: LoadedModel | None) -> None:
        """Keep the weights that serve and the newest others; batches in flight hold their own reference."""
        if model is None:
            return
        self._loaded[model.digest] = self._loaded.pop(model.digest)
        while len(self._loaded) > LOADED_MAX:
            del self._loaded[next(iter(self._loaded))]


class Watch:
    """Tells a changed model file, once it has stopped changing.

    Polls `Model.fingerprint`, so an atomic rename, a write in place and a switched symbolic link all show,
    on every system.
    """

    def __init__(self, model: Model) -> None:
        self._model = model
        self._used = model.fingerprint()
        self._seen = self._used

    def changed(self) -> bool:
        """Return ``True`` once for each new state that has held for two looks."""
        now = self._model.fingerprint()
        settled = now == self._seen
        self._seen = now
        if not settled or now == self._used:
            return False
        self._used = now
        return True

    def again(self) -> None:
        """Report the present state as a change, after the next look."""
        self._used = None
        self._seen = self._model.fingerprint()
