"""Looking into a journal on Kafka, and deciding on it: the ports `Look` and `Desk`."""

from __future__ import annotations

from collections.abc import Sequence

from headrace import errors
from headrace.journal.kafka import counting, replayed, rules, standing
from headrace.journal.kafka import letters as dlq
from headrace.journal.kafka.client import Cluster
from headrace.journal.kafka.events import Events, KafkaFeed
from headrace.journal.kafka.log import Log
from headrace.journal.kafka.survey import Survey, Surveying
from headrace.journal.reader import ID_DIGITS_MIN
from headrace.journal.versions import handler_unknown
from headrace.ports import Chance, Clock, Faults, VersionInfo
from headrace.ports.history import History, RetiredOne
from headrace.ports.index import Index
from headrace.ports.look import (
    UNDECIDED,
    Decided,
    Filter,
    Letter,
    Progress,
    Replayed,
    Standing,
    StoredEvent,
    Topic,
    Violation,
)


class KafkaLook(Surveying):
    """A journal on a cluster, opened to be read; what its index does not have yet is indexed on the way."""

    def __init__(
        self, cluster: Cluster, index: Index, *, clock: Clock, chance: Chance, faults: Faults
    ) -> None:
        super().__init__(cluster, index, clock=clock, chance=chance, faults=faults)
        self.address = cluster.address

    async def open(self) -> None:
        """Connect; nothing is created."""
        await self._connect(make=False)

    async def topics(self) -> list[Topic]:
        """Return the topics that apps have used, by name."""
        return await counting.topics(self._survey)

    async def progress(self) -> list[Progress]:
        """Return the progress of every subscription."""
        return await counting.progress(self._survey)

    async def replays(self) -> list[Replayed]:
        """Return the replays, oldest first."""
        return await replayed.replays(self._survey)

    async def retired(self) -> list[RetiredOne]:
        """Return nothing: on a cluster a handler ends with its consumer group."""
        return []

    async def violations(self) -> list[Violation]:
        """Return every rule that does not hold."""
        return await rules.violations(self._survey)

    async def histories(self, handler: str | None = None) -> list[History]:
        """Return which version has handled what."""
        return await counting.histories(self._survey, await self._handlers(handler))

    async def _handlers(self, wanted: str | None) -> list[str]:
        """Return the handlers that a name means, whole or short; raises `HandlerUnknown`."""
        known = sorted((await self._survey.known()).handlers())
        found = [one for one in known if wanted in (None, one, one.rpartition(".")[2])]
        if wanted is not None and not found:
            raise handler_unknown(wanted, known)
        return found

    def feed(self, topic: str | None = None, from_offset: int = 0, from_us: int | None = None) -> KafkaFeed:
        """Return the events, in each partition from an offset on; nothing is left out for its time."""
        del from_us
        return KafkaFeed(self._survey, topic, from_offset)

    async def find(self, text: str, *, topic: str | None = None) -> StoredEvent:
        """Return the event that a text names."""
        return await Events(self._survey).find(text, topic=topic)

    async def chain(self, event: StoredEvent) -> list[StoredEvent]:
        """Return the chain of an event."""
        return await Events(self._survey).chain(event)

    async def standings(self, event: StoredEvent) -> list[Standing]:
        """Return where an event stands."""
        found = await standing.standings(self._survey, event)
        return sorted([*found, *await replayed.standings(self._survey, event)], key=lambda one: one.handler)

    async def letters(self, wanted: Filter = UNDECIDED) -> list[Letter]:
        """Return dead letters, oldest first."""
        await self._handlers(wanted.handler)
        return await dlq.letters(self._log, wanted)

    async def named(self, text: str) -> list[Letter]:
        """Return the dead letters that a text names."""
        everything = await dlq.letters(self._log, Filter(decided=True))
        found = [one for one in everything if text.isdecimal() and one.id == int(text)]
        if not found and not (text.isdecimal() and len(text) < ID_DIGITS_MIN):
            event_id = (await self.find(text)).envelope.event_id
            found = [one for one in everything if one.event.envelope.event_id == event_id]
        if not found:
            raise errors.EventNotFound(
                "There is no such dead letter.", hint="``headrace dlq ls`` lists them", event_id=text
            )
        return found

    async def left(self) -> int:
        """Return how many dead letters nobody has decided on."""
        return len(await dlq.letters(self._log))


class KafkaDesk:
    """A journal on a cluster, opened for the decisions of a person."""

    def __init__(
        self, cluster: Cluster, index: Index, *, clock: Clock, chance: Chance, faults: Faults
    ) -> None:
        self._log = Log(cluster, index, clock=clock, chance=chance, faults=faults)
        self._opened = False

    async def open(self) -> None:
        """Connect; nothing is created."""
        await self._log.open(make=False)
        self._opened = True

    async def close(self) -> None:
        """Disconnect."""
        if self._opened:
            await self._log.close()

    async def activate(self, handler: str, version: str) -> VersionInfo:
        """Make a known version the active one."""
        survey = Survey(self._log)
        try:
            known = (await survey.known()).handlers()
        finally:
            await survey.close()
        if handler not in known:
            raise handler_unknown(handler, known)
        return await self._log.versions.activate(handler, version)

    async def redrive(self, letters: Sequence[Letter]) -> list[Decided]:
        """Ask for dead events to be handled again; the workers that have their partitions do it."""
        return await dlq.redrive(self._log, letters)

    async def drop(self, letters: Sequence[Letter]) -> list[Decided]:
        """Put dead letters away."""
        return await dlq.drop(self._log, letters)

    async def refusals(self, letters: Sequence[Letter], *, drop: bool = False) -> list[Decided]:
        """Return what would be refused."""
        return await dlq.refusals(self._log, letters, drop=drop)
