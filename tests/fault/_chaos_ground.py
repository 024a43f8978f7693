"""What all runs of a campaign on Kafka stand on: one broker and one database, which fail and come back."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from _chaos_judge import Seen
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from tests.services.kafka import Broker, Node
from tests.services.postgres import Postgres
from tests.services.reading import Found, committed, under_way

#: An outage may end a process that starts in it, and one that has met it as long as this ago.
FELT_S = 20.0
#: The topics of a run: events, results of either step, dead letters of either.
TOPICS = ("asked", "weighed", "filed", "asked.dlq", "weighed.dlq")
LOOK_S = 0.5
#: What nobody has ended by then no broker ends: dead producers' transactions time out after 60 s at most.
UNDER_WAY_S_MAX = 150.0
#: What a broker says that was killed after it had decided on a transaction, and before all partitions knew of
#: it: at its start it finds no leaders, drops the markers and calls the transaction complete (Kafka 4.4, a
#: cluster of one).  From then on committed readers wait for ever, whatever a client does.
DROPPED = "Couldn't find leader endpoint"
#: Of the broker's log, where a run stands still.
LOG_LINES_MAX = 20_000
#: With KIP-848 sessions are the broker's: `SMALL_AND_QUICK`.
SESSION_MS_BY_BROKER = 3_000


class Ground:
    """The services; what befalls them befalls every run that is under way."""

    def __init__(self, broker: Node, postgres: Postgres, folder: Path) -> None:
        self._broker, self._postgres, self._folder = broker, postgres, folder
        self._broker_turn, self._index_turn = asyncio.Lock(), asyncio.Lock()
        #: How many are over.
        self.outages = 0
        self._last_outage = -FELT_S
        self.tally: Counter[str] = Counter()

    def journal(self, protocol: str) -> str:
        """Return the address of the journal, for members that are missed soon."""
        soon = "&heartbeat.interval.ms=400" if protocol == "classic" else ""
        return f"kafka://{self._broker.bootstrap}?group.protocol={protocol}{soon}"

    @property
    def index(self) -> str:
        """The address of the index."""
        return self._postgres.url

    @property
    def fails(self) -> bool:
        """May a process end for want of a service?"""
        turns = self._broker_turn.locked() or self._index_turn.locked()
        return turns or time.monotonic() - self._last_outage < FELT_S

    def _over(self, what: str) -> None:
        self.tally[what] += 1
        self.outages += 1
        self._last_outage = time.monotonic()

    async def kill_broker(self, pause_s: float) -> None:
        """Kill the broker, and start it again after a while."""
        async with self._broker_turn:
            await asyncio.to_thread(self._broker.kill)
            await asyncio.sleep(pause_s)
            await asyncio.to_thread(self._broker.restart)
            self._over("broker_kills")

    async def kill_index(self, pause_s: float) -> None:
        """Kill PostgreSQL, and start it again after a while."""
        async with self._index_turn:
            await asyncio.to_thread(self._postgres.kill)
            await asyncio.sleep(pause_s)
            await asyncio.to_thread(self._postgres.start)
            self._over("index_kills")

    async def keep_index(self, name: str) -> None:
        """Make a backup of the database."""
        async with self._index_turn:
            await asyncio.to_thread(self._postgres.backup, self._folder / f"backup-{name}")
            self._over("backups")

    async def set_index_back(self, name: str) -> None:
        """Restore a backup: all that the index has learnt since is gone."""
        async with self._index_turn:
            backup = self._folder / f"backup-{name}"
            await asyncio.to_thread(self._postgres.restore, backup)
            self._over("index_restores")
            await asyncio.to_thread(shutil.rmtree, backup)

    async def _read(self, topic: str) -> list[Found]:
        try:
            async with self._broker_turn:
                return await asyncio.to_thread(committed, self._broker.bootstrap, topic)
        except KeyError:  # nobody has made it yet
            return []

    async def seen(self, name: str) -> Seen:
        """Read the topics of a run as anybody would."""
        return Seen(*[await self._read(f"{name}-{topic}") for topic in TOPICS])

    async def settled(self, name: str) -> tuple[Seen, bool]:
        """Read them once no transaction is under way any more: what dead processes left open has ended.

        Says as well whether that is so; one that does not end is waited for for a bounded time.
        """
        end = time.monotonic() + UNDER_WAY_S_MAX
        for topic in TOPICS:
            while ends := await self._is_under_way(f"{name}-{topic}"):
                if time.monotonic() > end:
                    break
                await asyncio.sleep(LOOK_S)
            if ends:
                return await self.seen(name), False
        return await self.seen(name), True

    async def hung(self, name: str) -> bool:
        """Return whether a transaction of a run stands open whose end the broker says that it has dropped.

        It may be that of a ledger or of a group's offsets: the topics do not show it, and all stand still.
        """
        if not any(DROPPED in line and name in line for line in self._log()):
            return False
        async with self._broker_turn:
            topics = await asyncio.to_thread(self._topics, name)
        for topic in topics:
            if await self._is_under_way(topic):
                return True
        async with self._broker_turn:
            return await asyncio.to_thread(self._has_unstable_offsets, name)

    def _topics(self, name: str) -> list[str]:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap})
        mine = (f"{name}-", f"headrace.{name}.")
        return [one for one in admin.list_topics(timeout=10).topics if one.startswith(mine)]

    def _has_unstable_offsets(self, name: str) -> bool:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap})
        for group in self._group_names(admin, name):
            asked = [ConsumerGroupTopicPartitions(group)]
            (answer,) = admin.list_consumer_group_offsets(asked, require_stable=True).values()
            try:
                found = answer.result(10)
            except KafkaException as fault:
                if fault.args[0].code() == KafkaError.UNSTABLE_OFFSET_COMMIT:
                    return True
                raise
            if any(
                one.error and one.error.code() == KafkaError.UNSTABLE_OFFSET_COMMIT
                for one in found.topic_partitions
            ):
                return True
        return False

    def _group_names(self, admin: AdminClient, name: str) -> list[str]:
        listed = admin.list_consumer_groups().result(10).valid
        return [one.group_id for one in listed if one.group_id.startswith(f"headrace.{name}.")]

    async def clear(self, name: str) -> None:
        """Delete the topics of a run that is over: a broker that starts again looks through all there are."""
        with suppress(KafkaException):
            async with self._broker_turn:
                await asyncio.to_thread(self._delete, name)

    def _delete(self, name: str) -> None:
        admin, topics = AdminClient({"bootstrap.servers": self._broker.bootstrap}), self._topics(name)
        for answer in admin.delete_topics(topics).values() if topics else ():
            answer.result(10)

    async def _is_under_way(self, topic: str) -> bool:
        try:
            async with self._broker_turn:
                return await asyncio.to_thread(under_way, self._broker.bootstrap, topic)
        except KeyError:
            return False
        except KafkaException:  # a broker that has just come back has no leaders yet: asked again
            return True

    def rebalances(self, name: str) -> int:
        """Return how often the groups of a run were rebalanced, as the broker's log says."""
        groups = (f"group headrace.{name}.", f"[GroupId headrace.{name}.")
        words = ("Preparing to rebalance", "Bumped group epoch")
        return sum(
            any(one in line for one in groups) and any(word in line for word in words) for line in self._log()
        )

    async def testify(self, name: str, folder: Path) -> None:
        """Write down what the broker knows of the groups of a run that stands still, and what it has said."""
        (folder / "broker.log").write_text("\n".join(self._log()[-LOG_LINES_MAX:]), "utf-8")
        try:
            async with self._broker_turn:
                told = await asyncio.to_thread(self._groups, name)
        except (KafkaException, TimeoutError) as fault:
            told = [f"the broker tells nothing of them: {fault}"]
        (folder / "groups.txt").write_text("\n".join(told), "utf-8")

    def _groups(self, name: str) -> list[str]:
        admin = AdminClient({"bootstrap.servers": self._broker.bootstrap})
        groups, found = self._group_names(admin, name), list[str]()
        for group, answer in (admin.describe_consumer_groups(groups) if groups else {}).items():
            told = answer.result(10)
            found.append(f"{group}: {told.state}, coordinator {told.coordinator}")
            found += [f"  {one.client_id}: {one.assignment.topic_partitions}" for one in told.members]
            asked = ConsumerGroupTopicPartitions(group)
            (offsets,) = admin.list_consumer_group_offsets([asked]).values()
            found += [f"  {one}" for one in offsets.result(10).topic_partitions]
        return found

    def _log(self) -> list[str]:
        return self._broker.process.log.read_text("utf-8", errors="replace").splitlines()


@contextmanager
def ground(folder: Path) -> Iterator[Ground]:
    """Start the services; they go with all that is in them."""
    with Broker() as broker, Postgres() as postgres:
        yield Ground(broker, postgres, folder)
