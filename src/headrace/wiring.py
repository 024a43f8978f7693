"""Which parts the settings mean: the only place that names the concrete ones."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from headrace import errors
from headrace.settings import Settings, path_of

if TYPE_CHECKING:
    from headrace.ports import Journal, Keep, World
    from headrace.ports.care import Care
    from headrace.ports.index import Index
    from headrace.ports.look import Desk, Look
    from headrace.ports.upkeep import Upkeep
    from headrace.runtime.worker import WorkerSettings

T = TypeVar("T")
_KAFKA = "kafka://"
_POSTGRES = ("postgresql://", "postgres://")
#: What to do on a cluster in place of a command that looks after a file.
_INSTEAD = {
    "compact": "the brokers delete and compact by the settings of each topic: ``retention.ms``,"
    " ``retention.bytes``, ``cleanup.policy`` (``kafka-configs.sh --alter``)",
    "backup": "replicas keep the topics (``replication.factor``), MirrorMaker copies them to another cluster;"
    " ``headrace index rebuild`` makes the index again from them",
    "erase": "Kafka deletes no single record: set ``retention.ms`` of the topic and of its ``.dlq``, or"
    " encrypt payloads with a key for each person and throw that away",
    "handler retire": "stop the workers, then delete the consumer group of the handler and its topics, which"
    " begin with ``headrace.`` and its name (``kafka-consumer-groups.sh --delete``)",
}


def journal_of(settings: Settings, world: World) -> Journal:
    """Return the journal that the settings name, not opened yet."""
    if on_kafka(settings):
        with _extra():
            from headrace.journal.kafka.journal import KafkaJournal
        return _on_kafka(KafkaJournal, settings, world)
    from headrace.journal.sqlite import SqliteJournal

    return _in_file(SqliteJournal, settings, world)


def worker_settings(settings: Settings, keeps: Iterable[Keep]) -> WorkerSettings:
    """Return what of the settings, and of the rules of retention, is for a worker."""
    from headrace.runtime.emission import Limits
    from headrace.runtime.worker import WorkerSettings

    return WorkerSettings(
        lease_ms=settings.lease_ms,
        stop_grace_ms=settings.stop_grace_ms,
        keeps=tuple(keeps),
        dedup_window_s=settings.dedup_window_s,
        limits=Limits(settings.payload_bytes_max, settings.depth_max),
    )


def on_kafka(settings: Settings) -> bool:
    """Return whether the journal that the settings name is on a cluster, not in a file."""
    return settings.journal.startswith(_KAFKA)


def index_of(settings: Settings, world: World) -> Index:
    """Return the index beside a journal on Kafka, not opened yet."""
    if settings.index.startswith(_POSTGRES):
        from headrace.journal.index.postgres import PostgresIndex

        return PostgresIndex(settings.index, clock=world.clock, faults=world.faults)
    from headrace.journal.index.sqlite import SqliteIndex

    path = path_of(settings.index)
    return SqliteIndex(path, clock=world.clock, chance=world.chance, faults=world.faults)


def look_of(settings: Settings, world: World) -> Look:
    """Return the journal that the settings name, to be looked into; not opened yet."""
    if on_kafka(settings):
        with _extra():
            from headrace.journal.kafka.look import KafkaLook
        return _on_kafka(KafkaLook, settings, world)
    from headrace.journal.look import SqliteLook

    return SqliteLook(path_of(settings.journal), world.clock)


def desk_of(settings: Settings, world: World) -> Desk:
    """Return the journal that the settings name, to be decided on; not opened yet."""
    if on_kafka(settings):
        with _extra():
            from headrace.journal.kafka.look import KafkaDesk
        return _on_kafka(KafkaDesk, settings, world)
    from headrace.journal.look import SqliteDesk

    return _in_file(SqliteDesk, settings, world)


def upkeep_of(settings: Settings, world: World) -> Upkeep:
    """Return the index beside the journal that the settings name; raises `CommandInvalid` without one."""
    if not on_kafka(settings):
        problem = "a journal in a SQLite file has no index beside it"
        raise errors.CommandInvalid(problem=problem, hint="``headrace status --verify`` checks the file")
    with _extra():
        from headrace.journal.kafka.upkeep import KafkaUpkeep
    return _on_kafka(KafkaUpkeep, settings, world)


def care_of(settings: Settings, world: World, command: str) -> Care:
    """Return the journal that the settings name, to be looked after; raises `NotOnKafka` on a cluster."""
    if on_kafka(settings):
        raise errors.NotOnKafka(command=command, instead=_INSTEAD[command])
    from headrace.journal.care import SqliteCare

    return _in_file(SqliteCare, settings, world)


def _on_kafka(make: Callable[..., T], settings: Settings, world: World) -> T:
    """Make a part that works on the cluster and the index of the settings."""
    from headrace.journal.kafka.client import cluster_of

    cluster, index = cluster_of(settings.journal), index_of(settings, world)
    return make(cluster, index, clock=world.clock, chance=world.chance, faults=world.faults)


def _in_file(make: Callable[..., T], settings: Settings, world: World) -> T:
    """Make a part that writes to the file of the settings."""
    path, durability = path_of(settings.journal), settings.durability
    return make(path, clock=world.clock, chance=world.chance, faults=world.faults, durability=durability)


@contextmanager
def _extra() -> Generator[None]:
    """Say what to install where the client of Kafka is missing."""
    try:
        yield
    except ModuleNotFoundError as fault:
        raise errors.ExtraMissing(feature="A journal on Kafka", extra="kafka") from fault
