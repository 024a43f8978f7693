"""One run of `replay_kill.py`: a history, live load, replays that are killed and begun again, an upgrade."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from _look import Look
from _replay_worker import NEW, OLD
from _spawner import UNLOADABLE, Child, Spawner, last_words, until

#: How a replay ends that found nothing left to do.
NOTHING_LEFT = 5
#: Something is not as it should be when it takes longer; with a rule switched off that is to be expected.
IDLE_S_MAX, IDLE_S_MAX_SABOTAGED = 60.0, 6.0
#: A kill waits this long for a replay that has work in hand.
BUSY_S_MAX = 2.0
#: After so many processes that ended by themselves a run is given up.
BROKEN_MAX = 5
#: Few of these happen to one process; of the others the first would always come at the same moment.
HITS_MAX = {"replay": 1, "balance": 2, "release": 1, "claim.committed": 3}


class Plan(NamedTuple):
    """What is to happen; drawn from the seed."""

    number: int
    seed: int
    failpoint: str
    hit: int
    durability: str
    lease_ms: int
    partitions: int
    history: int
    load: int
    pace_ms: float
    twins: bool
    live: bool
    kills: int
    redrives: int
    kills_live: bool
    upgrade_after_s: float


def draw(number: int, seed: int, points: tuple[str, ...]) -> Plan:
    """Return the plan of a run."""
    chance = random.Random(f"replay:{seed}:{number}")
    point = points[number % len(points)]
    few = next((hits for name, hits in HITS_MAX.items() if point.startswith(name)), 8)
    return Plan(
        number=number,
        seed=chance.getrandbits(48),
        failpoint=point,
        hit=chance.randint(1, few),
        durability="normal" if number % 3 == 2 else "full",
        lease_ms=chance.randint(400, 700),
        partitions=chance.choice((1, 2, 4, 8)),
        history=chance.randint(60, 140),
        load=chance.randint(60, 120),
        pace_ms=chance.choice((10.0, 20.0, 30.0)),
        twins=chance.random() < 0.4,
        live=chance.random() < 0.3,
        kills=chance.choice((1, 2, 2, 3)),
        redrives=chance.choice((0, 1, 2, 3)),
        kills_live=chance.random() < 0.3,
        upgrade_after_s=chance.uniform(0.1, 0.8),
    )


class Run:
    """A plan being carried out."""

    def __init__(self, plan: Plan, spawner: Spawner, folder: Path, sabotage: str = "") -> None:
        self.plan, self.folder = plan, folder
        self._spawner, self._sabotage = spawner, sabotage
        self._chance = random.Random(plan.seed)
        self._look = LiveLook(folder / "journal.db")
        self._replays: set[Child] = set()
        self._armed: set[Child] = set()
        self._worker: Child | None = None
        self._over = self._enough = False
        self._limit_s = IDLE_S_MAX_SABOTAGED if sabotage else IDLE_S_MAX
        self.hits: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        #: What went wrong beside the faults: a process that ended by itself, a journal not idle.
        self.troubles: list[str] = []

    # --- processes ----------------------------------------------------------------------------

    async def _spawn(self, role: str, *, armed: bool = False, **more: Any) -> Child:
        plan = self.plan
        task = {
            "role": role, "folder": str(self.folder), "seed": plan.seed, "durability": plan.durability,
            "lease_ms": plan.lease_ms, "partitions": plan.partitions, "pace_ms": plan.pace_ms,
            "live": plan.live, "sabotage": self._sabotage, **more,
        }  # fmt: skip
        if armed:
            task |= {"failpoint": plan.failpoint, "hit": plan.hit}
        child = await self._spawner.spawn(task, self.folder / "processes.log")
        if armed:
            self._armed.add(child)
        return child

    def _note_end(self, child: Child, status: int) -> None:
        """Tell a failpoint from a kill and from an end that nobody asked for."""
        if child in self._armed and status == -signal.SIGKILL and signal.SIGKILL not in child.asked:
            self.hits[self.plan.failpoint] += 1
            # What is being allotted is in nobody's hand yet, and it is the work of this process all the same.
            allots = self.plan.failpoint.startswith("replay.")
            self._count_kill(in_flight=allots or self._look.replays_run())
        elif status not in (0, NOTHING_LEFT, UNLOADABLE) and -status not in child.asked:
            self.troubles.append(f"a process ended by itself with {status}: {last_words(self.folder)}")

    def _count_kill(self, *, in_flight: bool) -> None:
        self.tally["kills"] += 1
        self.tally["kills_in_flight"] += in_flight

    async def _keep_worker(self) -> None:
        """Have a live worker, again and again, until the end."""
        while not self._over and len(self.troubles) <= BROKEN_MAX:
            self._worker = child = await self._spawn("worker")
            self._note_end(child, await child.ended)

    async def _keep_replay(self) -> None:
        """Begin the replay again whenever it has ended, until there was enough of it."""
        while not self._enough and len(self.troubles) <= BROKEN_MAX:
            armed = not self.hits[self.plan.failpoint]
            child = await self._spawn("replay", armed=armed, weights="new.bin")
            self._replays.add(child)
            status = await child.ended
            self._replays.discard(child)
            self._note_end(child, status)
            await asyncio.sleep(self._chance.uniform(0.0, 0.15))

    # --- what befalls them --------------------------------------------------------------------

    def _busy(self) -> list[Child]:
        running = self._look.running()
        return [one for one in self._replays if one.pid in running and one not in self._armed]

    async def _kill(self) -> None:
        """SIGKILL replays at random moments, rather with work in hand."""
        for _ in range(self.plan.kills):
            await asyncio.sleep(self._chance.uniform(0.05, 0.6))
            busy: list[Child] = []
            await until(lambda busy=busy: busy.extend(self._busy()) or busy, BUSY_S_MAX)
            victims = busy or [one for one in self._replays if one not in self._armed]
            if victims and self._chance.choice(victims).send(signal.SIGKILL):
                self._count_kill(in_flight=bool(busy))

    async def _kill_live(self) -> None:
        if self.plan.kills_live:
            await asyncio.sleep(self._chance.uniform(0.2, 1.2))
            if self._worker is not None and self._worker.send(signal.SIGKILL):
                self.tally["live_kills"] += 1

    async def _upgrade(self) -> None:
        """Put the new weights in place: the version that is being replayed goes live."""
        await asyncio.sleep(self.plan.upgrade_after_s)
        await until(lambda: not self._look.nothing_left(), BUSY_S_MAX)
        self.tally["upgraded_midway"] += not self._look.nothing_left()
        self._put("live.bin", NEW)

    async def _redrive(self) -> None:
        for _ in range(self.plan.redrives):
            await asyncio.sleep(self._chance.uniform(0.1, 0.8))
            operator = await self._spawn("operator")
            self._note_end(operator, await operator.ended)

    def _put(self, name: str, weights: bytes) -> None:
        new = self.folder / f"{name}.tmp"
        new.write_bytes(weights)
        new.replace(self.folder / name)

    async def _publish(self, first: int, last: int) -> None:
        publisher = await self._spawn("publisher", first=first, last=last)
        self._note_end(publisher, await publisher.ended)

    # --- the run ------------------------------------------------------------------------------

    async def carry_out(self) -> None:
        """Make a history, replay it beside load, and let all of it come to an end."""
        self._put("live.bin", OLD)
        self._put("new.bin", NEW)
        history, load = self.plan.history, self.plan.load
        keepers = [asyncio.create_task(self._keep_worker())]
        try:
            await self._publish(0, history)
            await self._become_idle()
            keepers += [asyncio.create_task(self._keep_replay()) for _ in range(1 + self.plan.twins)]
            fates = (self._kill(), self._kill_live(), self._upgrade(), self._redrive())
            await asyncio.gather(self._publish(history, history + load), *fates)
            self._enough = True
            self.tally["published"] = history + load
            _, late = await asyncio.wait(keepers[1:], timeout=self._limit_s)
            if late:
                self.troubles.append(f"a replay does not come to an end: {self._look.state()}")
                for child in self._replays:
                    child.send(signal.SIGKILL)
                await asyncio.gather(*late)
            await self._become_idle()
            await self._replay_the_rest()
        finally:
            await self._end(keepers)

    async def _become_idle(self) -> None:
        if not await until(self._look.live_idle, self._limit_s):
            self.troubles.append(f"live is not idle in time: {self._look.state()}")

    async def _replay_the_rest(self) -> None:
        """Begin the same order until nothing is left."""
        for _ in range(6):
            child = await self._spawn("replay", weights="new.bin")
            timer = asyncio.get_running_loop().call_later(self._limit_s, child.send, signal.SIGKILL)
            status = await child.ended
            timer.cancel()
            if status == NOTHING_LEFT:
                return
            self._note_end(child, status)
            if child.asked:
                break
        self.troubles.append(f"the replay does not come to an end: {self._look.state()}")

    async def _end(self, keepers: list[asyncio.Task[None]]) -> None:
        self._over = self._enough = True
        if self._worker is not None:
            self._worker.send(signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=15)
        for child in [*self._replays, self._worker] if late else ():
            if child is not None:
                self.troubles.append("a process did not end")
                child.send(signal.SIGKILL)
        await asyncio.gather(*keepers)
        self._look.close()

    async def judged(self) -> dict[str, Any]:
        """Have the journal judged by a process of its own."""
        judge = str(Path(__file__).with_name("_replay_judge.py"))
        arguments = (str(self.folder), str(self.plan.seed), str(self.tally["published"]))
        process = await asyncio.create_subprocess_exec(
            sys.executable, judge, *arguments, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await process.communicate()
        verdict: dict[str, Any] = json.loads(told) if process.returncode == 0 else {}
        if not verdict:
            self.troubles.append("the judge could not read the journal")
        return verdict


class LiveLook(Look):
    """What the driver asks while replays run beside live work."""

    def live_idle(self) -> bool:
        """Return whether the live subscription has finished every event."""
        return self._ask(LIVE_IDLE) == [(1,)]

    def replays_run(self) -> bool:
        """Return whether a replay has events in hand."""
        return bool(self._ask(REPLAYS_RUN)[0][0] or 0) if self._ask(REPLAYS_RUN) else False

    def nothing_left(self) -> bool:
        """Return whether every replay is complete."""
        return self._ask(LEFT) == [(0,)]


LIVE_IDLE = """
WITH live AS (SELECT id FROM subscription WHERE kind = 'live')
SELECT (SELECT count(*) FROM live) = 1 AND NOT EXISTS (SELECT 1 FROM open WHERE sub IN live)
AND NOT EXISTS (SELECT 1 FROM position WHERE sub IN live AND (running <> 0 OR claimed_after <> high))
AND NOT EXISTS (SELECT 1 FROM position JOIN event ON event.tp >> 10 = position.tp >> 10
    AND event.tp = position.tp AND event.seq > position.high WHERE position.sub IN live)
"""
REPLAYS_RUN = "SELECT sum(running) FROM position WHERE sub IN (SELECT sub FROM replay)"
LEFT = """
SELECT coalesce(sum(replay.allotted), 0) - (SELECT coalesce(sum(done + dead), 0) FROM position
    WHERE sub IN (SELECT sub FROM replay)) FROM replay
"""
