"""Log lines that tell an error: its code, and no louder than it is."""

from __future__ import annotations

import ast
import asyncio
import logging
from pathlib import Path

import pytest

import headrace
from headrace import App, Event
from headrace.settings import Settings


class Logged(Event, topic="logged"):
    """What is handled."""

    number: int


def app_of(journal: Path, version: str) -> App:
    """Return an app of one handler of a version."""
    app = App("shop", settings=Settings(journal=str(journal)), events=[Logged])

    async def handle(event: Logged) -> None: ...

    app.handler(version=version)(handle)
    return app


async def started(journal: Path, version: str) -> None:
    """Start a worker of a version, and stop it."""
    async with app_of(journal, version) as app:
        worker = app.worker()
        await worker.start()
        await worker.finish()


def test_a_version_that_is_not_active_is_told_once_as_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With its code and what to do: on the documented way back it is no failure."""
    caplog.set_level(logging.WARNING, "headrace.model")
    for version in ("1", "2", "1"):
        asyncio.run(started(tmp_path / "a.db", version))

    (record,) = caplog.records
    told = record.getMessage()
    assert record.levelno == logging.WARNING
    assert told.startswith("[HR-E307] Version 1 of handler shop.handle is known but not active; 2 is. Hint: ")
    assert told.endswith("headrace model activate shop.handle 1")


def test_whoever_logs_an_error_logs_its_code() -> None:
    """`headrace explain` takes it from there."""
    without = [
        f"{path.name}:{call.lineno}"
        for path in Path(headrace.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call) and ast.unparse(call.func).startswith("_log.")
        if {"fault", "found"} & {ast.unparse(one) for one in call.args}
        and not {"fault.code", "found.code"} & {ast.unparse(one) for one in call.args}
    ]
    assert without == []
