"""One run of `kafka_chaos.py`: workers, publishers, and all that can befall them, from one seed."""

from __future__ import annotations

import asyncio
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from _chaos_ground import SESSION_MS_BY_BROKER, Ground
from _chaos_judge import Seen, Verdict, judge, numbers
from _chaos_plan import Plan
from _chaos_worker import DOOMED_EVERY
from _spawner import UNLOADABLE, UNREACHABLE, Child, Spawner, last_words
from _spawner import until as until_soon
from _weights import plus

LEASE_MS = 2_000
#: Most looks read the diary.
until = partial(until_soon, every_s=0.01)
WORKERS = 2
#: There is work as long as something is still to come, and so many events at least.
EVENTS_MIN = 200
#: Without anything new for so long, what is not there is lost, or a worker hangs; sabotaged, it is expected.
IDLE_S_MAX, IDLE_S_MAX_SABOTAGED = 60.0, 10.0
#: A kill waits this long for somebody who has work in hand: longer than a broker is away.
BUSY_S_MAX = 20.0
#: Somebody who was missed for so long after its session has been replaced.
BEYOND_S = 1.5
STOP_S_MAX = 30.0
#: After so many processes that ended by themselves a run is given up.
BROKEN_MAX = 5


class Note(NamedTuple):
    """A line of the handlers' diary."""

    what: str
    step: str
    number: int
    process: int
    weights: float


class Run:
    """A plan being carried out."""

    def __init__(
        self, plan: Plan, spawner: Spawner, ground: Ground, folder: Path, sabotage: str = ""
    ) -> None:
        self.plan, self.folder, self._ground = plan, folder, ground
        self.name = f"chaos{plan.number}x{plan.seed % 1_000_000}"
        self._spawner, self._sabotage = spawner, sabotage
        self._chance = random.Random(plan.seed)
        self._living: dict[int, Child] = {}  # workers by slot
        self._armed: set[Child] = set()
        self._born: dict[Child, int] = {}  # after how many outages
        self._publisher: Child | None = None
        self._over = False
        self._file_is_broken = False
        self._unlucky: set[Child] = set()  # may have started with the file while it was broken
        #: That nothing came any more, in words; and whether that was the broker's doing.
        self._silence = ""
        self.hung = False
        self._amount = 1.0
        self._killed: list[int] = []
        self.hits: Counter[str] = Counter()
        self.tally: Counter[str] = Counter()
        #: What went wrong beside the four faults.
        self.troubles: list[str] = []
        self.seen = Seen()

    # --- processes ----------------------------------------------------------------------------

    async def _spawn(self, role: str, *, armed: bool = False, **more: Any) -> Child:
        plan, ground = self.plan, self._ground
        task = {
            "role": role, "folder": str(self.folder), "name": self.name, "index": ground.index,
            "journal": ground.journal(plan.protocol), "seed": plan.seed, "lease_ms": LEASE_MS,
            "partitions": plan.partitions, "unit": plan.unit, "pace_ms": plan.pace_ms,
            "sabotage": self._sabotage, **more,
        }  # fmt: skip
        if armed:
            task |= {"failpoint": plan.failpoint, "hit": plan.hit, "freezes": plan.freezes}
        born = ground.outages
        broken = self._file_is_broken  # it may read the file before this goes on, or only after it has ended
        child = await self._spawner.spawn(task, self.folder / "processes.log")
        self._born[child] = born
        if armed:
            self._armed.add(child)
        if broken or self._file_is_broken:
            self._unlucky.add(child)
        return child

    @property
    def point(self) -> str:
        """What this run's armed worker meets, as the counts name it."""
        return f"{self.plan.failpoint} (stops)" if self.plan.freezes else self.plan.failpoint

    def _wanted(self) -> bool:
        """Return whether the failpoint of this run is still to be met."""
        return not self.hits[self.point]

    async def _keep(self, slot: int) -> None:
        """Have a worker in this slot, again and again, until the end."""
        while not self._over and len(self.troubles) <= BROKEN_MAX:
            child = await self._spawn("worker", armed=slot == 0 and self._wanted())
            self._living[slot] = child
            status = await child.ended
            self._living.pop(slot, None)
            self._note_end(child, status)
            if not self._over:
                await asyncio.sleep(self._chance.uniform(0.0, 0.3))

    def _note_end(self, child: Child, status: int) -> None:
        """Tell a failpoint from a kill and from an end that nobody asked for."""
        if child in self._armed and status == -signal.SIGKILL and signal.SIGKILL not in child.asked:
            self.hits[self.point] += 1
            self._killed.append(child.pid)
        elif status == UNREACHABLE and (self._ground.fails or self._ground.outages > self._born[child]):
            self.tally["unreachable"] += 1
        elif status == UNLOADABLE and child in self._unlucky:
            self.tally["unloadable"] += 1
        elif status != 0 and -status not in child.asked:
            self.troubles.append(f"a process ended by itself with {status}: {last_words(self.folder)}")

    def _diary(self) -> list[Note]:
        path = self.folder / "calls.log"
        lines = path.read_text("ascii").splitlines() if path.exists() else []
        told = (line.split(" ") for line in lines)
        return [Note(what, step, int(n), int(pid), float(weights)) for what, step, n, pid, weights in told]

    # --- publishing ---------------------------------------------------------------------------

    def _accepted(self) -> set[int]:
        path = self.folder / "accepted.log"
        return {int(line) for line in path.read_text("ascii").splitlines()} if path.exists() else set()

    def _first_missing(self) -> int:
        accepted, first = self._accepted(), 0
        while first in accepted:
            first += 1
        return first

    async def _publish(self) -> None:
        """Publish until it is enough; the next publisher begins with what a dead one has not got accepted."""
        enough = self.folder / "enough"
        copier = await self._spawn("copier", unit=1)
        while not enough.exists() and len(self.troubles) <= BROKEN_MAX:
            self._publisher = await self._spawn("publisher", first=self._first_missing())
            self._note_end(self._publisher, await self._publisher.ended)
        self._publisher = None
        self._note_end(copier, await copier.ended)

    # --- what befalls them --------------------------------------------------------------------

    def _busy(self, waiting: bool = False) -> list[Child]:
        """Return the workers that, by their diary, have events in hand (and waiting ones), and may be hit."""
        last = {(note.process, note.step, note.number): note.what for note in self._diary()}
        busy = {process for (process, _, _), said in last.items() if said == "+"}
        if waiting:
            busy &= {process for (process, step, _), said in last.items() if (step, said) == ("weigh", "x")}
        return [one for one in self._living.values() if one.pid in busy and one not in self._armed]

    async def _victim(self, *, waiting: bool = False) -> tuple[Child | None, bool]:
        found: list[Child] = []
        await until(lambda: found.extend(self._busy(waiting)) or found, BUSY_S_MAX)
        victims = found or [one for one in self._living.values() if one not in self._armed]
        return (self._chance.choice(victims) if victims else None), bool(found)

    async def _kill(self) -> None:
        """SIGKILL with work in hand; the last time rather while an event waits for its retry."""
        for left in reversed(range(self.plan.kills)):
            await asyncio.sleep(self._chance.uniform(0.5, 2.0))
            victim, found = await self._victim(waiting=left == 0)
            if victim is not None and victim.send(signal.SIGKILL):
                self._killed.append(victim.pid)
                self.tally["kills_while_waiting"] += found and left == 0

    async def _kill_publisher(self) -> None:
        if self.plan.publisher_dies:
            await asyncio.sleep(self._chance.uniform(1.0, 4.0))
            publisher = self._publisher
            if publisher is not None and publisher.send(signal.SIGKILL):
                self.tally["publisher_kills"] += 1

    def _session_s(self) -> float:
        by_broker = self.plan.protocol == "consumer"
        return (SESSION_MS_BY_BROKER if by_broker else LEASE_MS) / 1_000

    async def _stop(self) -> None:
        """SIGSTOP past the session with work in hand; what it then says of what others have is refused."""
        for _ in range(self.plan.stops):
            await asyncio.sleep(self._chance.uniform(0.5, 2.5))
            victim, _ = await self._victim()
            if victim is not None and victim.send(signal.SIGSTOP):
                await self._go_on_later(victim)

    async def _go_on_later(self, stopped: Child) -> None:
        await asyncio.sleep(self._session_s() + self._chance.uniform(BEYOND_S, 2 * BEYOND_S))
        if stopped.send(signal.SIGCONT):
            self.tally["stops"] += 1

    async def _thaw(self) -> None:
        """An owner that stands still at its failpoint goes on when others have its partitions."""
        frozen = self.folder / "frozen"
        if not self.plan.freezes or not await until(frozen.exists, BUSY_S_MAX):
            return
        self.hits[self.point] += 1
        self.tally["stale_owners"] += 1
        for child in [one for one in self._living.values() if one in self._armed]:
            self._armed.discard(child)
            await self._go_on_later(child)

    async def _join(self) -> None:
        """A third worker comes while handlers run, and goes again."""
        await asyncio.sleep(self._chance.uniform(0.5, 3.0))
        await until(self._busy, BUSY_S_MAX)
        third = await self._spawn("worker")
        self._living[WORKERS] = third
        await asyncio.sleep(self._chance.uniform(1.5, 4.0))
        third.send(signal.SIGTERM)
        self._note_end(third, await third.ended)
        self._living.pop(WORKERS, None)

    async def _break(self) -> None:
        """A service dies and comes back; or the index is what it was a while ago."""
        ground, outage = self._ground, self.plan.outage
        await asyncio.sleep(self._chance.uniform(0.5, 3.0))
        if outage == "broker":
            await ground.kill_broker(self._chance.uniform(0.0, 1.0))
        elif outage == "index":
            await ground.kill_index(self._chance.uniform(0.0, 2.0))
        elif outage == "restore":
            await ground.keep_index(self.name)
            await asyncio.sleep(self._chance.uniform(1.0, 4.0))
            await ground.set_index_back(self.name)

    async def _provoke(self) -> None:
        """An orderly stop, for the failpoint that comes with it."""
        if self.plan.failpoint == "release.committed":
            await asyncio.sleep(self._chance.uniform(1.0, 3.0))
            if 0 in self._living:
                self._living[0].send(signal.SIGTERM)

    # --- models -------------------------------------------------------------------------------

    def _put(self, amount: float) -> None:
        plus(self.folder / "plus.onnx", amount)
        shutil.copyfile(self.folder / "plus.onnx", self.folder / f"plus-{amount}.onnx")
        self._amount = amount

    async def _reload(self) -> None:
        """New weights, broken ones, and the way back, while workers look at different moments."""
        kind = self.plan.reload
        await asyncio.sleep(self._chance.uniform(0.5, 3.0))
        if kind in ("broken", "both"):
            self._file_is_broken = True
            self._unlucky.update(self._living.values())
            (self.folder / "plus.new").write_bytes(b"no weights")
            (self.folder / "plus.new").replace(self.folder / "plus.onnx")
            await asyncio.sleep(self._chance.uniform(0.2, 0.8))
        self._put(2.0)
        self._file_is_broken = False
        self.tally["reloads"] += 1
        await asyncio.sleep(0.5)
        if kind not in ("back", "both"):
            return
        await until(lambda: any(note.weights == 2.0 for note in self._diary()), BUSY_S_MAX)
        await asyncio.sleep(self._chance.uniform(0.0, 1.0))
        steps: list[Callable[[], Awaitable[object]]] = [self._operate, self._put_back]
        self._chance.shuffle(steps)
        for step in steps:
            await step()
            await asyncio.sleep(self._chance.uniform(0.0, 0.5))
        self.tally["rollbacks"] += 1

    async def _put_back(self) -> None:
        self._put(1.0)

    async def _operate(self, amount: float = 1.0) -> None:
        """Make weights the active ones; through an outage if need be."""
        for _ in range(BROKEN_MAX):
            operator = await self._spawn("operator", weights=str(self.folder / f"plus-{amount}.onnx"))
            status = await operator.ended
            if status != UNREACHABLE or not self._ground.fails:
                self._note_end(operator, status)
                return
            await asyncio.sleep(1)

    # --- the run ------------------------------------------------------------------------------

    async def carry_out(self) -> None:
        """Do it all, then let the workers finish and go."""
        self._put(2.0)
        self._put(1.0)
        keepers = [asyncio.create_task(self._keep(0))]
        publishing = asyncio.create_task(self._publish())
        try:
            if self.plan.failpoint.startswith("version") and not self.plan.freezes:
                await until(lambda: not self._wanted(), BUSY_S_MAX)  # whoever is first offers
            keepers += [asyncio.create_task(self._keep(slot)) for slot in range(1, WORKERS)]
            await until(self._diary, STOP_S_MAX)
            await asyncio.gather(
                self._kill(), self._kill_publisher(), self._stop(), self._thaw(), self._join(),
                self._break(), self._reload(), self._provoke(),
            )  # fmt: skip
            await until(lambda: self._first_missing() >= EVENTS_MIN, STOP_S_MAX)
            (self.folder / "enough").touch()
            await publishing
            await self._become_idle()
        finally:
            await self._end(keepers)

    async def _become_idle(self) -> None:
        """Wait until all is finished; an operator settles what is active when the file says otherwise."""
        patience_s = IDLE_S_MAX_SABOTAGED if self._sabotage else IDLE_S_MAX
        came, settled, since = 0, False, time.monotonic()
        while not _finished(self._accepted(), seen := await self._ground.seen(self.name)):
            if sum(map(len, seen)) > came:
                came, settled, since = sum(map(len, seen)), False, time.monotonic()
            silent_s = time.monotonic() - since
            if len(self.troubles) > BROKEN_MAX:
                return
            if silent_s > patience_s:
                await self._give_up(seen)
                return
            if silent_s > patience_s / 4 and not settled:
                settled = True
                await self._operate(self._amount)
            await asyncio.sleep(0.5)

    async def _give_up(self, seen: Seen) -> None:
        """Tell what is missing, and have the workers tell what they wait for."""
        told = f"asked {len(set(numbers(seen.asked)))}, weighed {len(seen.weighed)}, filed {len(seen.filed)}"
        self._silence = f"nothing new, and not finished: {told}"
        for child in self._living.values():
            child.send(signal.SIGUSR1)
        await asyncio.sleep(0.5)
        await self._ground.testify(self.name, self.folder)

    async def _end(self, keepers: list[asyncio.Task[None]]) -> None:
        self._over = True
        (self.folder / "enough").touch()
        for child in list(self._living.values()):
            child.send(signal.SIGCONT)
            child.send(signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=STOP_S_MAX)
        for child in list(self._living.values()) if late else ():
            self.troubles.append(f"a worker did not end within {STOP_S_MAX} s of SIGTERM")
            child.send(signal.SIGUSR1)
            await asyncio.sleep(0.5)
            child.send(signal.SIGKILL)
        await asyncio.gather(*keepers)

    async def judged(self) -> Verdict:
        """Have what all have left judged, now that nobody can add to it.

        Where the broker hides what stands behind a transaction that it cannot end, nothing else is excused.
        """
        self.seen, ended = await self._ground.settled(self.name)
        self.hung = bool(self._silence or not ended) and await self._ground.hung(self.name)
        if not self.hung:
            self.troubles += [self._silence] if self._silence else []
            self.troubles += [] if ended else ["a transaction does not end"]
        diary, accepted = self._diary(), self._accepted()
        self.tally["kills"] = len(self._killed)
        self.tally["kills_in_flight"] = sum(_had_in_hand(pid, diary) for pid in self._killed)
        self.tally["rebalances"] = self._ground.rebalances(self.name)
        self.tally["published"] = len(accepted)
        self.tally["copies"] = len(self.seen.asked) - len(set(numbers(self.seen.asked)))
        self.tally["calls"] = sum(note.what == "+" for note in diary)
        verdict = judge(accepted, self.seen)
        return verdict.without("lost") if self.hung else verdict


def _finished(accepted: set[int], seen: Seen) -> bool:
    """Is there something of every step for every event?"""
    asked = set(numbers(seen.asked)) | accepted
    doomed = {number for number in asked if number % DOOMED_EVERY == 0}
    weighed, filed, refused = map(set, map(numbers, (seen.weighed, seen.filed, seen.refused)))
    return asked <= weighed and asked - doomed <= filed and doomed <= refused


def _had_in_hand(process: int, diary: list[Note]) -> bool:
    """Tell whether a dead process had events in hand: begun and not ended, or ended and done again."""
    last: dict[tuple[str, int], str] = {}
    again: set[tuple[str, int]] = set()
    for note in diary:
        event = note.step, note.number
        if note.process == process:
            last[event] = note.what
        elif last.get(event) == "-":
            again.add(event)
    return bool(again) or "+" in last.values()
