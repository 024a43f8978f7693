#!/usr/bin/env python3
"""Looks after journals under load, and kills whoever does: backups, compaction, retention, erasure.

A run is one journal with two workers, a publisher that publishes some events again, and a reader that holds
a snapshot for seconds.  Beside them backups are made, the file is compacted and persons are erased; commands
are killed at their failpoints now and then and given again, workers die too.  When all is idle,
`_care_judge.py` reads the file, and some of the backups, which are restored and worked on first.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from _campaign import carried_out, options_of
from _care_judge import Found, traces, verified
from _care_roles import PERSON_EVENTS, TOPIC_BYTES_MAX, UNFINISHED_MAX, Role, person_of, token_of

LANES = 2
#: Events of a run, and how long it may take: one that hangs is a fault.
EVENTS, PATIENCE_S = 1_600, 120
#: What the file may hold: three topics and half of it on top; what is unfinished; what stands in letters
#: that nobody decides on, one in eight of the last topic; what is left of each event; and pages in between.
EVENT_BYTES, LETTER_BYTES, SKELETON_BYTES, PAGES_PER_BYTE = 3_100, 5_000, 400, 1.3
BOUND_BYTES = int(
    PAGES_PER_BYTE
    * (
        3 * (TOPIC_BYTES_MAX + (TOPIC_BYTES_MAX >> 1))
        + UNFINISHED_MAX * EVENT_BYTES
        + EVENTS // 8 * LETTER_BYTES
        + 3 * EVENTS * SKELETON_BYTES
    )
)
POINTS = {
    "backup": ("backup.copied", "backup.checked", "backup.named"),
    "compact": ("compact.step", "wal.emptied"),
    "rewrite": ("compact.rewritten",),
    "erase": ("remove.skeleton", "remove.events", "erase.step", "erase.told", "compact.rewritten"),
    "worker": ("remove.skeleton", "remove.events", "remove.committed", "settle.dead", "claim.committed"),
}
FAULTS = ("backup_faults", "compact_faults", "retention_faults", "erase_bytes_left", "troubles")
HERE = Path(__file__).parent


class Run:
    """One journal, from its first event to the verdict."""

    def __init__(self, number: int, seed: int, folder: Path, sabotage: str) -> None:
        self.number, self.folder, self.sabotage = number, folder, sabotage
        self.seed = seed * 1_000 + number
        self.chance = random.Random(self.seed)
        self.tally: Counter[str] = Counter()
        self.notes: list[str] = []
        self.journal = folder / "journal.db"
        self.erased: set[str] = set()
        #: When backups were made, and tokens erased.
        self.times: dict[str, float] = {}
        self.file_bytes_max = self.wal_bytes_max = 0

    # --- processes ----------------------------------------------------------------------------

    async def start(self, name: str, **told: Any) -> asyncio.subprocess.Process:
        """Start a process."""
        role = Role(name, str(self.folder), self.seed, sabotage=self.sabotage, **told)
        command = (sys.executable, str(HERE / "_care_roles.py"), json.dumps(role._asdict()))
        with (self.folder / "processes.log").open("ab") as log:
            return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE, stderr=log)

    async def command(self, name: str, *, killed: bool, **told: Any) -> dict[str, Any] | None:
        """Give a command; ``None`` when it died of its failpoint."""
        if killed:
            told |= {"failpoint": self.chance.choice(POINTS[name]), "hit": self.chance.choice((1, 1, 2))}
        process = await self.start(name, **told)
        out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
        if process.returncode == -signal.SIGKILL:
            self.tally[f"{name}_kills"] += 1
            return None
        if process.returncode != 0:
            self.trouble(f"{name} ended with {process.returncode}: {out.decode()}")
            return {}
        found: dict[str, Any] = json.loads(out)
        return found

    def trouble(self, told: str) -> None:
        """Note what should not have happened to the campaign itself."""
        self.tally["troubles"] += 1
        self.notes.append(told)

    # --- the run ------------------------------------------------------------------------------

    async def carry_out(self) -> None:
        """Do everything, then judge."""
        workers = [await self.start("worker") for _ in range(2)]
        publisher = await self.start("publisher", last=EVENTS)
        watch = asyncio.create_task(self.watch())
        try:
            await self.until(lambda: len(self.accepted()) > PERSON_EVENTS, "the first events")
            reader = await self.start("reader", hold_s=4.0)
            ended = asyncio.create_task(publisher.wait())
            await asyncio.gather(*(self.somethings(workers, at, ended) for at in range(len(workers))))
            if ended.result():
                self.trouble(f"the publisher ended with {ended.result()}")
            await asyncio.wait_for(reader.wait(), PATIENCE_S)
            await self.finish(workers)
        finally:
            watch.cancel()
            for one in [*workers, publisher]:
                if one.returncode is None:
                    one.kill()
                    await one.wait()
        await self.judge()

    async def somethings(
        self, workers: list[asyncio.subprocess.Process], at: int, ended: asyncio.Task[int]
    ) -> None:
        """Do one thing after the other until all is published; two do so side by side."""
        while not ended.done():
            await self.something(workers, at)

    async def something(self, workers: list[asyncio.subprocess.Process], at: int) -> None:
        """Give one command, or kill a worker and start another."""
        killed = self.chance.random() < 0.4
        match self.chance.choice(("backup", "compact", "erase", "erase", "worker")):
            case "backup":
                await self.backup(killed=killed)
            case "compact":
                await self.command(self.chance.choice(("compact", "rewrite")), killed=killed)
                self.tally["compacts"] += 1
            case "erase":
                await self.erase(killed=killed)
            case _:
                if workers[at].returncode is None:
                    workers[at].kill()
                await workers[at].wait()
                self.tally["worker_kills"] += 1
                point = self.chance.choice(("", *POINTS["worker"]))
                workers[at] = await self.start("worker", failpoint=point, hit=self.chance.randint(1, 30))
        await asyncio.sleep(self.chance.random() / 5)

    async def backup(self, *, killed: bool) -> None:
        """Make a backup; of one that was killed nothing stands under its name."""
        self.tally["backups_begun"] += 1
        name = f"backup-{self.tally['backups_begun']}.db"
        began = time.monotonic()
        found = await self.command("backup", killed=killed, target=name)
        there = (self.folder / name).exists()
        if found is not None:
            self.tally["backups"] += 1
        if there:
            self.times[name] = began
            if wrong := await asyncio.to_thread(verified, self.folder / name):
                self.fault("backup_faults", *(f"{name}: {one}" for one in wrong))
        elif found is not None:
            self.fault("backup_faults", f"{name} is not there")

    async def erase(self, *, killed: bool) -> None:
        """Erase a person whose last event was published; a killed command is given again."""
        persons = {person_of(n) for n in range(max(self.accepted(), default=0) - PERSON_EVENTS)} - self.erased
        if not persons:
            return
        person = self.chance.choice(sorted(persons))
        self.erased.add(person)
        if await self.command("erase", killed=killed, key=person) is None:
            await self.command("erase", killed=False, key=person)
        self.times[token_of(self.seed, person)] = time.monotonic()
        self.tally["erasures"] += 1

    async def finish(self, workers: list[asyncio.subprocess.Process]) -> None:
        """Let healthy workers end all there is, and stop them in order."""
        for one in workers:
            if one.returncode is None:
                one.kill()
            await one.wait()
        healers = [await self.start("worker") for _ in range(2)]
        await self.until_idle(self.journal, *healers)
        for one in healers:
            await self.stop(one, "retention_faults")
        found = await self.command("compact", killed=False)
        if found and found["holder"]:
            self.fault("compact_faults", f"nobody reads, but {found['holder']}")

    async def stop(self, worker: asyncio.subprocess.Process, kind: str) -> None:
        """Stop a worker in order; one that has ended by itself has met what must not be."""
        if worker.returncode is not None:
            self.fault(kind, f"a worker has ended by itself, with {worker.returncode}")
            return
        worker.send_signal(signal.SIGTERM)
        await asyncio.wait_for(worker.wait(), PATIENCE_S)

    async def until_idle(self, path: Path, *workers: asyncio.subprocess.Process) -> None:
        """Return once nothing is left to do in a journal, or nobody is left to do it."""

        def idle() -> bool:
            if all(one.returncode is not None for one in workers):
                return True  # `stop` tells of it
            found = Found(path)
            try:
                return found.idle()
            finally:
                found.close()

        await self.until(idle, f"{path.name} is idle")

    async def until(self, holds: Any, what: str) -> None:
        """Return once something holds."""
        end = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > end:
                self.trouble(f"never came about: {what}")
                return
            await asyncio.sleep(0.1)

    async def watch(self) -> None:
        """Note how large the file gets; looked at, never opened."""
        while True:
            for name, path in (
                ("file_bytes_max", self.journal),
                ("wal_bytes_max", Path(f"{self.journal}-wal")),
            ):
                size = path.stat().st_size if path.exists() else 0
                setattr(self, name, max(getattr(self, name), size))
            await asyncio.sleep(0.05)

    def accepted(self) -> set[int]:
        """Return the numbers of the events that a publisher was told of."""
        log = self.folder / "accepted.log"
        lines = log.read_text("ascii").splitlines() if log.exists() else []
        return {int(line) for line in lines if line.isdecimal()}

    def fault(self, kind: str, *notes: str) -> None:
        """Note faults."""
        self.tally[kind] += len(notes)
        self.notes += [f"{kind}: {one}" for one in notes]

    # --- the verdict --------------------------------------------------------------------------

    async def judge(self) -> None:
        """Read the journal and every backup that was restored."""
        if " twice" in (self.folder / "accepted.log").read_text("ascii"):
            self.fault("retention_faults", "an event was taken twice")
        found = Found(self.journal)
        self.fault("retention_faults", *found.judge(self.seed, self.accepted()), *verified(self.journal))
        found.close()
        tokens = {token_of(self.seed, one) for one in self.erased}
        self.fault("erase_bytes_left", *traces(self.folder, tokens, self.times))
        if self.file_bytes_max > BOUND_BYTES:
            self.fault("compact_faults", f"the file had {self.file_bytes_max:,} bytes, not {BOUND_BYTES:,}")
        backups = sorted(self.folder.glob("backup-*.db"))
        for one in self.chance.sample(backups, min(2, len(backups))):
            await self.restore(one)

    async def restore(self, path: Path) -> None:
        """Work on a backup until it is idle: each of its events is finished once."""
        worker = await self.start("worker", journal=path.name)
        await self.until_idle(path, worker)
        await self.stop(worker, "backup_faults")
        self.tally["restores"] += 1
        found = Found(path)
        wrong = [*found.judge(self.seed, set()), *verified(path)]
        found.close()
        self.fault("backup_faults", *(f"{path.name}: {one}" for one in wrong))


class Campaign:
    """All runs, and what they came to."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self.sums: Counter[str] = Counter()
        self.sizes: dict[str, int] = {"file_bytes_max": 0, "wal_bytes_max": 0}
        self.failed = 0

    async def run(self) -> None:
        """Carry out all runs, a few at a time."""
        numbers = iter(range(self._options.first, self._options.first + self._options.runs))
        await asyncio.gather(*(self._lane(numbers) for _ in range(self._options.lanes)))

    async def _lane(self, numbers: Any) -> None:
        for number in numbers:
            folder = self._folder / f"run-{number:04}"
            folder.mkdir()
            run = Run(number, self._options.seed, folder, self._options.sabotage)
            await run.carry_out()
            self.sums.update(run.tally)
            self.sums["runs"] += 1
            for name, size in self.sizes.items():
                self.sizes[name] = max(size, getattr(run, name))
            bad = any(run.tally[fault] for fault in FAULTS)
            self.failed += bad
            if bad or self._options.verbose:
                print(f"run {number}: {dict(run.tally)}, {run.file_bytes_max:,} bytes", file=sys.stderr)
                for note in run.notes[:20]:
                    print(f"  {note[:600]}", file=sys.stderr)
            if not (bad or self._options.keep):
                shutil.rmtree(folder)

    def result(self, seconds: float) -> dict[str, Any]:
        """Return what is printed."""
        counted = ("runs", "backups", "restores", "compacts", "erasures")
        kills = ("backup_kills", "compact_kills", "rewrite_kills", "erase_kills", "worker_kills")
        return (
            {name: self.sums[name] for name in (*counted, *kills, *FAULTS)}
            | {"bytes_bound_held": self.sizes["file_bytes_max"] <= BOUND_BYTES, "bound_bytes": BOUND_BYTES}
            | self.sizes
            | {"failed_runs": self.failed, "seed": self._options.seed, "seconds": round(seconds, 1)}
        )


def main() -> int:
    """Run the campaign; exit code 1 when a run was not sound."""
    options = options_of(__doc__, sys.argv[1:], lanes=LANES)
    os.environ.setdefault("PYTHONPATH", os.pathsep.join(sys.path))

    def run(folder: Path) -> Campaign:
        campaign = Campaign(options, folder)
        asyncio.run(campaign.run())
        return campaign

    return carried_out(options, "care", "the journals", run)


if __name__ == "__main__":
    sys.exit(main())
