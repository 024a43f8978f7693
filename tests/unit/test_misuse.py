"""What is said wrongly in code is answered with a coded error with the place and what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import Event, errors
from headrace.event.contract import contract_of


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
