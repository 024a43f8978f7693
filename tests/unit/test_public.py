"""The public names, and how little an import of them costs."""

from __future__ import annotations

import subprocess
import sys

import pytest

import headrace
import headrace.errors
import headrace.testing

PUBLIC = {
    "App",
    "Context",
    "Envelope",
    "Event",
    "Label",
    "Model",
    "Options",
    "Published",
    "Retention",
    "RetryPolicy",
}
TESTING = {"CrashAt", "EchoModel", "FailAt", "ManualClock", "Result", "run_until_idle", "until_idle"}
HEAVY = ("apsw", "asyncio", "numpy", "onnxruntime", "rich", "typer", "multiprocessing")

SMALL_APP = """
import sys
from headrace import App, Event

class Ticket(Event, topic="tickets", key="customer"):
    customer: str

app = App("support")

@app.handler
async def route(ticket: Ticket) -> None:
    pass

print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def test_the_public_names_are_these() -> None:
    """A name that is added or taken away is a decision, with a line in the change log."""
    assert set(headrace.__all__) == PUBLIC
    assert all(getattr(headrace, name).__doc__ for name in PUBLIC)
    assert headrace.__all__ == sorted(headrace.__all__)


def test_the_names_for_tests_are_these() -> None:
    """What `headrace.testing` promises is there, with a sentence each."""
    assert all(getattr(headrace.testing, name).__doc__ for name in TESTING)


def test_every_error_name_leads_to_something() -> None:
    """`headrace.errors.__all__` is sorted, without doubles, and true."""
    names = headrace.errors.__all__
    assert len(names) == len(set(names))
    assert names == sorted(names)
    assert all(getattr(headrace.errors, name).__doc__ for name in names)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    """With the words that Python has for it."""
    with pytest.raises(AttributeError, match="module 'headrace' has no attribute 'Nothing'"):
        _ = headrace.Nothing  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]


def test_a_small_app_starts_without_heavy_packages() -> None:
    """Declaring an app loads no database, no model runtime, no terminal and no event loop."""
    done = subprocess.run(
        [sys.executable, "-c", SMALL_APP], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = set(done.stdout.split())
    assert "pydantic" in loaded  # else the list shows nothing
    assert not loaded.intersection(HEAVY)


def test_the_version_is_that_of_the_distribution() -> None:
    """What `pip` shows and what the package says are one."""
    from importlib.metadata import version

    assert headrace.__version__ == version("headrace")
