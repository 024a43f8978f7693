"""What a Kafka server is told: one file of properties, made from few choices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tests.services.certificates import Authority
from tests.services.ports import LOOPBACK

#: The folder of the records, within a node's.
DATA = "data"
MECHANISMS = ("SCRAM-SHA-256", "PLAIN")

#: A start of 1.5 to 2.4 s instead of 4.3 s: the optimising compiler pays off only after minutes.
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")

#: Waits of seconds to minutes that a test would sit through, and memory it does not need.
SMALL_AND_QUICK = {
    "auto.create.topics.enable": "false",  # a typing error in a name is an error
    "group.initial.rebalance.delay.ms": "0",
    # Both group protocols: what a client may ask for, and what it gets when it cannot ask (KIP-848).
    "group.min.session.timeout.ms": "1000",
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": "3000",
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "share.coordinator.state.topic.num.partitions": "4",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
    # Compaction and retention are seen within seconds once a topic's own settings allow it.
    "log.initial.task.delay.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.dedupe.buffer.size": str(8 << 20),
    "log.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "1000",
    "num.network.threads": "2",
    "num.io.threads": "4",
}


class Ports(NamedTuple):
    """Where a node listens."""

    plain: int
    controller: int
    sasl: int
    tls: int


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a broker differs from an open one on loopback.

    Whoever comes by the plain listener is the administrator, also with `authorise`: tests make topics and
    ACLs there. `users` (name to password) open a SASL_PLAINTEXT listener, `authority` an SSL listener that
    asks clients for a certificate; who comes by those may, with `authorise`, do only what ACLs allow.
    """

    users: Mapping[str, str] = field(default_factory=dict)
    authority: Authority | None = None
    authorise: bool = False
    properties: Mapping[str, str] = field(default_factory=dict)
    heap_mebibytes: int = 512
    java_options: tuple[str, ...] = QUICK_START


#: As Kafka's own scripts start one: what is measured is a broker that has run for a while.
LONG_RUNNING = Options(java_options=("-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"))


def server_properties(
    number: int, ports: Ports, controllers: Mapping[int, int], folder: Path, options: Options
) -> dict[str, str]:
    """Return the properties of one node; `controllers` are the controller ports of all nodes by number."""
    return {
        "process.roles": "broker,controller",
        "node.id": str(number),
        "controller.quorum.voters": ",".join(
            f"{voter}@{LOOPBACK}:{port}" for voter, port in controllers.items()
        ),
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(folder / DATA),
        **_replication(len(controllers)),
        **SMALL_AND_QUICK,
        **_listeners(ports, options),
        **(_passwords(options.users) if options.users else {}),
        **(_certificates(options.authority) if options.authority else {}),
        **(_access() if options.authorise else {}),
        **options.properties,
    }


def _replication(nodes: int) -> dict[str, str]:
    """Return how many copies there are, and how many of them acks=all waits for: all but one may fail."""
    copies, in_sync = str(nodes), str(nodes // 2 + 1)
    return {
        "default.replication.factor": copies,
        "min.insync.replicas": in_sync,
        "offsets.topic.replication.factor": copies,
        "transaction.state.log.replication.factor": copies,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": copies,
        "share.coordinator.state.topic.min.isr": in_sync,
        # How soon a killed node of several is missed, and how long one that starts again after a kill has to
        # wait for its own ghost. Shorter for one alone: nobody takes over from it by mistake.
        "broker.heartbeat.interval.ms": "300",
        "broker.session.timeout.ms": "1500" if nodes == 1 else "3000",
    }


def _listeners(ports: Ports, options: Options) -> dict[str, str]:
    """Return who may come where."""
    where = {"PLAINTEXT": ports.plain, "CONTROLLER": ports.controller}
    if options.users:
        where["SASL_PLAINTEXT"] = ports.sasl
    if options.authority:
        where["SSL"] = ports.tls
    protocols = {"CONTROLLER": "PLAINTEXT"}
    return {
        "listeners": ",".join(f"{name}://{LOOPBACK}:{port}" for name, port in where.items()),
        "listener.security.protocol.map": ",".join(f"{name}:{protocols.get(name, name)}" for name in where),
        "inter.broker.listener.name": "PLAINTEXT",
    }


def _passwords(users: Mapping[str, str]) -> dict[str, str]:
    """Return the SASL listener's part; passwords for SCRAM are given when the storage is formatted."""
    security = "org.apache.kafka.common.security"
    listener = "listener.name.sasl_plaintext"
    known = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    return {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        f"{listener}.scram-sha-256.sasl.jaas.config": f"{security}.scram.ScramLoginModule required;",
        f"{listener}.plain.sasl.jaas.config": f"{security}.plain.PlainLoginModule required {known};",
    }


def _certificates(authority: Authority) -> dict[str, str]:
    """Return the SSL listener's part: the name in a client's certificate is its principal."""
    server = authority.issue("server")
    return {
        "ssl.client.auth": "required",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(server.pem),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(server.authority),
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/,DEFAULT",
    }


def _access() -> dict[str, str]:
    """Return what makes ACLs count for all but the plain listener."""
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
