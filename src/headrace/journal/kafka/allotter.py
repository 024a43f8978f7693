"""The topic that says what the replays of a handler were allotted, and the one who may write to it.

What is written there counts, whatever becomes of the index.  Who writes has a transactional id that is fixed
for the handler: the brokers refuse the transaction of one after whom another has begun, so of two who
allot at once the first begins anew, and reads what the second was given.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from confluent_kafka import KafkaError, KafkaException, Producer

from headrace import errors
from headrace.codec.allotment import FORM, Allotment, read_allotment, write_allotment
from headrace.journal.kafka.client import Doing, coded
from headrace.journal.kafka.log import COMPACTED, Log
from headrace.journal.kafka.produce import TRANSACTION_MS_MAX, Aborted, Unsure, commit, settings_of
from headrace.journal.kafka.topics import LEDGER_BYTES_MAX, OWN

#: A record of more would not be taken; with it intervals of some 700,000 stretches of history.
ALLOTMENT_BYTES_MAX = LEDGER_BYTES_MAX - 65_536
#: Errors of one after whom another has begun; a broker that meets both at once may have no better word for it
#: than `UNKNOWN`, that it does not know.
_QUICKER = frozenset(
    {
        KafkaError._FENCED,  # noqa: SLF001 - the library names its own errors so
        KafkaError.INVALID_PRODUCER_EPOCH,
        KafkaError.PRODUCER_FENCED,
    }
)


def allotments_topic(handler: str) -> str:
    """Return the name of the topic, and of the transactions in which it is written to."""
    return f"{OWN}.{handler}.replays"


class Allotments:
    """What the replays of one handler were allotted."""

    def __init__(self, log: Log, handler: str) -> None:
        self._log, self._handler, self._topic = log, handler, allotments_topic(handler)
        self._found: dict[str, Allotment] = {}
        self._upto = 0
        self._there = False

    async def read(self) -> list[Allotment]:
        """Return all that was allotted, oldest first; nothing is created."""
        if not self._there:
            self._there = await self._log.opened().find(self._topic) is not None
        for message in await self._log.read_on(self._topic, 0, self._upto) if self._there else ():
            found = read_allotment(message.value() or b"")
            if found is not None:
                if found.form > FORM:
                    raise errors.JournalNewer(path=self._log.address, found=found.form, known=FORM)
                self._found[found.replay] = found
            self._upto = (message.offset() or 0) + 1
        return sorted(self._found.values(), key=lambda one: (one.at_us, one.replay))

    async def writer(self) -> Writer:
        """Return the one who may allot from now on; all others are refused."""
        await self._log.opened().make(self._topic, 1, **COMPACTED)
        writer = Writer(self._log, self._topic)
        await asyncio.to_thread(writer.begin)
        return writer

    def check(self, record: Allotment) -> None:
        """Raise `ReplayRefused` for an allotment of too many stretches."""
        if len(write_allotment(record)) > ALLOTMENT_BYTES_MAX:
            count = sum(map(len, record.parts.values()))
            problem = (
                f"the history asked for falls into {count:,} stretches, which are too many for one replay"
            )
            hint = "ask for less of it at a time: --from and --to"
            raise errors.ReplayRefused(handler=self._handler, problem=problem, hint=hint)


class Quicker(Exception):
    """Somebody else has begun to allot; or nobody can say what has become of it, and the topic has to."""

    def __init__(self, error: errors.JournalError, *, sure: bool) -> None:
        super().__init__(str(error))
        self.error, self.sure = error, sure


class Writer:
    """Writes one allotment, unless somebody else has begun to allot meanwhile."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log, self._topic = log, topic
        config = {"transactional.id": topic, "transaction.timeout.ms": TRANSACTION_MS_MAX}
        self._producer = Producer(settings_of(log.cluster, **config))

    def begin(self) -> None:
        """Have the brokers end what others have begun: committed, or aborted."""
        try:
            self._producer.init_transactions(TRANSACTION_MS_MAX / 1000)
        except KafkaException as fault:
            raise self._coded(fault) from fault

    async def write(self, record: Allotment) -> None:
        """Write it for good.

        Raises `Quicker`, and the `JournalError` family where it was certainly not written.
        """
        await asyncio.to_thread(self._write, record)

    def _write(self, record: Allotment) -> None:
        producer = self._producer
        try:
            producer.begin_transaction()
            producer.produce(self._topic, write_allotment(record), record.replay.encode(), 0)
            self._log.faults.at("replay.allotted")
            commit(producer)
        except Unsure as fault:
            raise self._quicker(fault.__cause__) from fault
        except KafkaException as fault:
            error: KafkaError = fault.args[0]
            if not (error.fatal() or isinstance(fault, Aborted)):
                with suppress(KafkaException):
                    producer.abort_transaction(TRANSACTION_MS_MAX / 1000)
            if error.code() in _QUICKER or error.code() == KafkaError.UNKNOWN:
                raise self._quicker(fault) from fault
            raise self._coded(fault) from fault

    def _quicker(self, fault: BaseException | None) -> Quicker:
        if not isinstance(fault, KafkaException):
            return Quicker(errors.JournalUnavailable("No answer.", path=self._log.address), sure=False)
        return Quicker(self._coded(fault), sure=fault.args[0].code() in _QUICKER)

    def _coded(self, fault: KafkaException) -> errors.JournalError:
        doing = Doing("write to", self._topic, transactional_id=self._topic)
        return coded(fault, self._log.address, doing)
