"""Transactions of Kafka whose end is not heard of, or is not what was hoped for."""

from __future__ import annotations

import asyncio
import threading
import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from headrace import errors
from headrace.codec.allotment import Allotment
from headrace.journal.kafka import produce
from headrace.journal.kafka.allotter import Quicker, Writer
from headrace.journal.kafka.client import cluster_of
from headrace.journal.kafka.produce import COMMIT_TRIES_MAX, Aborted, Transactions, Unsure, commit
from headrace.journal.kafka.share import Share
from headrace.ports import NoFaults
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


class Refused:
    """A producer whose commits end with errors, one after the other; so does its abort where it has one."""

    def __init__(self, *commits: KafkaError | None, abort: KafkaError | None = None) -> None:
        self._commits, self._abort = list(commits), abort
        self.aborts = 0

    def begin_transaction(self) -> None:
        """Begin."""

    def poll(self, _seconds: float) -> None:
        """Nothing has come."""

    def produce(self, *_record: Any) -> None:
        """Take a record."""

    def commit_transaction(self, _seconds: float) -> None:
        """Commit, or not."""
        if (error := self._commits.pop(0)) is not None:
            raise KafkaException(error)

    def abort_transaction(self, _seconds: float) -> None:
        """Abort, or not."""
        self.aborts += 1
        if self.aborts > 1:
            raise KafkaException(error(KafkaError._STATE))
        if self._abort is not None:
            raise KafkaException(self._abort)


def error(code: int, **what: bool) -> KafkaError:
    """Return an error of the client."""
    return KafkaError(code, "as the broker says", **what)


CLUSTER = cluster_of("kafka://127.0.0.1:1")
ALLOTMENT = Allotment(
    replay="1", version="v", topic="", side=None, again=None, wanted="", at_us=0,
    parts={}, allotted=0, skipped={},
)  # fmt: skip
UNHEARD = error(KafkaError._TIMED_OUT, retriable=True)
UNKNOWN = error(KafkaError.UNKNOWN, txn_requires_abort=True)


def test_a_commit_that_is_not_heard_of_is_asked_about_again() -> None:
    """It has stood or fallen already; asked too often, nobody can say."""
    commit(cast("Any", Refused(UNHEARD, UNHEARD, None)))
    with pytest.raises(Unsure):
        commit(cast("Any", Refused(*[UNHEARD] * COMMIT_TRIES_MAX)))


def test_a_refused_commit_is_certain_only_when_the_abort_was_taken() -> None:
    """A broker that fails inside may have written the commit: only an abort that it takes says it has not."""
    taken = Refused(UNKNOWN)
    with pytest.raises(Aborted):
        commit(cast("Any", taken))
    assert taken.aborts == 1
    late = error(KafkaError.INVALID_TXN_STATE, fatal=True)
    with pytest.raises(Unsure):
        commit(cast("Any", Refused(UNKNOWN, abort=late)))


def test_after_an_abort_the_producer_goes_on() -> None:
    """It is not aborted once more, which would be refused, and not made anew, which takes some requests."""
    transactions = Transactions(CLUSTER, "test", SystemChance())
    refused = Refused(UNKNOWN)
    producer: Any = refused
    transactions._producer = producer
    with pytest.raises(errors.JournalError):
        asyncio.run(transactions.commit([]))
    transactions.close()
    assert refused.aborts == 1
    assert transactions._producer is producer


def test_whoever_is_unsure_begins_with_a_new_producer() -> None:
    """The library takes no call of the old one any more, or has lost count."""
    transactions = Transactions(CLUSTER, "test", SystemChance())
    transactions._producer = cast("Any", Refused(*[UNHEARD] * COMMIT_TRIES_MAX))
    with pytest.raises(Unsure):
        asyncio.run(transactions.commit([]))
    transactions.close()
    assert transactions._producer is None


def test_missing_rights_are_no_rival() -> None:
    """Whoever may not write an allotment is told so, not that others were quicker."""
    writer = Writer(
        log=cast("Any", SimpleNamespace(faults=NoFaults(), cluster=CLUSTER, address="")), topic="t"
    )
    refused = error(KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, fatal=True)
    writer._producer = cast("Any", Refused(refused))
    with pytest.raises(Quicker) as quicker:
        asyncio.run(writer.write(ALLOTMENT))
    assert isinstance(quicker.value.error, errors.JournalDenied)
    assert not quicker.value.sure


def test_after_a_fatal_error_nobody_can_say() -> None:
    """The library takes no call any more."""
    fatal = Refused(error(KafkaError._FENCED, fatal=True))
    with pytest.raises(Unsure):
        commit(cast("Any", fatal))
    assert fatal.aborts == 0


@pytest.mark.parametrize(("code", "fenced"), [(KafkaError._FENCED, True), (KafkaError.UNKNOWN, False)])
def test_two_who_allot_at_once_begin_anew(code: int, fenced: bool) -> None:
    """Whatever the broker calls it that another has begun: nothing is written, and the topic has to say."""
    writer = Writer(
        log=cast("Any", SimpleNamespace(faults=NoFaults(), cluster=CLUSTER, address="")), topic="t"
    )
    writer._producer = cast("Any", Refused(error(code, fatal=fenced, txn_requires_abort=not fenced)))
    with pytest.raises(Quicker) as quicker:
        asyncio.run(writer.write(ALLOTMENT))
    assert quicker.value.sure == fenced, "what a broker does not know, the topic has to say"


def test_offsets_that_are_never_sent_are_an_outage(monkeypatch: pytest.MonkeyPatch) -> None:
    """The transaction fails; its producer is left behind and commits nothing, though the call ends late."""
    monkeypatch.setattr(produce, "SEND_S_MAX", 0.05)
    transactions = Transactions(CLUSTER, "test", SystemChance())
    stuck: Any = Stuck()
    transactions._producer = stuck

    with pytest.raises(errors.JournalUnavailable):
        asyncio.run(transactions.commit([], [TopicPartition("t", 0, 1)]))

    assert transactions._producer is None, "the next transaction begins with a new producer"
    stuck.goes_on.set()
    transactions.close()
    assert not stuck.committed


async def _left(share: Share) -> None:
    leaving = asyncio.create_task(share.leave())
    await asyncio.sleep(0.01)
    assert share.parts == {}, "nothing of them is claimed any more"
    joining = asyncio.create_task(share.join())
    await asyncio.gather(leaving, joining)


def test_who_joins_waits_for_who_leaves() -> None:
    """A commit that nobody can say anything of leaves the group beside the loop, which joins again."""
    told = list[str]()
    share = Share.__new__(Share)
    known: Any = share

    async def join() -> None:
        told.append("joined")

    async def close() -> None:
        told.append("closed")

    known._membership, known.parts, known.deliveries, known._join = asyncio.Lock(), {1: None}, None, join
    known.poller = SimpleNamespace(close=lambda: time.sleep(0.1))
    known.transactions = SimpleNamespace(close=lambda: told.append("ended"))
    known.parents, known._log = SimpleNamespace(close=close), SimpleNamespace(faults=NoFaults())
    asyncio.run(_left(share))
    assert told == ["ended", "closed", "joined"]
