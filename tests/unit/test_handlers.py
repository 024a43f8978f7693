"""The signature of a function is its wiring: what is read from it, and every way to be refused."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Optional, Union

import pytest

from headrace import App, Context, Event, RetryPolicy, errors
from headrace.journal.kafka.topics import split_name
from headrace.runtime.handlers import (
    CONCURRENCY_DEFAULT,
    CONCURRENCY_MAX,
    DEADLINE_MS_DEFAULT,
    THREADS_DEFAULT,
    Handler,
)
from headrace.testing import EchoModel


class HandlersIn(Event, topic="handlers.in"):
    text: str = ""


class HandlersOut(Event, topic="handlers.out"):
    text: str = ""


class HandlersMore(Event, topic="handlers.out"):
    text: str = ""


class HandlersAbstract(Event):
    text: str = ""


def at_the_top(event: HandlersIn) -> None:
    """A function that another process can import."""


def declared(fn: Callable[..., Any], **arguments: Any) -> Handler:
    """Return the handler that an app makes of a function."""
    app = App("unit")
    assert app.handler(**arguments)(fn) is fn
    return next(iter(app.handlers.values()))


def refused(fn: Callable[..., Any], said: str, **arguments: Any) -> errors.SignatureInvalid:
    """Check that the function is refused with these words, and that the app knows nothing of it."""
    app = App("unit")
    with pytest.raises(errors.SignatureInvalid) as found:
        app.handler(**arguments)(fn)
    assert said in str(found.value)
    assert found.value.code == "HR-E401"
    assert not app.handlers
    return found.value


# --------------------------------------------------------------------------------------- what is read


def test_a_handler_is_read_from_its_signature() -> None:
    """The first parameter is what it consumes, the annotation of the result what it emits."""

    async def route(event: HandlersIn) -> HandlersOut:
        return HandlersOut(text=event.text)

    found = declared(route)
    assert (found.name, found.version, found.fn) == ("unit.route", "1", route)
    assert found.consumes.cls is HandlersIn
    assert [one.cls for one in found.emits] == [HandlersOut]
    assert (found.optional, found.is_async, dict(found.wants)) == (False, True, {})
    assert (found.concurrency, found.deadline_ms) == (CONCURRENCY_DEFAULT, DEADLINE_MS_DEFAULT)
    assert (found.offload, found.start_latest, found.retry) == ("thread", False, RetryPolicy())
    assert found.where == f"{__file__}:{route.__code__.co_firstlineno}"


def test_the_arguments_of_the_decorator_are_kept() -> None:
    """Name, version, model, policy, bounds and start are what was said."""
    model, policy = EchoModel("x"), RetryPolicy(attempts_max=2)

    async def route(event: HandlersIn, model: Any) -> None:
        pass

    found = declared(
        route,
        name="other",
        version=7,
        model=model,
        retry=policy,
        concurrency=CONCURRENCY_MAX,
        deadline_ms=1,
        start="latest",
    )
    assert (found.name, found.version, found.model, found.retry) == ("unit.other", "7", model, policy)
    assert (found.concurrency, found.deadline_ms, found.start_latest) == (CONCURRENCY_MAX, 1, True)


def test_a_plain_function_has_threads() -> None:
    """A `def` is not asynchronous and has fewer slots by default."""
    found = declared(at_the_top)
    assert (found.is_async, found.concurrency) == (False, THREADS_DEFAULT)
    assert declared(at_the_top, offload="process").offload == "process"
    assert found.delivery == "exactly_once"
    assert declared(at_the_top, delivery="at_least_once").delivery == "at_least_once"


@pytest.mark.parametrize(
    ("annotation", "emitted", "optional"),
    [
        (None, [], True),
        ("None", [], True),
        (HandlersOut, [HandlersOut], False),
        ("HandlersOut", [HandlersOut], False),
        (HandlersOut | None, [HandlersOut], True),
        (Optional[HandlersOut], [HandlersOut], True),  # noqa: UP045 - users write it so
        (Union[HandlersOut, HandlersMore], [HandlersOut, HandlersMore], False),  # noqa: UP007 - as above
        ("HandlersOut | HandlersMore | None", [HandlersOut, HandlersMore], True),
        (list[HandlersOut], [HandlersOut], False),
        ("list[HandlersOut | HandlersMore]", [HandlersOut, HandlersMore], False),
        (list[HandlersOut] | None, [HandlersOut], True),
        (tuple[HandlersOut, HandlersMore], [HandlersOut, HandlersMore], False),
        (tuple[HandlersOut, ...], [HandlersOut], False),
    ],
)
def test_every_form_of_a_result_is_read(annotation: Any, emitted: list[Any], optional: bool) -> None:
    """Classes, text, unions old and new, lists and tuples name what may be emitted."""

    async def route(event: HandlersIn) -> Any:
        pass

    route.__annotations__["return"] = annotation
    found = declared(route)
    assert [one.cls for one in found.emits] == emitted
    assert found.optional is optional


def test_classes_of_the_calling_function_are_found() -> None:
    """Annotations are text here (as in any module with the import above), and the class is local."""

    class Local(Event, topic="local"):
        pass

    class After(Event, topic="local"):
        pass

    app = App("unit")

    @app.handler
    async def bare(event: Local) -> After | None:
        pass

    @app.handler(name="called")
    async def called(event: Local) -> list[After]:
        return []

    assert [one.consumes.cls for one in app.handlers.values()] == [Local, Local]
    assert {one.emits[0].cls for one in app.handlers.values()} == {After}
    assert set(app.contracts) == {"Local", "After"}


def test_model_and_context_are_known_by_name_and_the_context_by_type() -> None:
    """Whatever the order; a context may have any name; what has a default is left alone."""

    async def every(event: HandlersIn, ctx: Any, model: Any, *, other: int = 3, **rest: Any) -> None:
        pass

    async def typed(event: HandlersIn, *more: Any, context: Context) -> None:
        pass

    assert dict(declared(every, model=EchoModel("x")).wants) == {"ctx": "ctx", "model": "model"}
    assert dict(declared(typed).wants) == {"ctx": "context"}


def test_a_wrapped_function_is_still_found() -> None:
    """A decorator that keeps `__wrapped__` does not hide signature and place."""

    async def inner(event: HandlersIn) -> None:
        pass

    @functools.wraps(inner)
    async def outer(*args: Any) -> None:
        await inner(*args)

    found = declared(outer)
    assert found.consumes.cls is HandlersIn
    assert found.where.endswith(f":{inner.__code__.co_firstlineno}")


# ------------------------------------------------------------------------------------ what is refused


def test_a_first_parameter_that_is_no_event_is_refused() -> None:
    """None at all, by name only, without annotation, of another type, a union: each with its own words."""

    async def nothing() -> None: ...
    async def by_name(*, event: HandlersIn) -> None: ...
    async def several(*events: HandlersIn) -> None: ...
    async def bare(event) -> None: ...  # type: ignore[no-untyped-def]
    async def text(event: str) -> None: ...
    async def either(event: HandlersIn | HandlersOut) -> None: ...
    async def listed(event: list[HandlersIn]) -> None: ...

    refused(nothing, "it has no parameter for the event")
    refused(by_name, "the first parameter 'event' cannot be given by position")
    refused(several, "the first parameter 'events' cannot be given by position")
    refused(bare, "the first parameter 'event' has no annotation; it must be one event class")
    refused(text, "the first parameter 'event' is annotated <class 'str'>")
    refused(either, "it must be one event class")
    refused(listed, "it must be one event class")


def test_an_abstract_event_is_refused() -> None:
    """A class without a topic can neither be consumed nor emitted."""

    async def takes(event: HandlersAbstract) -> None: ...
    async def gives(event: HandlersIn) -> HandlersAbstract: ...

    for fn in (takes, gives):
        with pytest.raises(errors.ContractInvalid, match="It has no topic"):
            App("unit").handler(fn)


def test_a_parameter_that_nobody_can_fill_is_refused() -> None:
    """Unknown names without a default, names that cannot be given, a model that is not there."""

    async def unknown(event: HandlersIn, database: Any) -> None: ...
    async def by_place(event: HandlersIn, ctx: Any, /) -> None: ...
    async def model_less(event: HandlersIn, model: Any) -> None: ...

    refused(unknown, "nothing is known to pass as 'database'; known are 'model' and 'ctx'")
    refused(by_place, "the parameter 'ctx' cannot be given by name")
    assert "Model.onnx" in refused(model_less, "it asks for 'model', but has none").hint


def test_a_result_that_is_no_event_is_refused() -> None:
    """No annotation (with the way to say nothing), other types, types inside of lists."""

    async def silent(event: HandlersIn): ...  # type: ignore[no-untyped-def]
    async def text(event: HandlersIn) -> str: ...  # type: ignore[empty-body]
    async def inner(event: HandlersIn) -> list[int]: ...  # type: ignore[empty-body]
    async def partly(event: HandlersIn) -> HandlersOut | dict[str, int] | None: ...
    async def anything(event: HandlersIn) -> Any: ...

    assert "-> None" in refused(silent, "it has no return annotation").hint
    refused(text, "the return annotation holds <class 'str'>")
    refused(inner, "<class 'int'>")
    refused(partly, "dict[str, int]")
    refused(anything, "typing.Any")


def test_an_annotation_that_cannot_be_read_is_refused() -> None:
    """A name that does not exist, or text that is no annotation: with Python's words."""

    async def route(event: HandlersIn) -> None: ...

    route.__annotations__["return"] = "Missing"
    refused(route, "an annotation cannot be read: name 'Missing' is not defined")
    route.__annotations__["return"] = "headrace_missing.Event"
    refused(route, "an annotation cannot be read")


def test_a_generator_is_refused() -> None:
    """It would run nothing when it is called."""

    def plain(event: HandlersIn) -> Iterator[HandlersOut]:
        yield HandlersOut()

    async def asynchronous(event: HandlersIn) -> AsyncIterator[HandlersOut]:
        yield HandlersOut()

    for fn in (plain, asynchronous):
        refused(fn, "it must be a function that is not a generator")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": "a b"}, "the name has characters that are not allowed"),
        ({"name": "x" * 200}, "the name has characters that are not allowed"),
        ({"name": "replay-0123456789abcdef"}, "are of the replays of a handler"),
        ({"name": "desk.replay-0123456789abcdef"}, "are of the replays of a handler"),
        ({"concurrency": 0}, "concurrency is 1 to 4096, not 0"),
        ({"concurrency": CONCURRENCY_MAX + 1}, "concurrency is 1 to 4096, not 4097"),
        ({"concurrency": 1.5}, "concurrency is 1 to 4096, not 1.5"),
        ({"deadline_ms": 0}, "deadline_ms is a whole number, 1 to 2,592,000,000, not 0"),
        ({"deadline_ms": float("nan")}, "not nan"),
        ({"deadline_ms": 10**30}, "not 1000000000000000000000000000000"),
        ({"retry": 5}, "retry is a RetryPolicy, not 5"),
        ({"model": "intent.onnx"}, "model is a Model, as Model.onnx makes one, not 'intent.onnx'"),
        ({"version": None}, "version None has characters"),
        ({"version": True}, "version True has characters"),
        ({"start": "now"}, "start is 'earliest' or 'latest', not 'now'"),
        ({"version": "1 b"}, "version '1 b' has characters that are not allowed"),
        ({"version": ""}, "version '' has characters"),
        ({"version": "1+x"}, "version '1+x' has characters"),  # a plus begins the model's part
        ({"offload": "fork"}, "offload is 'thread' or 'process', not 'fork'"),
        ({"delivery": "twice"}, "delivery is 'exactly_once' or 'at_least_once', not 'twice'"),
        ({"delivery": ""}, "delivery is 'exactly_once' or 'at_least_once', not ''"),
    ],
)
def test_numbers_and_words_out_of_bounds_are_refused(arguments: dict[str, Any], said: str) -> None:
    """Each argument of the decorator, with what may be."""
    refused(at_the_top, said, **arguments)


def test_a_name_that_only_looks_like_that_of_a_replay_may_be() -> None:
    """Refused is what would be taken for a replay, with what to do; a handler that was called so goes on."""
    app = App("unit")
    for name in ("replay", "replay-0123", "replay-0123456789abcdef0", "replay-0123456789abcdef.more"):
        app.handler(name=name)(at_the_top)
    assert [split_name(name) for name in app.handlers] == [(name, "") for name in app.handlers]
    app.handler(name="now", was="replay-0123456789abcdef")(at_the_top)

    with pytest.raises(errors.SignatureInvalid) as found:
        app.handler(name="replay-0123456789abcdef")(at_the_top)
    assert "choose another name" in found.value.hint


def test_a_process_takes_plain_functions_of_a_module_alone() -> None:
    """No `async def`, no model and no context, nothing that another process cannot import."""

    async def asynchronous(event: HandlersIn) -> None: ...
    def local(event: HandlersIn) -> None: ...
    def wants(event: HandlersIn, ctx: Any) -> None: ...

    refused(asynchronous, "an async def belongs to the event loop", offload="process")
    refused(local, "functions that stand at the top of a module", offload="process")
    refused(wants, "there is neither 'model' nor 'ctx'", offload="process")


def test_two_handlers_of_one_name_are_refused_with_both_places() -> None:
    """The name is the identity of the progress; the first stays."""
    app = App("unit")
    app.handler(at_the_top)

    async def second(event: HandlersIn) -> None: ...

    with pytest.raises(errors.HandlerTwice) as found:
        app.handler(name="at_the_top")(second)
    for fn in (at_the_top, second):
        assert f"{__file__}:{fn.__code__.co_firstlineno}" in str(found.value)
    assert app.handlers["unit.at_the_top"].fn is at_the_top


def test_two_classes_of_one_name_do_not_meet_in_an_app() -> None:
    """Local classes may share a name; an app that uses both refuses the second."""

    def made() -> type[Event]:
        class Same(Event, topic="t"):
            pass

        return Same

    with pytest.raises(errors.TypeTwice, match="Same"):
        App("unit", events=[made(), made()])
