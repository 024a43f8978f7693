"""Kafka is real, fails when told to, comes back with its data, and lets in whom it should."""

# pyright: reportPrivateImportUsage=false
# What the documentation of confluent_kafka.admin imports, its __all__ does not name.

from __future__ import annotations

import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ConfigResource,
    NewTopic,
    PartitionMetadata,
    ResourcePatternType,
    ResourceType,
)
from tests.services.certificates import Authority
from tests.services.kafka import Broker, Cluster, Node
from tests.services.process import ServiceFailed, is_running, soon
from tests.services.server_properties import MECHANISMS, Options

#: What has not come about by then never will.
PATIENCE_S = 30.0

Settings = dict[str, str | int | float | bool]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """The one that the broker believes."""
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def broker(authority: Authority) -> Iterator[Node]:
    """One broker with every kind of listener."""
    with Broker(Options(users={"ann": "ann's secret"}, authority=authority, authorise=True)) as node:
        yield node


def make_topic(bootstrap: str) -> str:
    """Make a topic of one partition with a name of its own, and return the name."""
    name = f"t-{uuid.uuid4()}"
    admin = AdminClient({"bootstrap.servers": bootstrap})  # its end would be the end of the request
    admin.create_topics([NewTopic(name, 1)])[name].result(PATIENCE_S)
    return name


def publish(settings: Settings, topic: str, *values: bytes) -> None:
    """Publish in one transaction."""
    producer = Producer({**settings, "transactional.id": str(uuid.uuid4()), "log_level": 0})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for value in values:
        producer.produce(topic, value)
    producer.commit_transaction(PATIENCE_S)


def read(settings: Settings, topic: str, count: int) -> list[bytes | None]:
    """Return the first committed values of a topic, fewer if no more come."""
    group = {"group.id": "nobody joins it", "isolation.level": "read_committed", "log_level": 0}
    consumer = Consumer({**settings, **group})
    consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
    values: list[bytes | None] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def refusal(settings: Settings) -> KafkaError:
    """Return the error that a client meets when it tries to come in."""
    errors: list[KafkaError] = []
    admin = AdminClient({**settings, "log_level": 0}, error_cb=errors.append)
    deadline = time.monotonic() + PATIENCE_S
    while not errors and time.monotonic() < deadline:
        admin.poll(0.05)
    return errors[0]


def open_to(node: Node | Cluster) -> Settings:
    """Return the settings of the administrator."""
    return {"bootstrap.servers": node.bootstrap}


def test_a_committed_record_survives_a_kill(broker: Node) -> None:
    """What a transaction has committed is there after kill -9, and the broker is where it was."""
    topic = make_topic(broker.bootstrap)
    publish(open_to(broker), topic, b"one")
    assert read(open_to(broker), topic, 1) == [b"one"]
    before = broker.process.pid

    broker.kill()
    assert not is_running(before)
    broker.restart()
    publish(open_to(broker), topic, b"two")

    assert read(open_to(broker), topic, 2) == [b"one", b"two"]


def test_what_is_not_committed_is_not_read(broker: Node) -> None:
    """A read_committed consumer sees nothing of an aborted transaction."""
    topic = make_topic(broker.bootstrap)
    producer = Producer({**open_to(broker), "transactional.id": topic})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce(topic, b"aborted")
    producer.flush(PATIENCE_S)
    producer.abort_transaction(PATIENCE_S)
    publish(open_to(broker), topic, b"committed")

    assert read(open_to(broker), topic, 1) == [b"committed"]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_dead_member_is_missed_within_seconds(broker: Node, protocol: str) -> None:
    """On both group protocols a member that stops polling and never says goodbye loses its partition."""
    topic = make_topic(broker.bootstrap)
    asked = {"session.timeout.ms": 1000, "heartbeat.interval.ms": 300} if protocol == "classic" else {}
    shared = {**open_to(broker), "group.id": topic, "group.protocol": protocol, **asked}
    child = subprocess.Popen(
        [sys.executable, "-c", MEMBER, repr(shared), topic], stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout
        assert child.stdout.readline() == "assigned\n"
        child.kill()
        heir = Consumer(shared)
        taken: list[object] = []
        heir.subscribe([topic], on_assign=lambda _, parts: taken.extend(parts))
        assert soon(lambda: heir.poll(0.05) is None and bool(taken), PATIENCE_S)
        heir.close()
    finally:
        child.kill()
        child.communicate()


MEMBER = """
import sys, confluent_kafka
consumer = confluent_kafka.Consumer(eval(sys.argv[1]))
consumer.subscribe([sys.argv[2]], on_assign=lambda _, parts: parts and print("assigned", flush=True))
while True:
    consumer.poll(0.1)
"""


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_password_lets_in_and_a_wrong_one_does_not(broker: Node, mechanism: str) -> None:
    """Who knows the password comes in, who does not is told so."""
    wrong = refusal(broker.by_password("ann", "no secret", mechanism))
    right = AdminClient(broker.by_password("ann", "ann's secret", mechanism)).list_topics(timeout=PATIENCE_S)

    assert wrong.code() == KafkaError._AUTHENTICATION
    assert right.brokers


def test_a_certificate_lets_in_and_a_wrong_one_does_not(
    broker: Node, authority: Authority, tmp_path: Path
) -> None:
    """The broker believes its authority only, and so does a client."""
    known, stranger = authority.issue("bob"), Authority(tmp_path).issue("bob")

    refused = refusal(broker.by_certificate(stranger._replace(authority=authority.pem))).str()
    distrusted = refusal(broker.by_certificate(known._replace(authority=stranger.authority))).str()
    welcome = AdminClient(broker.by_certificate(known)).list_topics(timeout=PATIENCE_S)

    assert "alert bad certificate" in refused
    assert "certificate verify failed" in distrusted
    assert welcome.brokers


def test_acls_decide(broker: Node, authority: Authority) -> None:
    """A user without a right is refused by name of the topic; given the right, the same client may."""
    topic, admin = make_topic(broker.bootstrap), AdminClient(open_to(broker))
    for user, settings in {
        "ann": broker.by_password("ann", "ann's secret"),
        "bob": broker.by_certificate(authority.issue("bob")),
    }.items():
        assert outcome_of_producing(settings, topic) == KafkaError.TOPIC_AUTHORIZATION_FAILED
        right = AclBinding(
            ResourceType.TOPIC,
            topic,
            ResourcePatternType.LITERAL,
            f"User:{user}",
            "*",
            AclOperation.WRITE,
            AclPermissionType.ALLOW,
        )
        admin.create_acls([right])[right].result(PATIENCE_S)
        assert soon(lambda settings=settings: outcome_of_producing(settings, topic) is None, PATIENCE_S)


def outcome_of_producing(settings: Settings, topic: str) -> int | None:
    """Return the code of the error of one delivery, None if there was none."""
    outcomes: list[int | None] = []
    producer = Producer({**settings, "log_level": 0})
    producer.produce(
        topic, b"x", on_delivery=lambda error, _: outcomes.append(error.code() if error else None)
    )
    producer.flush(PATIENCE_S)
    return outcomes[0]


def partition(admin: AdminClient, topic: str) -> PartitionMetadata:
    """Return what the cluster says of the topic's one partition."""
    return admin.list_topics(topic, PATIENCE_S).topics[topic].partitions[0]


def test_a_cluster_of_three_goes_on_with_two() -> None:
    """The death of a partition's leader loses nothing and stops nobody; back again, it catches up."""
    with Cluster(3) as cluster:
        topic = make_topic(cluster.bootstrap)
        admin = AdminClient(open_to(cluster))
        publish(open_to(cluster), topic, b"one")
        node = cluster.nodes[partition(admin, topic).leader - 1]

        node.kill()
        publish(open_to(cluster), topic, b"two")
        assert read(open_to(cluster), topic, 2) == [b"one", b"two"]
        node.restart()

        assert soon(
            lambda: len(admin.list_topics(topic, PATIENCE_S).topics[topic].partitions[0].isrs) == 3,
            PATIENCE_S,
        )
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        settings = admin.describe_configs([resource])[resource].result(PATIENCE_S)
        assert settings["min.insync.replicas"].value == "2"


def test_a_broker_that_cannot_start_says_why() -> None:
    """The error of a failed start ends with the log, and nothing is left running."""
    with (
        pytest.raises(ServiceFailed, match=r"num\.io\.threads"),
        Broker(Options(properties={"num.io.threads": "0"})),
    ):
        pass
