"""A handler compiled for one version and one journal: everything the hot path would look up twice."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from headrace.event.contract import SIDE_INFIX, Contract, Event
from headrace.event.envelope import Stamp
from headrace.event.lineage import Derivation
from headrace.ports import Journal, TopicInfo, VersionInfo
from headrace.runtime.emission import Emission, Origin, emission
from headrace.runtime.handlers import Handler

CONTENT_TYPE = "application/json"


@dataclass(frozen=True, slots=True)
class Plan:
    """One handler version, ready to run."""

    handler: Handler
    version: VersionInfo
    topic: TopicInfo
    call: Callable[..., Awaitable[Any]]
    derivation: Derivation
    #: The first name of the handler: ids stay the same when it is renamed.
    born: str
    #: How to emit each class: looked up by ``type(value)``.
    emissions: dict[type[Event], Emission]
    #: The same for the hot path: call, decode, emission by type, what it asks for
    #: besides: "" nothing, a parameter's name = a model and nothing else, ``None`` = see `Caller`.
    hot: tuple[
        Callable[..., Awaitable[Any]],
        Callable[[bytes], Event],
        Callable[[type[Any]], Emission | None],
        str | None,
    ]


class Beside(NamedTuple):
    """Where a replay puts what its handler emits: beside the live results."""

    side: str
    #: What ids of emitted events are derived from, in place of the handler's name.
    subscription: str


def side_topic(topic: str, side: str) -> str:
    """Return where the results of a side lie that would lie in a topic."""
    return f"{topic}{SIDE_INFIX}{side}"


def as_async(fn: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
    """Return a plain function in the shape of a coroutine function, so that one loop drives both."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call


async def compile_plan(
    handler: Handler,
    version: VersionInfo,
    journal: Journal,
    origin: Origin,
    call: Callable[..., Awaitable[Any]],
    *,
    born: str = "",
    beside: Beside | None = None,
) -> Plan:
    """Return the plan of a handler version; topics and stamps are made known to the journal."""
    contracts = handler.emits
    side = beside.side if beside else None
    stamps = [stamp_of(one, origin.app, handler, version)._replace(side=side) for one in contracts]
    numbers = await journal.intern(stamps)
    emissions: dict[type[Event], Emission] = {}
    for contract, stamp in zip(contracts, numbers, strict=True):
        topic = await journal.topic(contract.topic)
        if side is not None:
            topic = await journal.topic(side_topic(contract.topic, side), topic.partitions)
        emissions[contract.cls] = emission(contract, stamp, topic, journal, origin, later=handler.is_async)
    name = beside.subscription if beside else born or handler.name
    derivation = Derivation(name, version.name)
    decode = handler.consumes.decode
    return Plan(
        handler=handler,
        version=version,
        topic=await journal.topic(handler.consumes.topic),
        call=call,
        derivation=derivation,
        born=born or handler.name,
        emissions=emissions,
        hot=(call, decode, emissions.get, _asks(handler)),
    )


def _asks(handler: Handler) -> str | None:
    if not handler.wants:
        return ""
    return handler.wants["model"] if handler.is_async and list(handler.wants) == ["model"] else None


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
