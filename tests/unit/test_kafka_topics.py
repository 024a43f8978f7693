"""What a topic on Kafka has to be: decided from its settings alone."""

from __future__ import annotations

import pytest

from headrace.journal.kafka.topics import BATCH_BYTES_MAX, remarks, settings_of, unfit

FIT = {"cleanup.policy": "delete", "retention.ms": "-1", "max.message.bytes": "16777216"}
COMPACT = {"cleanup.policy": "compact"}


@pytest.mark.parametrize("given", [{}, COMPACT])
@pytest.mark.parametrize("name", ["tickets", "tickets.dlq", "headrace.desk.ledger"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_what_we_create_is_fit(name: str, given: dict[str, str], replicas: int) -> None:
    """A topic with the settings that we give to new ones has no fault, and nothing is to be said of it."""
    made = settings_of(name, given, replicas)

    assert list(unfit(name, made, given, replicas)) == []
    assert list(remarks(name, made, replicas, brokers=replicas)) == []


@pytest.mark.parametrize(
    ("name", "found", "given", "replicas", "setting"),
    [
        ("tickets", COMPACT, {}, 1, "cleanup.policy=delete"),
        ("tickets", {"cleanup.policy": "compact,delete"}, {}, 1, "cleanup.policy=delete"),
        ("headrace.desk.ledger", {}, COMPACT, 1, "cleanup.policy=compact"),
        ("tickets", {"min.insync.replicas": "1"}, {}, 3, "min.insync.replicas=2"),
        ("tickets", {"min.insync.replicas": "2"}, {}, 1, "min.insync.replicas=1"),
        ("tickets", {"max.message.bytes": "100000"}, {}, 1, f"max.message.bytes={BATCH_BYTES_MAX}"),
        ("headrace.versions", {"max.message.bytes": "1048588"}, {}, 1, "max.message.bytes=16777216"),
        ("headrace.versions", {"retention.ms": "604800000"}, {}, 1, "retention.ms=-1"),
        ("headrace.versions", {"retention.bytes": "1000000"}, {}, 1, "retention.bytes=-1"),
    ],
)
def test_an_unfit_topic_is_told_what_would_be_right(
    name: str, found: dict[str, str], given: dict[str, str], replicas: int, setting: str
) -> None:
    """One fault, and with its setting there is none left."""
    (fault,) = unfit(name, {**FIT, **found}, given, replicas)

    assert fault.setting == setting
    assert fault.problem
    right = dict([setting.split("=", 1)])
    assert list(unfit(name, {**FIT, **found, **right}, given, replicas)) == []


@pytest.mark.parametrize(
    ("found", "brokers", "said"),
    [
        ({"retention.ms": "604800000"}, 1, "7 days"),
        ({"retention.bytes": "1000000"}, 1, "retention.bytes is 1000000"),
        ({"max.message.bytes": "1048588"}, 1, "larger events are refused"),
        ({}, 3, "1 of 3 brokers"),
    ],
)
def test_what_is_allowed_but_costs_is_told(found: dict[str, str], brokers: int, said: str) -> None:
    """Topics of others may forget; whoever runs them hears what that means."""
    (remark,) = remarks("tickets", {**FIT, **found}, 1, brokers)

    assert said in remark
    assert list(unfit("tickets", {**FIT, **found}, {}, 1)) == []
