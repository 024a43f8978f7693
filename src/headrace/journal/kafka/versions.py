"""Versions on Kafka: offers and activations are records of one topic; what holds follows from them.

The numbers of versions and the epochs of models are given in the order of the records, so every process, and
every index made anew, gives the same.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from confluent_kafka import Message

from headrace.codec.commands import (
    Activate,
    Offer,
    Trial,
    VersionCommand,
    read_version_command,
    write_command,
)
from headrace.journal.kafka.client import Admin, Topic
from headrace.journal.kafka.produce import Out, Publisher
from headrace.journal.versions import chosen, handler_unknown, info_of
from headrace.ports import Clock, Faults, Offered, VersionInfo, VersionOffer
from headrace.ports.index import HandlerRow, Index, ModelRow, Projection, VersionRow

#: The topic of the commands: one partition, for their order is what counts; nothing of it is ever deleted.
VERSIONS = "headrace.versions"
_KEPT = {"cleanup.policy": "delete", "retention.ms": "-1", "retention.bytes": "-1"}


class Known:
    """What follows from the commands so far; the same commands always lead to the same."""

    def __init__(self) -> None:
        #: The first offset of the topic that is not applied yet.
        self.upto = 0
        self._models: dict[tuple[str, str], ModelRow] = {}
        self._epochs: dict[str, int] = {}
        self._handlers: dict[str, HandlerRow] = {}
        self._versions: dict[tuple[str, str, int], VersionRow] = {}
        #: Numbers of the versions that replays alone know.
        self._tried: set[int] = set()

    def apply(self, command: VersionCommand) -> None:
        """Apply the next command."""
        handler = self._handlers.get(command.handler)
        version = self._version(command.handler, command.declared, command.model, command.digest)
        if isinstance(command, Trial):
            if handler is not None and version is None:
                self._tried.add(self._add(handler, command).id)
        elif isinstance(command, Offer):
            if version is None or version.id in self._tried:  # else two workers offered it at once
                handler = handler or HandlerRow(len(self._handlers) + 1, command.handler, 0)
                self._activate(handler, version or self._add(handler, command))
        elif handler is not None and version is not None:
            self._activate(handler, version)

    def _activate(self, handler: HandlerRow, version: VersionRow) -> None:
        self._handlers[handler.name] = handler._replace(active=version.id)
        self._tried.discard(version.id)

    def _add(self, handler: HandlerRow, command: Offer | Trial) -> VersionRow:
        model = 0 if command.digest is None else self._model(command).id
        number = len(self._versions) + 1
        version = VersionRow(number, handler.id, command.declared, model, command.at_us)
        self._versions[command.handler, command.declared, model] = version
        return version

    def _model(self, command: Offer | Trial) -> ModelRow:
        name, digest = command.model or "", command.digest or ""
        found = self._models.get((name, digest))
        if found is None:
            epoch = self._epochs[name] = self._epochs.get(name, 0) + 1
            number = len(self._models) + 1
            found = ModelRow(number, name, epoch, command.model_declared, digest, command.at_us)
            self._models[name, digest] = found
        return found

    def _version(
        self, handler: str, declared: str, model: str | None, digest: str | None
    ) -> VersionRow | None:
        number = 0
        if digest is not None:
            found = self._models.get((model or "", digest))
            if found is None:
                return None
            number = found.id
        return self._versions.get((handler, declared, number))

    def offered(self, offer: VersionOffer) -> Offered | None:
        """Return the answer to an offer; ``None`` where nobody knows the version, or replays alone do."""
        version = self._version(offer.handler, offer.declared, offer.model, offer.digest)
        active = self.active(offer.handler)
        if version is None or active is None or version.id in self._tried:
            return None
        return Offered(self._info(version), active)

    def tried(self, offer: VersionOffer) -> VersionInfo:
        """Return the version that a replay can run; one that nobody knows yet has the number 0."""
        version = self._version(offer.handler, offer.declared, offer.model, offer.digest)
        if version is not None:
            return self._info(version)
        told: tuple[str | int | None, ...] = (None,) * 4
        if offer.digest is not None:
            name = offer.model or ""
            found = self._models.get((name, offer.digest))
            epoch = self._epochs.get(name, 0) + 1 if found is None else found.epoch
            told = (name, offer.digest, epoch, offer.model_declared if found is None else found.declared)
        return info_of((0, offer.handler, offer.declared, *told))

    def handlers(self) -> list[str]:
        """Return the names of all handlers, as they appeared."""
        return list(self._handlers)

    def number_of(self, handler: str) -> int:
        """Return the number of a handler, 0 for one that was never offered."""
        found = self._handlers.get(handler)
        return 0 if found is None else found.id

    def active(self, handler: str) -> VersionInfo | None:
        """Return the active version of a handler."""
        found = self._handlers.get(handler)
        return next((one for one in self.of(handler) if found and one.id == found.active), None)

    def of(self, handler: str) -> list[VersionInfo]:
        """Return the versions of a handler, oldest first."""
        return [self._info(row) for (name, _, _), row in self._versions.items() if name == handler]

    def _info(self, row: VersionRow) -> VersionInfo:
        handler = next(one.name for one in self._handlers.values() if one.id == row.handler)
        model = next((one for one in self._models.values() if one.id == row.model), None)
        told = (None,) * 4 if model is None else (model.name, model.digest, model.epoch, model.declared)
        return info_of((row.id, handler, row.declared, *told))

    def projection(self, log: bytes) -> Projection:
        """Return all of it as the index is to hold it."""
        return Projection(
            log,
            self.upto,
            list(self._models.values()),
            list(self._handlers.values()),
            list(self._versions.values()),
        )


class Cluster(Protocol):
    """What the topic is read and written through."""

    index: Index
    clock: Clock
    faults: Faults

    @property
    def publisher(self) -> Publisher:
        """Return the producer of single records."""
        ...

    def opened(self) -> Admin:
        """Return the client for topics."""
        ...

    async def read_on(self, topic: str, partition: int, start: int) -> list[Message]:
        """Return the records from an offset to what is the end now."""
        ...


class Versions:
    """The topic of the commands, read as far as this process has; the index follows it.

    An activation counts from when the index shows it, for a claim asks the index in its own transaction.  Who
    appended it sees to that; if he dies in between, the next who reads the topic does.
    """

    def __init__(self, log: Cluster, name: str = VERSIONS) -> None:
        self._log, self._name, self._known = log, name, Known()
        self._topic: Topic | None = None
        self._turn = asyncio.Lock()
        #: The highest offset that the index was seen to have applied.
        self._seen = 0

    async def catch_up(self) -> Known:
        """Read the topic to its end, and have the index show what follows from it."""
        async with self._turn:
            if self._topic is None:
                self._topic = await self._log.opened().make(self._name, 1, **_KEPT)
            known = self._known
            for message in await self._log.read_on(self._name, 0, known.upto):
                command = read_version_command(message.value() or b"")
                if command is not None:
                    known.apply(command)
                known.upto = (message.offset() or 0) + 1
            await self._log.index.project(known.projection(self._topic.topic_id))
            self._seen = known.upto
            return known

    def behind(self, upto: int) -> bool:
        """Return whether an index that has applied the commands below ``upto`` was set back, or is new."""
        self._seen = max(self._seen, upto)
        return upto < self._seen

    async def offer(self, offer: VersionOffer) -> Offered:
        """Make a version known; one never seen before becomes the active one."""
        found = (await self.catch_up()).offered(offer)
        if found is not None:
            return found
        await self._append(Offer(*self._told(offer)))
        found = (await self.catch_up()).offered(offer)
        self._log.faults.at("version.offered")
        assert found is not None, "the topic was read beyond what was appended"
        return found

    async def try_out(self, offer: VersionOffer) -> VersionInfo:
        """Make a version known that a replay can run; the active one stays active."""
        found = (await self.catch_up()).tried(offer)
        if not found.id:
            await self._append(Trial(*self._told(offer)))
            found = (await self.catch_up()).tried(offer)
        return found

    def _told(self, offer: VersionOffer) -> tuple[str, str, int, str | None, str | None, str | None]:
        """Return what a command says of an offer."""
        model = offer.model if offer.digest is not None else None
        now_us = self._log.clock.wall_us()
        return offer.handler, offer.declared, now_us, model, offer.digest, offer.model_declared

    async def activate(self, handler: str, text: str) -> VersionInfo:
        """Make a known version the active one; raises `HandlerUnknown` or `VersionUnknown`."""
        known = await self.catch_up()
        if handler not in known.handlers():
            raise handler_unknown(handler, known.handlers())
        wanted = chosen(known.of(handler), handler, text)
        now = self._log.clock.wall_us()
        await self._append(Activate(handler, wanted.declared, now, wanted.model, wanted.digest))
        await self.catch_up()
        return wanted

    async def _append(self, command: VersionCommand) -> None:
        record = Out(self._name, 0, command.handler.encode(), write_command(command))
        await self._log.publisher.publish(record)
        self._log.faults.at("version.appended")
