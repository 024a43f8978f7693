"""What tests on a real broker share; an asynchronous test runs on an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.services.desks import Bench
from tests.services.kafka import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[str]:
    """One broker for all tests of a file, by its address; each test has topics of its own."""
    with Broker() as node:
        yield node.bootstrap


@pytest.fixture
def bench(broker: str, tmp_path: Path) -> Bench:
    """An app that tries once."""
    return Bench(broker, tmp_path)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function; leave all others alone."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
