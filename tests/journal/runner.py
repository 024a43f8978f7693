"""What tests of replays do to a journal: begin one, run it by hand, say what it has come to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tests.journal.lab import HANDLER, OUT, TOPIC, Lab, Member, head_of
from tests.journal.ledger import SqliteLedger

from headrace.event.envelope import Stamp
from headrace.event.lineage import Derivation, partition_of
from headrace.ports import Batch, Journal, Outcome, Row, VersionInfo, VersionOffer
from headrace.ports.replay import Order, Replay, ReplayPlan, ReplayState


class Runner(Member):
    """A worker of a replay."""

    replay: Replay
    side: str | None
    again: str = ""

    @property
    def group(self) -> list[Member]:
        """All workers of the replay that live."""
        return [one for one in self.lab.members if one.subscription == self.subscription]

    def stamp(self, version: VersionInfo) -> Stamp:
        """Return the stamp of what the replay emits."""
        return super().stamp(version)._replace(side=self.side)

    async def made(self, batch: Batch, rows: Iterable[Row] | None = None) -> Outcome:
        """Return an outcome in which each row is done and has one child, beside the live ones."""
        if self.side is None:
            return await super().made(batch, rows)
        rows = list(batch.rows if rows is None else rows)
        (stamp,) = await self.journal.intern([self.stamp(batch.version)])
        out = await self.journal.topic(f"{OUT}.side.{self.side}", self.lab.partitions)
        ids = Derivation(f"{HANDLER}~{self.replay.subscription.id}", batch.version.name)
        outcome = Outcome(done=rows, causes=[row[0] for row in rows])
        for row in rows:
            head = head_of(stamp, self.lab.chance, self.key(row), (row[2],), self.lab.clock.wall_us())
            head.root = self.journal.decode_head(row[5]).root or row[2]
            child = ids.child(row[2], 0)
            place = self.journal.place(out, partition_of(head.key, child, out.partitions))
            outcome.emitted.append(self.journal.emitted(place, child, row[3], row[4] + 1, head, row[6]))
        return outcome

    async def state(self) -> ReplayState:
        """Return how far the replay is."""
        return await self.journal.replays().state(self.subscription)


def order(**wanted: Any) -> Order:
    """Return an order for the history of the lab's handler."""
    return Order(**{"handler": HANDLER, "topic": TOPIC, "side": "trial", **wanted})


async def planned(lab: Lab, offer: VersionOffer, **wanted: Any) -> ReplayPlan:
    """Return what a replay would be allotted."""
    return await (await lab.journal()).replays().plan(order(**wanted), offer)


async def begun(
    lab: Lab, offer: VersionOffer, *, journal: Journal | None = None, **wanted: Any
) -> Runner | ReplayPlan:
    """Begin a replay or go on with one, as one more worker of it; a plan where there is nothing to do."""
    journal = journal or await lab.journal()
    asked = order(**wanted)
    found = await journal.replays().begin(asked, offer)
    if isinstance(found, ReplayPlan):
        return found
    worker = await journal.join(lab.kind.lease_ms)
    consumer = journal.consumer(worker, found.subscription)
    runner = Runner(lab, journal, worker, found.subscription, consumer, found.plan.version)
    runner.replay, runner.side = found, asked.side
    await runner.balance()
    return runner


async def running(lab: Lab, offer: VersionOffer, **wanted: Any) -> Runner:
    """Begin a replay that has something to do."""
    found = await begun(lab, offer, **wanted)
    assert isinstance(found, Runner), f"nothing to do: {found}"
    return found


def finished(lab: Lab, sub: Any) -> dict[int, str]:
    """Return what a subscription has finished without a dead letter: offset, name of the version."""
    assert isinstance(lab.ledger, SqliteLedger), "replays are on SQLite"
    return lab.ledger.finished(sub)
