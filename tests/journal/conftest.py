"""Runs the suite once per kind of journal; an asynchronous test runs on an event loop of its own."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.journal.journals import KINDS, Kind
from tests.journal.lab import Lab
from tests.journal.nursery import Nursery


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest) -> Kind:
    """One kind of journal after the other."""
    return request.param


@pytest.fixture(params=[kind for kind in KINDS if kind.can.several_processes], ids=lambda kind: kind.name)
def shared_kind(request: pytest.FixtureRequest) -> Kind:
    """One kind after the other of those that several processes can share."""
    return request.param


@pytest.fixture
def lab(kind: Kind, tmp_path: Path) -> Lab:
    """A journal in a world that is moved by hand; opened by the first who asks."""
    return Lab(kind, tmp_path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what a journal declares that it cannot do: that is no test, so it is no skip either."""
    beyond = [item for item in items if isinstance(item, pytest.Function) and _is_beyond(item)]
    if beyond:
        config.hook.pytest_deselected(items=beyond)
        items[:] = [item for item in items if item not in beyond]


def _is_beyond(item: pytest.Function) -> bool:
    kind: Any = item.callspec.params.get("kind") if hasattr(item, "callspec") else None
    wanted = [mark.args[0] for mark in item.iter_markers("needs")]
    return kind is not None and not all(getattr(kind.can, capability) for capability in wanted)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an asynchronous test, and close its lab however it ends."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(run(pyfuncitem.obj, given))
    return True


async def run(test: Any, given: dict[str, Any]) -> None:
    """Run a test with its arguments."""
    try:
        await test(**given)
    finally:
        for lab in (one for one in given.values() if isinstance(one, Lab)):
            await lab.close()


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery]:
    """A process that forks children for crashes and for company."""
    found = Nursery()
    yield found
    found.close()
