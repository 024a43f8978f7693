"""What a reader asks the brokers for before it reads."""

from __future__ import annotations

from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.journal.kafka.client import cluster_of
from headrace.journal.kafka.spans import ASKED_MAX, Spans
from headrace.world import SystemClock


class Brokers:
    """In place of the client: notes what is asked for, and answers or does not."""

    def __init__(self, *, answer: bool) -> None:
        self._answer = answer
        self.asked: list[str | None] = []

    def list_topics(self, topic: str | None, timeout: float) -> None:
        """Tell of one topic, or of all."""
        assert timeout > 0
        self.asked.append(topic)
        if not self._answer:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def meet(topics: set[str], *, answer: bool = True) -> tuple[list[str | None], set[str]]:
    """Return what was asked for, and which topics are known after that."""
    spans, brokers = Spans(cluster_of("kafka://127.0.0.1:1"), "test", SystemClock()), Brokers(answer=answer)
    spans._consumer = cast("Any", brokers)
    spans._meet(topics)
    return brokers.asked, spans._met


@pytest.mark.parametrize("count", [1, ASKED_MAX])
def test_a_few_topics_are_asked_about_one_by_one(count: int) -> None:
    """A cluster may have thousands that are of no interest."""
    topics = {f"t{number}" for number in range(count)}
    asked, met = meet(topics)
    assert (sorted(map(str, asked)), met) == (sorted(topics), topics)


def test_for_many_the_brokers_tell_of_all() -> None:
    """In one request."""
    topics = {f"t{number}" for number in range(ASKED_MAX + 1)}
    assert meet(topics) == ([None], topics)


def test_whoever_gets_no_answer_reads_all_the_same() -> None:
    """The asking only saves time: it is no outage, one request is enough, and the next reading asks again."""
    asked, met = meet({"a", "b"}, answer=False)
    assert (len(asked), met) == (1, set())
