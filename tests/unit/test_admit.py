"""Whether an event is for a handler: run, skip, or the error that makes it a dead letter."""

from __future__ import annotations

import pytest

from headrace import errors
from headrace.event.envelope import Stamp
from headrace.gate.admit import Admit, admit

KNOWN = frozenset({"Order", "Refund"})


@pytest.mark.parametrize(
    ("kind", "expected"), [("Order", Admit.RUN), ("Refund", Admit.SKIP)], ids=["wanted", "known"]
)
def test_a_known_type_runs_or_is_passed_over(kind: str, expected: Admit) -> None:
    """The type that the handler consumes runs; another one of the app is for other handlers."""
    assert admit(Stamp(kind, "s", 1), "Order", KNOWN, "orders") is expected


@pytest.mark.parametrize("version", [1, 2, 99])
def test_the_schema_version_has_no_say(version: int) -> None:
    """Whether the payload fits is for the event class to tell."""
    assert admit(Stamp("Order", "s", version), "Order", KNOWN, "orders") is Admit.RUN


def test_an_event_without_a_type_is_what_the_handler_takes() -> None:
    """Those who do not know Headrace say none."""
    assert admit(Stamp("", "kafka:orders", 1), "Order", KNOWN, "orders") is Admit.RUN


@pytest.mark.parametrize("kind", ["Unknown", "order", " ", "Order "])
def test_an_unknown_type_dies_with_its_name(kind: str) -> None:
    """`TypeUnknown` names type and topic; names are compared to the letter."""
    found = admit(Stamp(kind, "s", 1), "Order", KNOWN, "orders")
    assert isinstance(found, errors.TypeUnknown)
    assert found.context == {"type": kind, "topic": "orders"}


@pytest.mark.parametrize(
    "content_type",
    ["application/json; charset=utf-8", 'application/json;charset="UTF-8"; v=1', "APPLICATION/JSON"],
)
def test_parameters_of_a_content_type_do_not_matter(content_type: str) -> None:
    """Other publishers write them, in any case of letters."""
    assert admit(Stamp("Order", "s", 1, content_type), "Order", KNOWN, "orders") is Admit.RUN


@pytest.mark.parametrize(
    "content_type",
    ["application/x-python-pickle", "application/json; charset=latin1", "application/jsonl", "text/json", ""],
)
def test_only_json_is_read(content_type: str) -> None:
    """Any other content type is refused before the type is looked at, so that nothing is decoded."""
    for kind in ("Order", "Unknown"):
        found = admit(Stamp(kind, "s", 1, content_type), "Order", KNOWN, "orders")
        assert isinstance(found, errors.ContentTypeRefused)
        assert repr(content_type) in str(found)


def test_a_stamp_that_nobody_knows_is_a_corrupt_head() -> None:
    """The event is a dead letter, the worker goes on."""
    assert isinstance(admit(None, "Order", KNOWN, "orders"), errors.HeadCorrupt)
