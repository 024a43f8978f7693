"""What handlers share in a process: made once before they run, given to them by type, closed in order."""

from __future__ import annotations

import collections.abc
import inspect
import logging
import typing
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any, cast

from headrace import errors

_log = logging.getLogger("headrace.worker")

#: What does not close within this time is left: a worker that stops is waited for by whoever has told it to.
CLOSE_S_MAX = 10.0
_STREAMS = (
    collections.abc.AsyncIterator,
    collections.abc.AsyncGenerator,
    collections.abc.Iterator,
    collections.abc.Generator,
)

Lifespan = Callable[[], AbstractAsyncContextManager[object]]


@dataclass(frozen=True, slots=True)
class Provider:
    """A function that makes what handlers ask for by its type."""

    name: str
    fn: Callable[..., Any]
    gives: Any
    #: What it asks for itself, by the name of the parameter.
    needs: Mapping[str, Any]
    where: str


def provider(
    fn: Callable[..., Any], known: Mapping[Any, Provider], local_names: Mapping[str, Any]
) -> Provider:
    """Return a function as a provider; raises `ProviderInvalid` with what is wrong."""
    name = getattr(fn, "__name__", repr(fn))
    try:
        hints = typing.get_type_hints(fn, localns=dict(local_names))
    except (NameError, TypeError, AttributeError) as fault:
        raise errors.ProviderInvalid(name=name, problem=f"an annotation cannot be read: {fault}") from None
    gives = _given(name, fn, hints.get("return"))
    needs = {one.name: hints.get(one.name) for one in inspect.signature(fn).parameters.values()}
    unknown = next((name for name, kind in needs.items() if not has(known, kind)), None)
    if unknown is not None:
        problem = f"nothing is known to pass as {unknown!r}; what it needs is provided above it"
        raise errors.ProviderInvalid(name=name, problem=problem)
    if has(known, gives):
        raise errors.ProviderInvalid(name=name, problem=f"{known[gives].where} provides the same type")
    code = inspect.unwrap(fn).__code__
    return Provider(name, fn, gives, needs, f"{code.co_filename}:{code.co_firstlineno}")


def _given(name: str, fn: Callable[..., Any], returned: Any) -> Any:
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        if typing.get_origin(returned) not in _STREAMS:
            problem = "it yields, so its return annotation is AsyncIterator[...] or Iterator[...]"
            raise errors.ProviderInvalid(name=name, problem=problem)
        returned = typing.get_args(returned)[0]
    if returned in (None, Any, object, type(None)):
        raise errors.ProviderInvalid(name=name, problem="its return annotation does not say what it gives")
    if not has({returned: 0}, returned):
        raise errors.ProviderInvalid(name=name, problem=f"{returned!r} cannot be looked up")
    return returned


def has(known: Mapping[Any, object], kind: Any) -> bool:
    """Return whether a type is among those known; some annotations cannot be looked up."""
    try:
        return kind in known
    except TypeError:
        return False


class Resources:
    """The things of one process while it works: opened before the first handler, closed after the last."""

    def __init__(
        self, providers: Mapping[Any, Provider], lifespan: Lifespan | None, given: Mapping[Any, object]
    ) -> None:
        self._providers, self._lifespan = providers, lifespan
        #: By type; tests put their own in the place of what would be made.
        self.values: dict[Any, object] = dict(given)
        self._open: list[tuple[str, AbstractAsyncContextManager[object]]] = []

    async def open(self, wanted: typing.Iterable[Any]) -> None:
        """Enter the lifespan, then make what is wanted and what that needs; raises `ProviderFailed`.

        What was opened until then is closed by `close`.
        """
        if self._lifespan is not None:
            await self._enter("lifespan", self._lifespan)
        for kind in wanted:
            await self._make(kind)

    async def _make(self, kind: Any) -> None:
        if kind in self.values:
            return
        found = self._providers[kind]
        for need in found.needs.values():
            await self._make(need)
        given = {name: self.values[need] for name, need in found.needs.items()}
        self.values[kind] = await self._enter(found.name, lambda: _entered(found.fn, given))

    async def _enter(self, name: str, make: Lifespan) -> object:
        try:
            context = make()
            value = await context.__aenter__()
        except Exception as fault:
            raise errors.ProviderFailed(name=name, error=f"{type(fault).__name__}: {fault}") from fault
        self._open.append((name, context))
        return value

    async def close(self) -> None:
        """Close everything, the newest first; what fails or hangs is told and does not keep the others."""
        import asyncio  # an app that is only declared does without

        while self._open:
            name, context = self._open.pop()
            try:
                async with asyncio.timeout(CLOSE_S_MAX):
                    await context.__aexit__(None, None, None)
            except TimeoutError:
                _log.error("%s did not close within %.0f s", name, CLOSE_S_MAX)
            except Exception:  # noqa: BLE001 - the user's code; told with its traceback
                _log.exception("%s failed while it closed", name)


@asynccontextmanager
async def _entered(
    fn: Callable[..., Any], given: Mapping[str, object]
) -> collections.abc.AsyncGenerator[object]:
    """Treat all four forms of a provider alike."""
    if inspect.isasyncgenfunction(fn):
        async with asynccontextmanager(fn)(**given) as value:
            yield value
    elif inspect.isgeneratorfunction(fn):
        with contextmanager(fn)(**given) as value:
            yield value
    else:
        made = fn(**given)
        yield await cast("Awaitable[object]", made) if inspect.isawaitable(made) else made
