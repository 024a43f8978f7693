"""One run: a journal, two or three workers, a publisher, and all that can befall them, from one seed."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from _judge import published_id
from _look import Look
from _plan import Plan
from _spawner import UNLOADABLE, Child, Spawner, last_words, until

HANDLERS_WITH_MODEL = {"kill.route", "kill.file"}
#: A journal that is not idle after this long has lost work, or a worker hangs.
IDLE_S_MAX = 60.0
#: A kill waits this long for somebody who has work in hand.
BUSY_S_MAX = 3.0
#: With a rule switched off that is what is to be expected.
IDLE_S_MAX_SABOTAGED = 6.0
#: While something is still to come there is work: so many events more, so often at most.
EVENTS_MORE, ROUNDS_MAX = 20, 20
#: After so many processes that ended by themselves a run is given up.
BROKEN_MAX = 5


class Run:
    """A plan being carried out."""

    def __init__(self, plan: Plan, spawner: Spawner, folder: Path, sabotage: str = "") -> None:
        self.plan, self.folder = plan, folder
        self._sabotage = sabotage
        self._spawner = spawner
        self._chance = random.Random(plan.seed)
        self._look = Look(folder / "journal.db")
        self._living: dict[int, Child] = {}  # workers by slot
        self._armed: set[Child] = set()
        self._publisher: Child | None = None
        self._over = False
        self._file_is_broken = False
        self._unlucky: set[Child] = set()  # may have started with the file while it was broken
        self._weights = b""
        self.hits: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        #: Kills that found nobody with work in hand, by what made them.
        self.idle_kills: Counter[str] = Counter()
        #: What went wrong beside the four faults: a worker that ended by itself, a journal not idle.
        self.troubles: list[str] = []

    # --- processes ----------------------------------------------------------------------------

    async def _spawn(self, role: str, *, armed: bool = False, **more: Any) -> Child:
        plan = self.plan
        task = {
            "role": role, "folder": str(self.folder), "seed": plan.seed, "durability": plan.durability,
            "lease_ms": plan.lease_ms, "partitions": plan.partitions, "unit": plan.unit,
            "pace_ms": plan.pace_ms, "sabotage": self._sabotage, **more,
        }  # fmt: skip
        if armed:
            task |= {"failpoint": plan.failpoint, "hit": plan.hit}
        broken = self._file_is_broken  # it may read the file before this goes on, or only after it has ended
        child = await self._spawner.spawn(task, self.folder / "processes.log")
        if armed:
            self._armed.add(child)
        if broken or self._file_is_broken:
            self._unlucky.add(child)
        return child

    def _wanted(self) -> bool:
        """Return whether the failpoint of this run is still to be met."""
        return not self.hits[self.plan.failpoint]

    def _arms(self, slot: int) -> bool:
        point = self.plan.failpoint
        # Whoever loads new weights first offers them: to be sure, all are armed.
        mine = slot == 0 or point == "version.offered"
        return mine and self._wanted() and not point.startswith("publish.")

    async def _keep(self, slot: int) -> None:
        """Have a worker in this slot, again and again, until the end."""
        while not self._over:
            if self.plan.failpoint.startswith("balance.") and self._arms(slot):
                await until(self._look.in_flight, 1.5)
            child = await self._spawn("worker", armed=self._arms(slot))
            self._living[slot] = child
            status = await child.ended
            self._living.pop(slot, None)
            self._note_end(child, status)
            if len(self.troubles) > BROKEN_MAX:
                return
            if not self._over:
                await asyncio.sleep(self._chance.uniform(0.0, 0.2))

    def _note_end(self, child: Child, status: int) -> None:
        """Tell a failpoint from a kill and from an end that nobody asked for."""
        if child in self._armed and status == -signal.SIGKILL and signal.SIGKILL not in child.asked:
            self.hits[self.plan.failpoint] += 1
            # A publisher that meets a failpoint has an event in hand that is not accepted.
            in_flight = child is self._publisher or self._look.in_flight()
            self._count_kill(self.plan.failpoint, in_flight=in_flight)
        elif status == UNLOADABLE and child in self._unlucky:
            self.tally["unloadable"] += 1
        elif status != 0 and -status not in child.asked:
            self.troubles.append(f"a process ended by itself with {status}: {last_words(self.folder)}")

    def _count_kill(self, how: str, *, in_flight: bool) -> None:
        self.tally["kills"] += 1
        self.tally["kills_in_flight"] += in_flight
        if not in_flight:
            self.idle_kills[how] += 1

    # --- publishing ---------------------------------------------------------------------------

    async def _publish(self, first: int, last: int) -> None:
        """Publish a range; when the publisher dies, the next one begins with what is not accepted."""
        copier = await self._spawn("copier", first=first, last=last)
        while (start := self._first_missing(first)) < last and len(self.troubles) <= BROKEN_MAX:
            armed = self.plan.failpoint.startswith("publish.") and self._wanted()
            self._publisher = await self._spawn("publisher", armed=armed, first=start, last=last)
            status = await self._publisher.ended
            self._note_end(self._publisher, status)
            self._check_unit(self._first_missing(first), last)
        self._publisher = None
        self._note_end(copier, await copier.ended)

    def _accepted(self) -> list[str]:
        path = self.folder / "accepted.log"
        return path.read_text("ascii").splitlines() if path.exists() else []

    def _first_missing(self, first: int) -> int:
        accepted = {int(line) for line in self._accepted() if line.isdigit()}
        while first in accepted:
            first += 1
        return first

    def _check_unit(self, start: int, last: int) -> None:
        """A unit that was not accepted is there whole or not at all (copies apart: they come alone too)."""
        numbers = [n for n in range(start, min(start + self.plan.unit, last)) if n % 5]
        found = self._look.there([published_id(self.plan.seed, n) for n in numbers])
        if found not in (0, len(numbers)):
            self.tally["torn"] += 1
            self.troubles.append(f"{found} of {len(numbers)} events of the unit at {start} are there")

    # --- what befalls them --------------------------------------------------------------------

    def _busy(self) -> list[Child]:
        """Return the workers that have events in hand and may be hit from outside."""
        running = self._look.running()
        return [one for one in self._living.values() if one.pid in running and one not in self._armed]

    async def _kill(self) -> None:
        """SIGKILL at a random moment, rather with work in hand; now and then it is the publisher."""
        for _ in range(self.plan.kills):
            await asyncio.sleep(self._chance.uniform(0.05, 0.6))
            publisher = self._publisher
            if publisher is not None and publisher not in self._armed and self._chance.random() < 0.2:
                in_flight = await until(self._look.in_flight, BUSY_S_MAX)
                if publisher.send(signal.SIGKILL):
                    self._count_kill("publisher", in_flight=in_flight)
                continue
            busy: list[Child] = []
            await until(lambda busy=busy: busy.extend(self._busy()) or busy, BUSY_S_MAX)
            victims = busy or [one for one in self._living.values() if one not in self._armed]
            if victims and self._chance.choice(victims).send(signal.SIGKILL):
                self._count_kill("worker", in_flight=bool(busy))

    async def _stop(self) -> None:
        """SIGSTOP workers past their lease; what they then say of events that others have is refused."""
        if not self.plan.stops:
            return
        await asyncio.sleep(self._chance.uniform(0.05, 0.6))
        busy: list[Child] = []
        await until(lambda: busy.extend(self._busy()) or busy, 1.0)
        self._chance.shuffle(busy)
        await asyncio.gather(*(self._stop_one(victim) for victim in busy[: self.plan.stops]))

    async def _stop_one(self, victim: Child) -> None:
        pause_s = self._chance.uniform(0.0, 0.5)
        victim.send(signal.SIGSTOP)
        before = self._look.owned(victim.pid)
        lease_s = self.plan.lease_ms / 1000
        # When all have stopped nobody takes over: then this ends well after the lease.
        taken = await until(lambda: before - self._look.owned(victim.pid), 2.5 * lease_s)
        await asyncio.sleep(pause_s)
        victim.send(signal.SIGCONT)
        self.tally["stops"] += 1
        self.tally["stops_taken_over"] += taken

    async def _restart(self) -> None:
        """An orderly stop in the middle of the work."""
        if self.plan.restart:
            await asyncio.sleep(self._chance.uniform(0.1, 0.8))
            for child in list(self._living.values())[:1]:
                child.send(signal.SIGTERM)

    def _put(self, found: bytes) -> None:
        """Replace the weights: a new file, renamed over the old one."""
        new = self.folder / "weights.new"
        new.write_bytes(found)
        new.replace(self.folder / "weights.bin")
        self._weights = found

    async def _reload(self) -> None:
        """New weights, broken ones, and the way back, while workers look at different moments."""
        kind, old = self.plan.reload, self._weights
        if kind == "none":
            return
        await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        if kind in ("broken", "both"):
            self._file_is_broken = True
            self._unlucky.update(self._living.values())
            self._put(b"no weights")
            await asyncio.sleep(self._chance.uniform(0.1, 0.5))
        new = f"weights:{self.plan.seed}:{len(self._weights)}".encode()
        self._put(new)
        self._file_is_broken = False
        await asyncio.sleep(0.25)
        if kind in ("back", "both"):
            digest = hashlib.sha256(new).hexdigest()
            await until(lambda: self._look.versions(digest) >= HANDLERS_WITH_MODEL, 1.0)
            await asyncio.sleep(self._chance.uniform(0.0, 0.3))
            steps: list[Callable[[], Awaitable[object]]] = [self._activate_old(old), self._bytes_back(old)]
            self._chance.shuffle(steps)
            for step in steps:
                await step()
                await asyncio.sleep(self._chance.uniform(0.0, 0.4))

    def _activate_old(self, old: bytes) -> Callable[[], Awaitable[object]]:
        async def step() -> None:
            digest = hashlib.sha256(old).hexdigest()
            if self._look.versions(digest) >= HANDLERS_WITH_MODEL:
                await self._operate(digest)

        return step

    def _bytes_back(self, old: bytes) -> Callable[[], Awaitable[object]]:
        async def step() -> None:
            self._put(old)

        return step

    async def _operate(self, digest: str) -> None:
        operator = await self._spawn("operator", digest=digest)
        self._note_end(operator, await operator.ended)

    async def _provoke(self) -> None:
        """Bring about what the failpoint of this run needs and does not happen by itself."""
        point = self.plan.failpoint
        if not self._wanted():
            return
        if point == "version.offered":
            await until(self._look.in_flight, 1.0)
            self._put(f"weights:{self.plan.seed}:{self._chance.random()}".encode())
        elif point == "release.committed":
            await asyncio.sleep(self._chance.uniform(0.1, 0.3))
            await until(lambda: 0 in self._living and self._busy(), 1.0)
            if 0 in self._living:
                self._living[0].send(signal.SIGTERM)
        elif point.startswith("balance.") and 0 in self._living:
            self._living[0].send(signal.SIGTERM)  # the next one in the slot has something to take

    # --- the run ------------------------------------------------------------------------------

    async def carry_out(self) -> None:
        """Do it all, then let the workers finish and go."""
        self._put(f"weights:{self.plan.seed}".encode())
        if self.plan.failpoint == "version.offered":
            await self._make_known()
        keepers = [asyncio.create_task(self._keep(slot)) for slot in range(self.plan.workers)]
        try:
            events = await self._publish_through(self.plan.events)
            self.tally["published"] = events
            await self._become_idle()
        finally:
            await self._end(keepers)

    async def _publish_through(self, events: int) -> int:
        """Publish, and go on until everything has befallen them; returns how many events there are."""
        fates = (self._kill(), self._stop(), self._restart(), self._reload(), self._provoke())
        fate = asyncio.gather(*fates)
        await self._publish(0, events)
        for _ in range(ROUNDS_MAX):
            if fate.done() and not self._wanted():
                break
            if fate.done():
                fate = asyncio.gather(self._provoke())
            await self._publish(events, events + EVENTS_MORE)
            events += EVENTS_MORE
        await fate
        return events

    async def _make_known(self) -> None:
        """Have the first version of every handler offered by a worker that is not armed."""
        digest = hashlib.sha256(self._weights).hexdigest()
        midwife = await self._spawn("worker")
        await until(lambda: self._look.versions(digest) >= HANDLERS_WITH_MODEL, 5.0)
        await asyncio.sleep(0.05)  # the handler without a model comes between the two
        midwife.send(signal.SIGTERM)
        self._note_end(midwife, await midwife.ended)

    async def _become_idle(self) -> None:
        """Wait until all is finished; an operator settles what is active when the file says otherwise."""
        end = time.monotonic() + (IDLE_S_MAX_SABOTAGED if self._sabotage else IDLE_S_MAX)
        digest = hashlib.sha256(self._weights).hexdigest()
        while not await until(self._look.idle, 1.5):
            if time.monotonic() > end or len(self.troubles) > BROKEN_MAX:
                self.troubles.append(f"not idle in time: {self._look.state()}")
                for child in self._living.values():
                    child.send(signal.SIGUSR1)
                await asyncio.sleep(0.3)
                return
            known = self._look.versions(digest) >= HANDLERS_WITH_MODEL
            if known and self._look.active() != {digest}:
                await self._operate(digest)

    async def _end(self, keepers: list[asyncio.Task[None]]) -> None:
        self._over = True
        for child in list(self._living.values()):
            child.send(signal.SIGCONT)
            child.send(signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=10)
        for child in list(self._living.values()) if late else ():
            self.troubles.append("a worker did not end within 10 s of SIGTERM")
            child.send(signal.SIGUSR1)
            await asyncio.sleep(0.2)
            child.send(signal.SIGKILL)
        await asyncio.gather(*keepers)
        self._look.close()

    async def judged(self) -> dict[str, Any]:
        """Have the journal judged by a process of its own."""
        judge = str(Path(__file__).with_name("_judge.py"))
        arguments = (str(self.folder), str(self.plan.seed), str(self.tally["published"]))
        process = await asyncio.create_subprocess_exec(
            sys.executable, judge, *arguments, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await process.communicate()
        verdict: dict[str, Any] = json.loads(told) if process.returncode == 0 else {}
        if not verdict:
            self.troubles.append("the judge could not read the journal")
        twice = [line for line in self._accepted() if line.startswith("twice")]
        verdict["doubled"] = verdict.get("doubled", 0) + len(twice)
        verdict["torn"] = verdict.get("torn", 0) + self.tally.pop("torn", 0)
        return verdict
