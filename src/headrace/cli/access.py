"""Opening the journal that a command is about: to look at, or to decide on."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, TypeVar

from headrace.cli.output import warn

if TYPE_CHECKING:
    from headrace.ports import Chance, Clock, Faults
    from headrace.ports.care import Care
    from headrace.ports.look import Desk, Look
    from headrace.ports.upkeep import Upkeep

T = TypeVar("T")


def warn_of_environment() -> None:
    """Tell of variables that were meant as settings and are none: they would be passed over in silence."""
    from headrace.settings import mistyped

    for given, meant in mistyped():
        warn(f"{given} in the environment means nothing; did you mean {meant}?")


@asynccontextmanager
async def reading(journal: str | None, index: str | None) -> AsyncGenerator[Look]:
    """Look at a journal that there is; nothing is created, and workers are not disturbed."""
    from headrace.settings import load
    from headrace.wiring import look_of

    look = look_of(load({"journal": journal, "index": index}), _World())
    try:
        await look.open()
        yield look
    finally:
        await look.close()


@asynccontextmanager
async def deciding(journal: str | None, index: str | None) -> AsyncGenerator[Desk]:
    """Write decisions of a person into a journal that there is."""
    from headrace.settings import load
    from headrace.wiring import desk_of

    desk = desk_of(load({"journal": journal, "index": index}), _World())
    try:
        await desk.open()
        yield desk
    finally:
        await desk.close()


@asynccontextmanager
async def maintaining(journal: str | None, index: str | None, *, make: bool) -> AsyncGenerator[Upkeep]:
    """Mend or check the index beside a journal."""
    from headrace.settings import load
    from headrace.wiring import upkeep_of

    upkeep = upkeep_of(load({"journal": journal, "index": index}), _World())
    try:
        await upkeep.open(make=make)
        yield upkeep
    finally:
        await upkeep.close()


@asynccontextmanager
async def caring(journal: str | None, command: str) -> AsyncGenerator[Care]:
    """Look after a journal in a file; raises `NotOnKafka` with what to do there instead."""
    from headrace.settings import load
    from headrace.wiring import care_of

    care = care_of(load({"journal": journal}), _World(), command)
    try:
        await care.open()
        yield care
    finally:
        await care.close()


def cared(journal: str | None, command: str, work: Callable[[Care], Awaitable[T]]) -> T:
    """Look after a journal and return what came of it."""
    import asyncio

    async def whole() -> T:
        async with caring(journal, command) as care:
            return await work(care)

    return asyncio.run(whole())


def looked(journal: str | None, index: str | None, work: Callable[[Look], Awaitable[T]]) -> T:
    """Run a look at a journal and return what it found."""
    import asyncio

    async def whole() -> T:
        async with reading(journal, index) as look:
            return await work(look)

    return asyncio.run(whole())


class _World:
    """Time and chance as the system has them."""

    def __init__(self) -> None:
        from headrace.ports import NoFaults
        from headrace.world import SystemChance, SystemClock

        self.clock: Clock = SystemClock()
        self.chance: Chance = SystemChance()
        self.faults: Faults = NoFaults()
