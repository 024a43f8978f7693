"""What is said wrongly in code is answered with a coded error with the place and what would be right."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from headrace import App, Event, Options, Retention, RetryPolicy, errors
from headrace.event.contract import contract_of
from headrace.event.lineage import uuid7
from headrace.runtime.outlet import Published
from headrace.settings import Settings
from headrace.testing import EchoModel


def declared(**arguments: Any) -> type[Event]:
    """Make an event class inside a function, with one field `a`."""

    class Local(Event, **arguments):
        a: str = ""

    return Local


# --- classes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "topic", ["tickets.dlq", ".dlq", "routed.side.trial", "a.side.b.c", "headrace.x.ledger", "headrace.x"]
)
def test_topics_of_headrace_itself_are_refused(topic: str) -> None:
    """Dead letters, sides of replays, ledgers: events of a user there would be taken for them."""
    with pytest.raises(errors.ContractInvalid, match="of Headrace itself") as refused:
        declared(topic=topic)
    assert repr(topic) in str(refused.value)
    assert "support.tickets" in refused.value.hint


@pytest.mark.parametrize(
    "topic", ["dlq", "x.dlq.y", "side.b", "a.side.", "headrace", "my.headrace.x", "headrace-x"]
)
def test_topics_that_only_look_like_it_are_free(topic: str) -> None:
    """What Headrace never makes is for users."""
    assert contract_of(declared(topic=topic)).topic == topic


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": 5}, "The topic is text, not 5."),
        ({"topic": ""}, "Its topic is empty."),
        ({"topic": b"t"}, "The topic is text, not b't'."),
        ({"topic": "t", "key": 5}, "The key is the name of a field, not 5."),
        ({"topic": "t", "type": 5}, "The type is text, not 5."),
        ({"topic": "t", "type": ""}, "Its type is empty."),
        ({"topic": "t", "version": "2"}, "The version is a whole number, not '2'."),
        ({"topic": "t", "version": True}, "The version is a whole number, not True."),
    ],
)
def test_class_arguments_of_the_wrong_kind_are_refused(arguments: dict[str, Any], said: str) -> None:
    """They are named by the class statement, with what they should be."""
    with pytest.raises(errors.ContractInvalid) as refused:
        declared(**arguments)
    assert said in str(refused.value)
    assert refused.value.hint


# --- publishing ---------------------------------------------------------------------------------


class Said(Event, topic="misuse.said"):
    """Something that is published."""

    text: str = ""


PAIR = "a pair is ``(event, Options(event_id"


@pytest.mark.parametrize(
    ("wrong", "place", "hint"),
    [
        (None, "The argument cannot be published: it is None.", "make an instance"),
        (5, "The argument cannot be published: it is of type int, not an event.", "make an instance"),
        (Said, "The argument cannot be published: it is the class Said, not an event.", "make an instance"),
        ("text", "The argument cannot be published: it is of type str", "make an instance"),
        ({"text": "a"}, "The argument cannot be published: it is of type dict", "make an instance"),
        ([Said(), None], "[1] cannot be published: it is None.", "make an instance"),
        ([Said], "[0] cannot be published: it is the class Said", "make an instance"),
        ([(Said(), 5)], "[0][1] cannot be published: it is of type int", PAIR),
        ([(Said(),)], "[0] cannot be published: it is of type tuple", PAIR),
        ((Said(), Options()), "[1] cannot be published: it is of type Options", "make an instance"),
    ],
)
def test_what_is_no_event_is_told_with_its_place(wrong: Any, place: str, hint: str) -> None:
    """With a loop and without, before a journal is opened."""
    app = App("misuse", journal=":memory:")
    for publish in (lambda: asyncio.run(app.publish(wrong)), lambda: app.publish_sync(wrong)):
        with pytest.raises(errors.NotAnEvent) as refused:
            publish()
        assert place in str(refused.value)
        assert hint in refused.value.hint
    with pytest.raises(errors.JournalClosed):
        _ = app.journal


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"event_id": 1}, "event_id is not usable: it is int, and should be a UUID, text or 16 bytes"),
        ({"parents": 3}, "parents is not usable: it is int, and should be a list"),
        ({"parents": None}, "parents is not usable: it is None, and should be a list"),
        ({"parents": "abc"}, "parents is not usable: it is one id, and should be a list"),
        ({"parents": bytes(16)}, "parents is not usable: it is one id, and should be a list"),
        ({"parents": [uuid7(1, bytes(10)), 3]}, "parents[1] is not usable: it is int"),
        ({"parents": [Published(UUID(int=1), duplicate=False)]}, "parents[0] is not usable: it is Published"),
        ({"headers": 5}, "headers is not usable: it is int, and should be a mapping"),
        ({"traceparent": 5}, "traceparent is not usable: it is int, and should be text"),
        ({"tracestate": 5}, "tracestate is not usable: it is int, and should be text"),
    ],
)
def test_options_of_the_wrong_kind_are_refused(given: dict[str, Any], said: str) -> None:
    """As keywords of a call and as `Options`: where they are said, with the attribute."""
    app = App("misuse", journal=":memory:")
    for say in (lambda: Options(**given), lambda: app.publish_sync(Said(), **given)):
        with pytest.raises(errors.EnvelopeInvalid) as refused:
            say()
        assert said in str(refused.value)
        assert refused.value.hint
    with pytest.raises(errors.EnvelopeInvalid):
        asyncio.run(app.publish(Said(), **given))


def test_a_parent_that_cannot_be_is_named_as_one() -> None:
    """An id of a parent is not confused with that of the event."""
    publishing = App("misuse", journal=":memory:").publish(Said(), parents=[UUID(int=1), "x" * 513])
    with pytest.raises(errors.EnvelopeInvalid, match=re.escape("parents[1] is not usable: it has 513")):
        asyncio.run(publishing)


# --- apps and handlers --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"name": None}, "Setting name from headrace.App is not usable: it is text, not None"),
        ({"name": ""}, "it is 1 to 200 of letters, digits, '.', '_' and '-', not ''"),
        ({"journal": Path("x")}, "Setting journal from headrace.App is not usable: it is text"),
        ({"principal": 5}, "Envelope attribute principal is not usable: it is int, not text"),
        ({"settings": {}}, "Setting settings from headrace.App"),
        ({"events": Said}, "Setting events from headrace.App is not usable: it is a list of event classes"),
        ({"events": "Said"}, "Setting events from headrace.App is not usable: it is a list of event classes"),
        ({"events": [5]}, "Event class 5 cannot be used as declared. It is no class of events"),
        ({"retention": 5}, "Setting retention from headrace.App"),
        ({"retention": {Said: 5}}, "Retention of misuse.said is not usable: its rule is a Retention, not 5"),
        ({"retention": {5: Retention(bytes_max=1 << 30)}}, "It is no class of events"),
        ({"retention": {Said: Retention(age=5)}}, "an age is a timedelta, not 5"),  # type: ignore[arg-type]  # so
    ],
)
def test_arguments_of_an_app_of_the_wrong_kind_are_refused(arguments: dict[str, Any], said: str) -> None:
    """Where the app is made, with the argument and what it should be."""
    with pytest.raises(errors.HeadraceError) as refused:
        App(**arguments_of(arguments))
    assert said in str(refused.value)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda app: app.handler(5), "5 is no function"),
        (lambda app: app.handler(name=5)(on_said), "name is text, not 5"),
        (lambda app: app.handler(was=5)(on_said), "was is a name, not 5"),
        (lambda app: app.handler(rate_per_s="x")(on_said), "rate_per_s is a number, not 'x'"),
        (lambda app: app.handler(model=EchoModel)(on_said), "model is a Model"),
        (lambda _: RetryPolicy(backoff_first_ms="x"), "backoff_first_ms is a number"),  # type: ignore[arg-type]  # so
        (lambda _: Settings(lease_ms="x"), "'x' is not a whole number"),  # type: ignore[arg-type]  # so
        (lambda _: Settings(journal=5), "5 is not text"),  # type: ignore[arg-type]  # so
    ],
)
def test_what_a_handler_is_given_of_the_wrong_kind_is_refused(call: Any, said: str) -> None:
    """Where it is declared, in a coded error."""
    with pytest.raises(errors.HeadraceError) as refused:
        call(App("misuse"))
    assert said in str(refused.value)
    assert refused.value.hint


def arguments_of(given: dict[str, Any]) -> dict[str, Any]:
    """Return arguments with which the rest is right."""
    return {"name": "misuse", **given}


def on_said(_: Said) -> None:
    """Handle nothing."""
