"""A handler compiled for one version and one journal: everything the hot path would look up twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from headrace import errors
from headrace.event.contract import Contract, Event, check_key
from headrace.event.envelope import Stamp
from headrace.event.lineage import Derivation, partition_of
from headrace.ports import Journal, TopicInfo, VersionInfo
from headrace.runtime.handlers import Handler

CONTENT_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Emission:
    """What is needed to emit one event class: bound once, looked up by ``type(value)``."""

    contract: Contract
    stamp: int
    topic: TopicInfo
    place: int  # the place of partition 0
    bytes_max: int

    def encode(self, value: Event) -> bytes:
        """Return the payload bytes; raises `PayloadInvalid` or `PayloadTooLarge`."""
        body = self.contract.encode(value)
        if len(body) > self.bytes_max:
            raise errors.PayloadTooLarge(
                type=self.contract.type, size_bytes=len(body), limit_bytes=self.bytes_max
            )
        return body

    def key_of(self, value: Event) -> str | None:
        """Return the key; raises `KeyInvalid`."""
        key = self.contract.key_of(value)
        check_key(self.contract.type, key)
        return key

    def place_of(self, key: str | None, event_id: bytes) -> int:
        """Return the journal's number of the partition the event belongs to."""
        return self.place + partition_of(key, event_id, self.topic.partitions)


@dataclass(frozen=True, slots=True)
class Plan:
    """One handler version, ready to run."""

    handler: Handler
    version: VersionInfo
    subscription: int
    topic: TopicInfo
    call: Callable[..., Awaitable[Any]]
    derivation: Derivation
    emissions: dict[type[Event], Emission]
    #: Number of the stamp of the events that this handler takes; others are looked at one by one.
    principal: str
    depth_max: int


def as_async(fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return a plain function in the shape of a coroutine function, so that one loop drives both."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of what a handler may emit."""

    payload_bytes_max: int = 1 << 20
    #: A chain longer than this is taken for a cycle.
    depth_max: int = 256


async def compile_plan(
    handler: Handler,
    version: VersionInfo,
    journal: Journal,
    *,
    subscription: int,
    app: str,
    principal: str,
    limits: Limits,
) -> Plan:
    """Return the plan of a handler version; topics and stamps are made known to the journal."""
    contracts = handler.emits
    stamps = await journal.intern([stamp_of(one, app, handler, version) for one in contracts])
    emissions: dict[type[Event], Emission] = {}
    for contract, stamp in zip(contracts, stamps, strict=True):
        topic = await journal.topic(contract.topic)
        place = journal.place(topic, 0)
        emissions[contract.cls] = Emission(contract, stamp, topic, place, limits.payload_bytes_max)
    return Plan(
        handler=handler,
        version=version,
        subscription=subscription,
        topic=await journal.topic(handler.consumes.topic),
        call=handler.fn if handler.is_async else as_async(handler.fn),
        derivation=Derivation(handler.name, version.name),
        emissions=emissions,
        principal=principal,
        depth_max=limits.depth_max,
    )


def stamp_of(
    contract: Contract, app: str, handler: Handler | None = None, version: VersionInfo | None = None
) -> Stamp:
    """Return what is the same for all events of a class from one publisher or handler version."""
    return Stamp(
        type=contract.type,
        source=f"headrace/{app}",
        schema_version=contract.schema_version,
        content_type=CONTENT_TYPE,
        handler=f"{handler.name}@{version.declared}" if handler and version else None,
        model=version.model_name if version else None,
    )
