"""Outputs without transactions, for handlers that are content with at least once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from headrace import errors
from headrace.journal.kafka.client import Cluster, coded
from headrace.journal.kafka.produce import FLUSH_S_MAX, Out, settings_of
from headrace.runtime.threads import Threads

_POLL_S = 0.05


class Deliveries:
    """Writes what follows from events; readers see it at once, and after a failure or a crash once more."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._producer: Producer | None = None
        self._faults: list[KafkaError] = []
        self._thread = Threads(1, f"headrace-deliver-{name}")

    async def deliver(self, records: Sequence[Out]) -> None:
        """Write records; returns when all replicas that have to have them have them.

        Raises the `JournalError` family: a part may be there, and all of it is to be written again.
        """
        if records:
            job = asyncio.get_running_loop().run_in_executor(self._thread, self._deliver, records)
            await asyncio.shield(job)  # whoever is cancelled meanwhile, it ends one way or the other

    def _deliver(self, records: Sequence[Out]) -> None:
        producer = self._producer = self._producer or Producer(settings_of(self._cluster))
        self._faults.clear()
        try:
            for record in records:
                self._produce(producer, record)
            left = producer.flush(FLUSH_S_MAX)
        except KafkaException as fault:
            raise coded(fault, self._cluster.address) from fault
        if self._faults:
            raise coded(self._faults[0], self._cluster.address)
        if left:
            problem = f"{left} records have no answer yet."
            raise errors.JournalUnavailable(problem, path=self._cluster.address)

    def _produce(self, producer: Producer, record: Out) -> None:
        topic, partition, key, value, headers = record
        while True:
            try:
                producer.produce(topic, value, key, partition, on_delivery=self._answered, headers=headers)
                break
            except BufferError:
                producer.poll(_POLL_S)
        producer.poll(0)

    def _answered(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self._faults.append(error)

    def close(self) -> None:
        """Stop; what was not answered is written again by whoever follows."""
        self._thread.shutdown(wait=True)
