"""Runs the shared suite of journals on Kafka: one broker and one PostgreSQL for all of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.journal.conftest import lab, nursery, pytest_collection_modifyitems, pytest_pyfunc_call
from tests.services.journal.kinds import KINDS, Kafka, KafkaPostgres
from tests.services.kafka import Broker, Node
from tests.services.postgres import Postgres

__all__ = ["lab", "nursery", "pytest_collection_modifyitems", "pytest_pyfunc_call"]


@pytest.fixture(scope="session")
def shared_broker() -> Iterator[Node]:
    """One broker; each test has topics and groups of its own."""
    with Broker() as node:
        yield node


@pytest.fixture(scope="session")
def shared_postgres() -> Iterator[Postgres]:
    """One database; each test has a schema of its own."""
    with Postgres() as found:
        yield found


def _of(request: pytest.FixtureRequest, broker: Node) -> Kafka:
    services = [broker.bootstrap]
    if request.param is KafkaPostgres:
        services.append(request.getfixturevalue("shared_postgres").url)
    return request.param(*services)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def kind(request: pytest.FixtureRequest, shared_broker: Node) -> Kafka:
    """One kind of journal after the other."""
    return _of(request, shared_broker)


@pytest.fixture(params=KINDS, ids=lambda kind: kind.name)
def shared_kind(request: pytest.FixtureRequest, shared_broker: Node) -> Kafka:
    """As `kind`: all of them can be shared by several processes."""
    return _of(request, shared_broker)
