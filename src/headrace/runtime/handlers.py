"""Handlers as declared: the signature of a function is its wiring."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from headrace import errors
from headrace.event.contract import NAME, REPLAY_NAME, Contract, Event, contract_of
from headrace.gate.rate import RATE_PER_S_MAX
from headrace.gate.retry import RetryPolicy
from headrace.ports import Model
from headrace.runtime.context import Context
from headrace.runtime.provide import has

#: Slots of an asynchronous handler; threads of a plain one.
CONCURRENCY_DEFAULT = 64
THREADS_DEFAULT = 16
CONCURRENCY_MAX = 4_096
DEADLINE_MS_DEFAULT = 60_000
DEADLINE_MS_MAX = 30 * 86_400_000
EXACTLY_ONCE, AT_LEAST_ONCE = "exactly_once", "at_least_once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Handler:
    """One handler as the user declared it."""

    name: str
    fn: Callable[..., Any]
    consumes: Contract
    emits: tuple[Contract, ...]
    #: May the handler return nothing?  (Informs `headrace check` only: emitting less is always allowed.)
    optional: bool
    #: Names of the parameters beside the event, by what they are: ``model``, ``ctx``.
    wants: Mapping[str, str]
    is_async: bool
    #: What it asks for by type, by the name of the parameter: see `headrace.runtime.provide`.
    needs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    version: str = "1"
    model: Model | None = None
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    concurrency: int = CONCURRENCY_DEFAULT
    deadline_ms: int = DEADLINE_MS_DEFAULT
    #: Events that may begin in a second, in one process; ``None`` = as many as can.
    rate_per_s: float | None = None
    #: Where a plain function runs: ``thread`` or ``process``.
    offload: str = "thread"
    #: ``exactly_once``, or ``at_least_once``: cheaper where the journal has a cheaper form.
    delivery: str = EXACTLY_ONCE
    start_latest: bool = False
    #: The name under which the journal knows it from before.
    was: str | None = None
    where: str = ""


def declare(  # noqa: PLR0913 - the arguments of the decorator, by name
    fn: Callable[..., Any],
    *,
    app: str,
    name: str | None,
    model: Model | None,
    version: str | int,
    retry: RetryPolicy | None,
    concurrency: int | None,
    deadline_ms: int,
    rate_per_s: float | None,
    start: str,
    offload: str,
    delivery: str,
    was: str | None,
    provided: Mapping[Any, object],
    local_names: Mapping[str, Any],
) -> Handler:
    """Return the handler of a function; raises `SignatureInvalid` with what is wrong."""
    _check_named(app, fn, name)
    full_name = f"{app}.{name or getattr(fn, '__name__', '')}"
    _check_name(full_name)
    _check_kinds(full_name, was, rate_per_s)
    former = _former(full_name, app, was)
    hints = _hints(fn, full_name, local_names)
    parameters = list(inspect.signature(fn).parameters.values())
    consumes = _consumed(full_name, parameters, hints)
    wants, needs = _wanted(full_name, parameters[1:], hints, model, provided)
    emits, optional = _emitted(full_name, hints.get("return", _ABSENT))
    is_async = inspect.iscoroutinefunction(fn)
    default = CONCURRENCY_DEFAULT if is_async else THREADS_DEFAULT
    count = default if concurrency is None else concurrency
    _check_numbers(full_name, count, deadline_ms, rate_per_s)
    _check_words(full_name, start, version)
    _check_parts(full_name, retry, model)
    _check_offload(full_name, fn, offload, plain=not is_async, wants={**wants, **needs})
    if delivery not in (EXACTLY_ONCE, AT_LEAST_ONCE):
        problem = f"delivery is {EXACTLY_ONCE!r} or {AT_LEAST_ONCE!r}, not {delivery!r}"
        raise errors.SignatureInvalid(handler=full_name, problem=problem)
    return Handler(
        name=full_name,
        fn=fn,
        consumes=consumes,
        emits=emits,
        optional=optional,
        wants=wants,
        needs=needs,
        is_async=is_async,
        version=str(version),
        model=model,
        retry=retry or RetryPolicy(),
        concurrency=count,
        deadline_ms=deadline_ms,
        rate_per_s=rate_per_s,
        offload=offload,
        delivery=delivery,
        start_latest=start == "latest",
        was=former,
        where=_where(fn),
    )


def _check_named(app: str, fn: object, name: object) -> None:
    problem = ""
    if not callable(fn):
        problem = f"{fn!r} is no function"
    elif not (name is None or isinstance(name, str)):
        problem = f"name is text, not {name!r}"
    if problem:
        raise errors.SignatureInvalid(handler=f"{app}.{getattr(fn, '__name__', '?')}", problem=problem)


def _check_name(handler: str) -> None:
    """Raise `SignatureInvalid` for a name that may not be, or that is of Headrace itself, on any journal."""
    if not NAME.fullmatch(handler):
        problem = "the name has characters that are not allowed"
        raise errors.SignatureInvalid(handler=handler, problem=problem)
    if REPLAY_NAME.fullmatch(handler):
        problem = "names that end in .replay- and 16 hexadecimal digits are of the replays of a handler"
        hint = "choose another name; ``was=`` keeps what a handler of this name has done"
        raise errors.SignatureInvalid(handler=handler, problem=problem, hint=hint)


def _check_kinds(handler: str, was: object, rate_per_s: object) -> None:
    problem = ""
    if not (was is None or isinstance(was, str)):
        problem = f"was is a name, not {was!r}"
    elif not (rate_per_s is None or isinstance(rate_per_s, (int, float))):
        problem = f"rate_per_s is a number, not {rate_per_s!r}"
    if problem:
        raise errors.SignatureInvalid(handler=handler, problem=problem)


def _former(handler: str, app: str, was: str | None) -> str | None:
    """Return the whole former name of a handler; one with a dot is that of another app."""
    if was is None:
        return None
    full = was if "." in was else f"{app}.{was}"
    problem = ""
    if not was or not NAME.fullmatch(full):
        problem = f"was={was!r} has characters that are not allowed"
    elif full == handler:
        problem = f"was={was!r} is the name that it has"
    if problem:
        raise errors.SignatureInvalid(handler=handler, problem=problem)
    return full


_ABSENT = object()


def _where(fn: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(fn), "__code__", None)
    return f"{code.co_filename}:{code.co_firstlineno}" if code else repr(fn)


def _check_numbers(handler: str, concurrency: int, deadline_ms: int, rate_per_s: float | None) -> None:
    problem = ""
    if type(concurrency) is not int or not 1 <= concurrency <= CONCURRENCY_MAX:
        problem = f"concurrency is 1 to {CONCURRENCY_MAX}, not {concurrency!r}"
    elif type(deadline_ms) is not int or not 1 <= deadline_ms <= DEADLINE_MS_MAX:
        problem = f"deadline_ms is a whole number, 1 to {DEADLINE_MS_MAX:,}, not {deadline_ms!r}"
    elif rate_per_s is not None and not 0 < rate_per_s <= RATE_PER_S_MAX:
        problem = f"rate_per_s is above 0 and at most {RATE_PER_S_MAX:,.0f}, not {rate_per_s}"
    if problem:
        raise errors.SignatureInvalid(handler=handler, problem=problem)


def _check_parts(handler: str, retry: object, model: object) -> None:
    problem = ""
    if not (retry is None or isinstance(retry, RetryPolicy)):
        problem = f"retry is a RetryPolicy, not {retry!r}"
    elif isinstance(model, type) or not (model is None or callable(getattr(model, "load", None))):
        problem = f"model is a Model, as Model.onnx makes one, not {model!r}"
    if problem:
        raise errors.SignatureInvalid(handler=handler, problem=problem)


def _check_words(handler: str, start: str, version: str | int) -> None:
    problem = ""
    if start not in ("earliest", "latest"):
        problem = f"start is 'earliest' or 'latest', not {start!r}"
    elif type(version) not in (str, int) or not NAME.fullmatch(str(version)):
        problem = f"version {version!r} has characters that are not allowed"
    if problem:
        raise errors.SignatureInvalid(handler=handler, problem=problem)


def _check_offload(
    handler: str, fn: Callable[..., Any], offload: str, *, plain: bool, wants: Mapping[str, str]
) -> None:
    problem = ""
    if offload not in ("thread", "process"):
        problem = f"offload is 'thread' or 'process', not {offload!r}"
    elif offload == "process" and not plain:
        problem = "offload='process' is for a plain def: an async def belongs to the event loop"
    elif offload == "process" and wants:
        problem = "in another process there is neither 'model' nor 'ctx', nor what @app.provide gives"
    elif offload == "process" and "<locals>" in getattr(fn, "__qualname__", ""):
        problem = "another process can import only functions that stand at the top of a module"
    if problem:
        raise errors.SignatureInvalid(handler=handler, problem=problem)


def _hints(fn: Callable[..., Any], handler: str, local_names: Mapping[str, Any]) -> dict[str, Any]:
    """Return the annotations as objects, also those written as text and those of local classes."""
    if inspect.isgeneratorfunction(fn) or inspect.isasyncgenfunction(fn):
        raise errors.SignatureInvalid(
            handler=handler, problem="it must be a function that is not a generator"
        )
    try:
        return typing.get_type_hints(fn, localns=dict(local_names))
    except (NameError, TypeError, AttributeError) as fault:
        raise errors.SignatureInvalid(
            handler=handler, problem=f"an annotation cannot be read: {fault}"
        ) from None


def _consumed(handler: str, parameters: list[inspect.Parameter], hints: dict[str, Any]) -> Contract:
    if not parameters:
        raise errors.SignatureInvalid(handler=handler, problem="it has no parameter for the event")
    first = parameters[0]
    if first.kind not in (first.POSITIONAL_ONLY, first.POSITIONAL_OR_KEYWORD):
        problem = f"the first parameter {first.name!r} cannot be given by position"
        raise errors.SignatureInvalid(handler=handler, problem=problem)
    kind = hints.get(first.name)
    if not (isinstance(kind, type) and issubclass(kind, Event)):
        found = "has no annotation" if kind is None else f"is annotated {kind!r}"
        problem = f"the first parameter {first.name!r} {found}; it must be one event class"
        raise errors.SignatureInvalid(handler=handler, problem=problem)
    return contract_of(kind)


def _wanted(
    handler: str,
    parameters: list[inspect.Parameter],
    hints: dict[str, Any],
    model: Model | None,
    provided: Mapping[Any, object],
) -> tuple[dict[str, str], dict[str, Any]]:
    """Return the parameters for `model` and `ctx`, and those for what is provided, by its type."""
    wants: dict[str, str] = {}
    needs: dict[str, Any] = {}
    for one in parameters:
        if one.kind is one.POSITIONAL_ONLY:
            problem = f"the parameter {one.name!r} cannot be given by name"
            raise errors.SignatureInvalid(handler=handler, problem=problem)
        if one.name == "ctx" or hints.get(one.name) is Context:
            wants["ctx"] = one.name
        elif has(provided, hints.get(one.name)):
            needs[one.name] = hints[one.name]
        elif one.name == "model":
            wants["model"] = one.name
        elif one.default is inspect.Parameter.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD):
            problem = f"nothing is known to pass as {one.name!r}; known are 'model' and 'ctx'"
            problem += "".join(f", and {getattr(kind, '__name__', kind)} by its type" for kind in provided)
            raise errors.SignatureInvalid(handler=handler, problem=problem)
    if "model" in wants and model is None:
        raise errors.SignatureInvalid(
            handler=handler,
            problem="it asks for 'model', but has none",
            hint="@app.handler(model=Model.onnx(...))",
        )
    return wants, needs


def _emitted(handler: str, returned: Any) -> tuple[tuple[Contract, ...], bool]:
    """Return the contracts of the return annotation, and whether nothing may be returned."""
    if returned is _ABSENT:
        raise errors.SignatureInvalid(
            handler=handler,
            problem="it has no return annotation",
            hint="write '-> None' for one that emits nothing",
        )
    contracts: list[Contract] = []
    optional = False
    for part in _flat(returned):
        if part is None or part is types.NoneType:
            optional = True
        elif isinstance(part, type) and issubclass(part, Event):
            contracts.append(contract_of(part))
        else:
            problem = f"the return annotation holds {part!r}; use event classes, list[Event class] and None"
            raise errors.SignatureInvalid(handler=handler, problem=problem)
    return tuple(contracts), optional


def _flat(annotation: Any) -> list[Any]:
    origin = typing.get_origin(annotation)
    if origin in (Union, types.UnionType, list, tuple):
        return [part for one in typing.get_args(annotation) if one is not ... for part in _flat(one)]
    return [annotation]


def caller_names(depth: int) -> Mapping[str, Any]:
    """Return the local names of a calling frame, so that classes made in a function can be annotations."""
    frame = inspect.currentframe()
    for _ in range(depth + 1):
        frame = frame.f_back if frame else None
    return frame.f_locals if frame else {}
