"""Tracebacks begin in the user's code: what led there is cut, what it called is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from headrace import Event, errors
from headrace.event.contract import contract_of
from headrace.runtime.frames import users_traceback
from headrace.runtime.plan import as_async
from headrace.runtime.threads import Threads


class Framed(Event, topic="framed"):
    """Something to handle."""

    text: str


def users_handler(event: Framed) -> None:
    """Fail with what Headrace says about a value."""
    Framed(text=5)  # type: ignore[arg-type]  # that is the test


def on_a_thread() -> None:
    """Call it as a plain handler is called."""
    pool = Threads(1, "frames")
    try:
        pool.submit(users_handler, Framed(text="a")).result()
    finally:
        pool.shutdown()


def on_the_loop() -> None:
    """Call it as an asynchronous one is called."""

    async def called() -> None:
        await as_async(users_handler)(Framed(text="a"))

    asyncio.run(called())


def told(call: Callable[[], object]) -> list[str]:
    """Return the lines of the traceback of what a call raises, from within our code."""
    try:
        call()
    except Exception as fault:
        trace = fault.__traceback__
        assert trace is not None
        # The frames of this test are the user's, too.
        while trace.tb_next is not None and "/headrace/runtime/" not in trace.tb_frame.f_code.co_filename:
            trace = trace.tb_next
        return users_traceback(fault.with_traceback(trace)).splitlines()
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("call", [on_a_thread, on_the_loop])
def test_the_first_frame_is_the_users(call: Callable[[], None]) -> None:
    """Ours before it are left out; those after it, and the error, stay."""
    lines = told(call)

    assert lines[0] == "Traceback (most recent call last):"
    assert "in users_handler" in lines[1]
    assert any("pydantic" in line or "headrace" in line for line in lines[2:])


def test_an_error_without_a_frame_of_the_user_is_shown_whole() -> None:
    """A payload that does not fit is a matter between the journal and us."""
    with pytest.raises(errors.PayloadInvalid) as refused:
        contract_of(Framed).decode(b'{"text": 5}')
    fault: Any = refused.value
    trace = fault.__traceback__
    lines = users_traceback(fault.with_traceback(trace.tb_next)).splitlines()

    assert "contract.py" in lines[1]
    assert lines[-1].startswith("headrace.errors.event.PayloadInvalid")
    assert users_traceback(errors.JournalClosed()).splitlines() == [
        "headrace.errors.journal.JournalClosed: The journal is closed."
    ]
