"""The cluster: where it is, what its errors mean, and the topics on it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
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
from headrace.journal.kafka.topics import LEDGER_BYTES_MAX, REPLICAS_MAX, remarks, settings_of, unfit
from headrace.ports import Clock

_log = logging.getLogger("headrace.journal")
T = TypeVar("T")
SCHEME = "kafka"
PARTITIONS_DEFAULT, PARTITIONS_MAX = 16, 1_024
REQUEST_TIMEOUT_S = 10.0
#: The library tells of its time-out a little after it.
ANSWER_S_MAX = REQUEST_TIMEOUT_S + 2.0
#: A topic that was just created is looked for this long: the brokers hear of it one after the other.
APPEARS_S_MAX = 30.0
_LOOK_S = 0.05

#: Errors of those who may not, and the kind of thing that they may not use.
_DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "topic",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "cluster",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "transactional id",
    KafkaError.SASL_AUTHENTICATION_FAILED: "cluster",
    KafkaError._AUTHENTICATION: "cluster",  # noqa: SLF001 - the library names its own errors so
}
_TOO_LARGE = frozenset({KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE})


#: Settings on which the guarantees rest, and what a URL may say of them all the same.
_OURS: Mapping[str, frozenset[str]] = {
    "acks": frozenset({"all", "-1"}),
    "request.required.acks": frozenset({"all", "-1"}),
    "enable.idempotence": frozenset({"true"}),
    "isolation.level": frozenset({"read_committed"}),
    "enable.auto.commit": frozenset({"false"}),
    "auto.offset.reset": frozenset({"error"}),
    # Other strategies do not give partition n of a source and of its commands to one owner.
    "partition.assignment.strategy": frozenset({"range"}),
    "group.remote.assignor": frozenset({"range"}),
    "group.protocol": frozenset({"classic", "consumer"}),
    **dict.fromkeys(
        (
            "bootstrap.servers", "metadata.broker.list", "group.id", "group.instance.id", "transactional.id",
            "transaction.timeout.ms", "enable.auto.offset.store", "enable.partition.eof",
            "max.poll.interval.ms", "on_delivery", "error_cb",
        ),
        frozenset[str](),
    ),
}  # fmt: skip
_LEASE = (
    "session.timeout.ms is the setting lease_ms; with group.protocol=consumer it is the broker's, "
    "group.consumer.session.timeout.ms"
)


#: The library writes lines of its own to stderr, some 20 a second while it finds no broker.  What matters is
#: told once and with a code; ``?log_level=6`` shows the lines as well.
LOG_LEVEL = 2

#: For whoever has ended with it: workers at work wait for the brokers, and tell no hint.
_HINT = "see whether the brokers run and can be reached from here, then do the same again"
#: For what committed readers cannot reach: brokers that died before the markers of a transaction leave it so.
STUCK = "if it stays so a transaction hangs: kafka-transactions.sh find-hanging names it, abort ends it"
#: Errors of a reader beside the groups that say nothing: the end of a partition, and that the group which the
#: library asks for in vain may not be used.
NO_ERRORS = frozenset({KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED})  # noqa: SLF001 - the library names it so


class Cluster(NamedTuple):
    """A cluster as a URL names it: ``kafka://host:9092,other:9092?security.protocol=SASL_SSL&...``."""

    address: str
    #: Settings of librdkafka, for all clients.
    config: Mapping[str, Any]
    #: Have the brokers balance the groups (KIP-848), instead of one of the members?
    by_broker: bool = False


def reading(cluster: Cluster, group: str, **more: Any) -> dict[str, Any]:
    """Return the settings of a consumer that reads what is committed, from where it is told to begin."""
    return {
        # An answer comes at the first record; where there is none, after so long.  Waiting for more of them
        # saves requests, was worth nothing on two busy cores, and cost a quarter of the p95 on two that are
        # not (at 500 events a second 38 ms with 16 KiB or 10 ms, 30 ms with the first record).
        "fetch.wait.max.ms": 10,
        **cluster.config,
        "group.id": group,
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "auto.offset.reset": "error",
        **more,
    }


def cluster_of(url: str) -> Cluster:
    """Return the cluster of a URL; options behind ``?`` are settings of librdkafka, handed on as they are.

    Raises `SettingInvalid` for a URL without a host, and for settings on which the guarantees rest.
    """
    parts = urlsplit(url)
    if parts.scheme != SCHEME or not parts.netloc or "@" in parts.netloc:
        problem = "it is kafka://host:port[,host:port ...][?setting=value&...], without user and password"
        raise errors.SettingInvalid(name="journal", origin="the settings", problem=problem)
    given = dict(parse_qsl(parts.query, keep_blank_values=True))
    _check(given)
    by_broker = given.get("group.protocol") == "consumer"
    ours = {name: value for name, value in given.items() if name not in _OURS}
    config = {"log_level": LOG_LEVEL, **ours, "bootstrap.servers": parts.netloc}
    return Cluster(f"{SCHEME}://{parts.netloc}", config, by_broker)


def _check(given: Mapping[str, str]) -> None:
    """Refuse settings that would break what Headrace promises, or that stand elsewhere."""
    for name, value in given.items():
        allowed = _OURS.get(name)
        if name == "session.timeout.ms":
            problem = _LEASE
        elif allowed is None or value.lower() in allowed:
            continue
        elif allowed:
            problem = f"{name} can only be {' or '.join(sorted(allowed))}, for the guarantees rest on it"
        else:
            problem = f"{name} is Headrace's own to set, for the guarantees rest on it"
        raise errors.SettingInvalid(name="journal", origin="the settings", problem=problem)


class Doing(NamedTuple):
    """What was tried, for the error that says that it is not allowed."""

    verb: str
    topic: str = ""
    group: str = ""
    transactional_id: str = ""

    def denied(self, kind: str) -> str:
        """Return verb and name of the thing that was not allowed, as far as they are known."""
        name = {"topic": self.topic, "group": self.group, "transactional id": self.transactional_id}.get(kind)
        if kind == "cluster" and self.topic:  # who may write to no topic at all is refused as a producer
            kind, name = "topic", self.topic
        return f"{self.verb} {kind} {name or ''}".rstrip()


def is_denied(error: KafkaError) -> bool:
    """Return whether an error says that somebody may not do something."""
    return error.code() in _DENIED


def coded(
    fault: KafkaError | KafkaException, address: str, doing: Doing | None = None
) -> errors.JournalError:
    """Return the coded error for one of Kafka."""
    error: KafkaError = fault.args[0] if isinstance(fault, KafkaException) else fault
    kind = _DENIED.get(error.code())
    if kind is not None:
        tried = "" if doing is None else f"{doing.denied(kind)}: "
        return errors.JournalDenied(path=address, problem=f"{tried}{error.str()}")
    if error.code() in _TOO_LARGE:
        return errors.RecordTooLarge(topic="" if doing is None else doing.topic)
    return errors.JournalUnavailable(error.str(), path=address, hint=_HINT)


def answered(answer: Any) -> Any:
    """Return what the cluster has answered; raises `KafkaException`, also where no answer comes."""
    try:
        return answer.result(ANSWER_S_MAX)
    except TimeoutError as fault:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT)) from fault  # noqa: SLF001 - the library names it so


class Topic(NamedTuple):
    """A topic as the cluster has it."""

    name: str
    #: The cluster's own id: a topic that was deleted and made again has another.
    topic_id: bytes
    partitions: int
    #: Brokers that have a copy.
    replicas: int = 1
    #: What the largest record may weigh, as far as that is known.
    bytes_max: int = LEDGER_BYTES_MAX


class Member(NamedTuple):
    """A member of a consumer group."""

    client: str
    host: str
    #: What it was given.
    partitions: list[tuple[str, int]]


class Admin:
    """Looks at topics and creates them; its calls wait in threads."""

    #: The cluster's own id, as the last answer had it.
    cluster_id = ""

    def __init__(self, cluster: Cluster, clock: Clock) -> None:
        self._address, self._clock = cluster.address, clock
        #: That somebody may not come in is told beside the answers, which then time out.
        self._refusal: KafkaError | None = None
        times = {"socket.timeout.ms": int(REQUEST_TIMEOUT_S * 1000)}
        config: dict[str, Any] = {**times, **cluster.config, "error_cb": self._heard}
        try:
            self._client: Any = AdminClient(config)
        except KafkaException as fault:  # of a name or a value that librdkafka does not know
            problem = fault.args[0].str()
            raise errors.SettingInvalid(name="journal", origin="the settings", problem=problem) from fault

    async def _call(self, ask: Callable[[], T], doing: Doing | None = None) -> T:
        try:
            return await asyncio.to_thread(ask)
        except KafkaException as fault:
            self._client.poll(0)
            raise coded(self._refusal or fault, self._address, doing) from fault

    def _heard(self, error: KafkaError) -> None:
        if is_denied(error):
            self._refusal = error

    async def check(self) -> int:
        """Return the number of brokers; raises `JournalUnavailable` when none answers."""
        found = await self._call(lambda: self._client.list_topics(timeout=REQUEST_TIMEOUT_S))
        self.cluster_id = str(found.cluster_id)
        return len(found.brokers)

    async def topics(self) -> list[Topic]:
        """Return all topics that this user may see, but for those of the brokers themselves, by name."""
        listed = await self._call(lambda: self._client.list_topics(timeout=REQUEST_TIMEOUT_S))
        names = sorted(name for name in listed.topics if not name.startswith("__"))
        if not names:
            return []
        asked = TopicCollection(names)
        answers = self._client.describe_topics(asked, request_timeout=REQUEST_TIMEOUT_S)
        found = [await self._described(name, answers[name]) for name in names]
        return [one for one in found if one is not None]

    async def find(self, name: str) -> Topic | None:
        """Return a topic, or ``None`` where there is none of that name."""
        names = TopicCollection([name])
        answers = self._client.describe_topics(names, request_timeout=REQUEST_TIMEOUT_S)
        return await self._described(name, answers[name])

    async def _described(self, name: str, answer: Any) -> Topic | None:
        try:
            found = await asyncio.to_thread(answered, answer)
        except KafkaException as fault:
            if fault.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return None
            raise coded(fault, self._address, Doing("describe", topic=name)) from fault
        bits = found.topic_id
        number = (bits.get_most_significant_bits() % 2**64) << 64 | bits.get_least_significant_bits() % 2**64
        replicas = min((len(one.replicas) for one in found.partitions), default=0)
        return Topic(name, number.to_bytes(ID_BYTES, "big"), len(found.partitions), replicas)

    async def make(self, name: str, partitions: int | None, **config: str) -> Topic:
        """Return a topic, creating it where it is missing.

        Raises `TopicInvalid`, `TopicMismatch`, and `TopicUnfit` for one in which something would be lost.
        """
        if not NAME.fullmatch(name):
            raise errors.TopicInvalid(topic=name)
        count = PARTITIONS_DEFAULT if partitions is None else partitions
        if not 1 <= count <= PARTITIONS_MAX:
            raise errors.TopicInvalid(f"It has 1 to {PARTITIONS_MAX} partitions, not {count}.", topic=name)
        found = await self.find(name) or await self._create(name, count, config)
        if partitions is not None and found.partitions != partitions:
            raise errors.TopicMismatch(topic=name, found=found.partitions, asked=partitions)
        return await self._checked(found, config)

    async def _checked(self, topic: Topic, config: Mapping[str, str]) -> Topic:
        """Return a topic if it is fit; tell what its owner should know, once."""
        try:
            found = await self.settings(topic.name)
        except errors.JournalDenied as fault:
            problem = fault.context["problem"]
            _log.warning("[%s] topic %s: its settings are not checked; %s", fault.code, topic.name, problem)
            return topic
        for wrong in unfit(topic.name, found, config, topic.replicas):
            raise errors.TopicUnfit(topic=topic.name, problem=wrong.problem, setting=wrong.setting)
        for remark in remarks(topic.name, found, topic.replicas, await self.check()):
            _log.warning("topic %s: %s", topic.name, remark)
        return topic._replace(bytes_max=int(found.get("max.message.bytes", topic.bytes_max)))

    async def _create(self, name: str, partitions: int, config: Mapping[str, str]) -> Topic:
        replicas = min(REPLICAS_MAX, await self.check())
        new = NewTopic(name, partitions, replicas, config=settings_of(name, config, replicas))
        for left in reversed(range(int(APPEARS_S_MAX / _LOOK_S))):
            answers = self._client.create_topics([new], request_timeout=REQUEST_TIMEOUT_S)
            try:
                await asyncio.to_thread(answered, answers[name])
                break
            except KafkaException as fault:
                code = fault.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:  # another process was quicker
                    break
                # Brokers that have just started are listed, and for a moment get no partitions yet.
                if code != KafkaError.INVALID_REPLICATION_FACTOR or not left:
                    raise coded(fault, self._address, Doing("create", topic=name)) from fault
            await self._clock.sleep(_LOOK_S)
        for _ in range(int(APPEARS_S_MAX / _LOOK_S)):
            found = await self.find(name)
            if found is not None:
                return found
            await self._clock.sleep(_LOOK_S)
        raise errors.JournalUnavailable(f"Topic {name} was created but does not appear.", path=self._address)

    async def members(self, groups: Sequence[str]) -> dict[str, list[Member]]:
        """Return the members of consumer groups; one that there is not has none."""
        if not groups:
            return {}
        answers = self._client.describe_consumer_groups(list(groups), request_timeout=REQUEST_TIMEOUT_S)
        found: dict[str, list[Member]] = {}
        for group, answer in answers.items():
            told = await self._call(partial(answered, answer))
            found[group] = [
                Member(
                    str(one.client_id),
                    str(one.host).lstrip("/"),
                    [(at.topic, at.partition) for at in one.assignment.topic_partitions],
                )
                for one in told.members
            ]
        return found

    async def settings(self, name: str) -> dict[str, str]:
        """Return the settings of a topic; of one that was just created not every broker has heard."""
        for _ in range(int(APPEARS_S_MAX / _LOOK_S)):
            with suppress(errors.JournalUnavailable):
                return await self._settings(name)
            await self._clock.sleep(_LOOK_S)
        return await self._settings(name)

    async def _settings(self, name: str) -> dict[str, str]:
        asked = ConfigResource(ResourceType.TOPIC, name)
        (answer,) = self._client.describe_configs([asked], request_timeout=REQUEST_TIMEOUT_S).values()
        found = await self._call(lambda: answered(answer), Doing("describe", topic=name))
        return {one: str(entry.value) for one, entry in found.items()}
