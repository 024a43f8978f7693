"""The producers: one for what is published, one for the transactions of a subscription."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from headrace import errors
from headrace.journal.kafka.client import Cluster, Doing, coded, is_denied
from headrace.journal.kafka.topics import LEDGER_BYTES_MAX
from headrace.ports import Chance, Faults, NoFaults
from headrace.runtime.threads import Threads

#: A transaction is opened when the handlers have finished; one that was left open ends after this long.
TRANSACTION_MS_MAX = 10_000
#: The library waits this long between two tries; its default (100 ms) is met in every transaction.
RETRY_MS = 1
#: Offsets are sent within the time of the transaction, and a little; later the library has lost the answer.
SEND_S_MAX = TRANSACTION_MS_MAX / 1000 + 2.0
#: A commit whose answer was not heard is asked about again: it has stood or fallen already.
COMMIT_TRIES_MAX = 5
_POLL_S = 0.05
FLUSH_S_MAX = 30.0


class Out(NamedTuple):
    """One record to be written."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    #: Pairs of a name and bytes.
    headers: list[Any] | None = None


def settings_of(cluster: Cluster, **more: Any) -> dict[str, Any]:
    """Return the settings of a producer."""
    return {
        **cluster.config,
        "enable.idempotence": True,
        "acks": "all",
        "retry.backoff.ms": RETRY_MS,
        "linger.ms": 0,
        "message.max.bytes": LEDGER_BYTES_MAX,
        "compression.type": "lz4",
        **more,
    }


class Publisher:
    """Writes single records; each is answered when all replicas that have to have it have it."""

    def __init__(self, cluster: Cluster) -> None:
        self._address = cluster.address
        times = {"delivery.timeout.ms": int(FLUSH_S_MAX * 1000)}
        self._config = settings_of(cluster, error_cb=self._heard, **times)
        #: Why this producer writes no more: told beside the records, which wait for their time-out.
        self._refusal: KafkaError | None = None
        self._producer = Producer(self._config)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="headrace-publish", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._producer.poll(_POLL_S)
            except KafkaException as fault:  # the library tells so, too, that a producer is at its end
                self._heard(fault.args[0])

    def _heard(self, error: KafkaError) -> None:
        if error.fatal() or is_denied(error):
            self._refusal = error
            with suppress(KafkaException):
                self._producer.purge(in_flight=False)

    async def publish(self, record: Out) -> None:
        """Write a record; raises the `JournalError` family."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()

        def delivered(error: KafkaError | None, _message: Message) -> None:
            doing = Doing("write to", topic=record.topic)
            fault = None if error is None else coded(self._refusal or error, self._address, doing)
            loop.call_soon_threadsafe(_answer, done, fault)

        self._produce(record, delivered)
        await done

    def _produce(self, record: Out, delivered: Callable[[KafkaError | None, Message], None]) -> None:
        topic, partition, key, value, headers = record
        if self._refusal is not None:  # rights may have been given since
            self._refusal, self._producer = None, Producer(self._config)
        try:
            self._producer.produce(topic, value, key, partition, on_delivery=delivered, headers=headers)
        except BufferError as fault:
            raise errors.JournalUnavailable(
                "Too many events wait for the brokers.", path=self._address
            ) from fault
        except KafkaException as fault:
            raise coded(fault, self._address, Doing("write to", topic=topic)) from fault

    def close(self) -> None:
        """Write what is queued, and stop."""
        self._producer.flush(FLUSH_S_MAX)
        self._stopped.set()
        self._thread.join()


def _answer(done: asyncio.Future[None], fault: errors.JournalError | None) -> None:
    if done.done():
        return
    if fault is None:
        done.set_result(None)
    else:
        done.set_exception(fault)


class Fence(NamedTuple):
    """What keeps a worker that has lost partitions from writing their outcomes."""

    #: Partitions are given up before a transaction or after it, not meanwhile.
    lock: threading.Lock
    #: The group's metadata of the last assignment: the brokers refuse that of an earlier one.
    metadata: object
    #: Are all partitions concerned still under the assignment of the claim?
    holds: Callable[[], bool]


class Unsure(Exception):
    """Whether a transaction has committed is not known: the ledger has to say."""


class Aborted(KafkaException):
    """A transaction has not committed, and was aborted: its producer can begin the next."""


def commit(producer: Producer) -> None:
    """Commit the transaction of a producer.

    Raises `Aborted` when it has certainly not committed, and `Unsure` when nobody can say.  A broker that
    answers with a fault of its own may have written the commit before: then it takes no abort.
    """
    for _ in range(COMMIT_TRIES_MAX):
        try:
            producer.commit_transaction(TRANSACTION_MS_MAX / 1000)
        except KafkaException as fault:
            error: KafkaError = fault.args[0]
            if error.retriable():
                continue
            if error.fatal() or not _aborted(producer):
                raise Unsure from fault
            raise Aborted(error) from fault
        else:
            return
    raise Unsure


def _aborted(producer: Producer) -> bool:
    try:
        producer.abort_transaction(TRANSACTION_MS_MAX / 1000)
    except KafkaException:
        return False
    return True


class Transactions:
    """Writes records and offsets of one subscription together or not at all, in a thread of its own."""

    def __init__(self, cluster: Cluster, name: str, chance: Chance, faults: Faults | None = None) -> None:
        self._cluster, self._name, self._chance = cluster, name, chance
        self._faults = faults or NoFaults()
        self._producer: Producer | None = None
        self._thread = Threads(1, f"headrace-commit-{name}")
        self._sending = Threads(1, f"headrace-offsets-{name}")

    async def commit(
        self,
        records: Sequence[Out],
        offsets: Sequence[TopicPartition] = (),
        fence: Fence | None = None,
    ) -> None:
        """Commit one transaction; when it fails nothing of it is seen, and the same may be tried again.

        Raises the `JournalError` family, and `Unsure` when nobody can say whether it stands.
        """
        loop = asyncio.get_running_loop()
        job = loop.run_in_executor(self._thread, self._commit, records, offsets, fence)
        await asyncio.shield(job)  # whoever is cancelled meanwhile, it ends one way or the other

    def _commit(
        self,
        records: Sequence[Out],
        offsets: Sequence[TopicPartition],
        fence: Fence | None,
    ) -> None:
        try:
            if fence is None:
                self._write(records, offsets, None)
            else:
                with fence.lock:
                    self._check(fence)
                    self._write(records, offsets, fence.metadata)
        except KafkaException as fault:
            if not isinstance(fault, Aborted):
                self._give_up(fatal=fault.args[0].fatal())
            topics = ", ".join(sorted({record.topic for record in records}))
            doing = Doing("write to", topics, self._name, f"{self._name}.*")
            raise coded(fault, self._cluster.address, doing) from fault
        except (errors.JournalError, Unsure):
            raise  # nothing was begun; or nobody knows how it ended
        except BaseException:
            self._give_up(fatal=False)
            raise

    def _check(self, fence: Fence) -> None:
        if not fence.holds():
            problem = "Partitions were given up while their outcome was under way."
            raise errors.JournalUnavailable(problem, path=self._cluster.address)

    def _write(self, records: Sequence[Out], offsets: Sequence[TopicPartition], metadata: object) -> None:
        producer = self._producer or self._make()
        self._faults.at("settle.begin")
        producer.begin_transaction()
        for topic, partition, key, value, headers in records:
            while True:
                try:
                    producer.produce(topic, value, key, partition, headers=headers)
                    break
                except BufferError:
                    producer.poll(_POLL_S)
        producer.poll(0)
        self._faults.at("settle.records")
        if offsets:
            self._send(producer, offsets, metadata)
        self._faults.at("settle.offsets")
        try:
            commit(producer)
        except Unsure:
            self._producer = None
            raise

    def _send(self, producer: Producer, offsets: Sequence[TopicPartition], metadata: object) -> None:
        """Send offsets.  A call that never returns is left behind, with its producer.

        That happens where a broker is killed or restarted meanwhile, whatever time the call is given (tried).
        The brokers end the transaction by its time-out: it cannot be committed any more by anybody.
        """
        send = producer.send_offsets_to_transaction
        job = self._sending.submit(send, list(offsets), metadata, TRANSACTION_MS_MAX / 1000)
        try:
            job.result(SEND_S_MAX)
        except TimeoutError as fault:
            self._producer = None
            self._sending.shutdown()
            self._sending = Threads(1, f"headrace-offsets-{self._name}")
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from fault  # noqa: SLF001 - the library names it so

    def _make(self) -> Producer:
        """Return a new producer; its id need not be stable, for the group's metadata is the fence."""
        config = settings_of(
            self._cluster,
            **{
                "transactional.id": f"{self._name}.{self._chance.bytes(16).hex()}",
                "transaction.timeout.ms": TRANSACTION_MS_MAX,
            },
        )
        producer = Producer(config)
        producer.init_transactions(TRANSACTION_MS_MAX / 1000)
        self._producer = producer
        return producer

    def _give_up(self, *, fatal: bool) -> None:
        """Abort; where that cannot be either, begin with a new producer."""
        producer = self._producer
        if producer is None:
            return
        self._producer = None
        if not fatal:
            with suppress(KafkaException):
                producer.abort_transaction(TRANSACTION_MS_MAX / 1000)
                self._producer = producer

    def close(self) -> None:
        """Stop; an open transaction ends by its time-out."""
        self._thread.shutdown(wait=True)
        self._sending.shutdown()
