"""The cluster: where it is, what its errors mean, and the topics on it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlsplit

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from headrace import errors
from headrace.event.contract import NAME
from headrace.event.lineage import ID_BYTES
from headrace.ports import Clock

T = TypeVar("T")
SCHEME = "kafka"
PARTITIONS_DEFAULT, PARTITIONS_MAX = 16, 1_024
#: Copies of a topic that we create, where there are as many brokers; two must have what was accepted.
REPLICAS_MAX, REPLICAS_IN_SYNC = 3, 2
REQUEST_TIMEOUT_S = 10.0
#: A topic that was just created is looked for this long: the brokers hear of it one after the other.
APPEARS_S_MAX = 10.0
_LOOK_S = 0.05

_DENIED = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError._AUTHENTICATION,  # noqa: SLF001 - the library names its own errors so
    }
)


class Cluster(NamedTuple):
    """A cluster as a URL names it: ``kafka://host:9092,other:9092?security.protocol=SASL_SSL&...``."""

    address: str
    #: Settings of librdkafka.
    config: Mapping[str, Any]


def cluster_of(url: str) -> Cluster:
    """Return the cluster of a URL; options behind ``?`` are settings of librdkafka, handed on as they are.

    Raises `SettingInvalid` for a URL without a host.
    """
    parts = urlsplit(url)
    if parts.scheme != SCHEME or not parts.netloc or "@" in parts.netloc:
        problem = "it is kafka://host:port[,host:port ...][?setting=value&...], without user and password"
        raise errors.SettingInvalid(name="journal", origin="the settings", problem=problem)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    return Cluster(f"{SCHEME}://{parts.netloc}", {**given, "bootstrap.servers": parts.netloc})


def coded(fault: KafkaError | KafkaException, address: str) -> errors.JournalError:
    """Return the coded error for one of Kafka."""
    error: KafkaError = fault.args[0] if isinstance(fault, KafkaException) else fault
    if error.code() in _DENIED:
        return errors.JournalDenied(path=address, problem=error.str())
    return errors.JournalUnavailable(error.str(), path=address)


class Topic(NamedTuple):
    """A topic as the cluster has it."""

    name: str
    #: The cluster's own id: a topic that was deleted and made again has another.
    topic_id: bytes
    partitions: int


class Admin:
    """Looks at topics and creates them; its calls wait in threads."""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._address, self._clock = cluster.address, clock
        self._client: Any = AdminClient(
            {**cluster.config, "socket.timeout.ms": int(REQUEST_TIMEOUT_S * 1000)}
        )

    async def _call(self, ask: Callable[[], T]) -> T:
        try:
            return await asyncio.to_thread(ask)
        except KafkaException as fault:
            raise coded(fault, self._address) from fault

    async def check(self) -> int:
        """Return the number of brokers; raises `JournalUnavailable` when none answers."""
        found = await self._call(lambda: self._client.list_topics(timeout=REQUEST_TIMEOUT_S))
        return len(found.brokers)

    async def find(self, name: str) -> Topic | None:
        """Return a topic, or ``None`` where there is none of that name."""
        names = TopicCollection([name])
        answers = self._client.describe_topics(names, request_timeout=REQUEST_TIMEOUT_S)
        try:
            found = await asyncio.to_thread(answers[name].result, REQUEST_TIMEOUT_S)
        except KafkaException as fault:
            if fault.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise coded(fault, self._address) from fault
        bits = found.topic_id
        number = (bits.get_most_significant_bits() % 2**64) << 64 | bits.get_least_significant_bits() % 2**64
        return Topic(name, number.to_bytes(ID_BYTES, "big"), len(found.partitions))

    async def make(self, name: str, partitions: int | None, **config: str) -> Topic:
        """Return a topic, creating it where it is missing; raises `TopicInvalid`, `TopicMismatch`."""
        if not NAME.fullmatch(name):
            raise errors.TopicInvalid(topic=name)
        count = PARTITIONS_DEFAULT if partitions is None else partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise errors.TopicInvalid(f"It has 1 to {PARTITIONS_MAX} partitions, not {count}.", topic=name)
        found = await self.find(name) or await self._create(name, count, config)
        if partitions is not None and found.partitions != partitions:
            raise errors.TopicMismatch(topic=name, found=found.partitions, asked=partitions)
        return found

    async def _create(self, name: str, partitions: int, config: Mapping[str, str]) -> Topic:
        replicas = min(REPLICAS_MAX, await self.check())
        settings = dict(config)
        if replicas >= REPLICAS_MAX:
            settings["min.insync.replicas"] = str(REPLICAS_IN_SYNC)
        new = NewTopic(name, partitions, replicas, config=settings)
        answers = self._client.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)
        try:
            await asyncio.to_thread(answers[name].result, REQUEST_TIMEOUT_S)
        except KafkaException as fault:
            if fault.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:  # another process was quicker
                raise coded(fault, self._address) from fault
        for _ in range(int(APPEARS_S_MAX / _LOOK_S)):
            found = await self.find(name)
            if found is not None:
                return found
            await self._clock.sleep(_LOOK_S)
        raise errors.JournalUnavailable(f"Topic {name} was created but does not appear.", path=self._address)

    async def assigned(self, group: str, topic: str) -> set[int]:
        """Return the partitions of a topic that members of a group have."""
        (answer,) = self._client.describe_consumer_groups([group], request_timeout=REQUEST_TIMEOUT_S).values()
        try:
            found = await asyncio.to_thread(answer.result, REQUEST_TIMEOUT_S)
        except KafkaException as fault:
            if fault.args[0].code() == KafkaError.GROUP_ID_NOT_FOUND:
                return set()  # nobody has ever joined
            raise coded(fault, self._address) from fault
        given = [one for member in found.members for one in member.assignment.topic_partitions]
        return {one.partition for one in given if one.topic == topic}

    async def settings(self, name: str) -> dict[str, str]:
        """Return the settings of a topic."""
        asked = ConfigResource(ResourceType.TOPIC, name)
        (answer,) = self._client.describe_configs([asked], request_timeout=REQUEST_TIMEOUT_S).values()
        found = await self._call(lambda: answer.result(REQUEST_TIMEOUT_S))
        return {one: str(entry.value) for one, entry in found.items()}
