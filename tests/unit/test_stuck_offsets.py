"""A call of the client of Kafka that never returns does not hold up a worker for ever."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from confluent_kafka import TopicPartition

from headrace import errors
from headrace.journal.kafka import produce
from headrace.journal.kafka.client import cluster_of
from headrace.journal.kafka.produce import Transactions
from headrace.world import SystemChance


class Stuck:
    """A producer whose brokers are killed while it sends offsets."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.committed = False

    def begin_transaction(self) -> None:
        """Begin."""

    def poll(self, _seconds: float) -> None:
        """Nothing has come."""

    def send_offsets_to_transaction(self, *_told: Any) -> None:
        """Wait for an answer that does not come."""
        self.goes_on.wait()

    def commit_transaction(self, *_told: Any) -> None:
        """Note what must not happen."""
        self.committed = True


def test_offsets_that_are_never_sent_are_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction fails; its producer is left behind and commits nothing, though the call ends late."""
    monkeypatch.setattr(produce, "SEND_S_MAX", 0.05)
    transactions = Transactions(cluster_of("kafka://127.0.0.1:1"), "test", SystemChance())
    stuck: Any = Stuck()
    transactions._producer = stuck

    with pytest.raises(errors.JournalUnavailable):
        asyncio.run(transactions.commit([], [TopicPartition("t", 0, 1)]))

    assert transactions._producer is None, "the next transaction begins with a new producer"
    stuck.goes_on.set()
    transactions.close()
    assert not stuck.committed
