#!/usr/bin/env python3
"""Kills and resumes replays beside live load, while their version goes live; judges the journals.

Each run is one journal.  A history is handled under old weights.  Then it is replayed through new ones, by
one process or by two at once, killed at a failpoint and at random moments and begun again, while a publisher
and a live worker go on, dead letters are redriven, and the new weights are put in place for live work.  When
all has come to an end `_replay_judge.py` reads the file: each event once per version, live and replayed
together.

A kill counts as in flight when, by the journal, a replay has an event in hand, or was allotting history.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _campaign import carried_out, options_of
from _replay_judge import FAULTS
from _replay_run import Plan, Run, draw
from _spawner import Spawner

#: Runs at the same time: most of a run is waiting for leases to run out.
LANES = 4
#: Those that a replay does not pass.
ELSEWHERE = ("publish.", "version.")


def failpoints() -> tuple[str, ...]:
    """Return every failpoint that a replay passes; it does not follow here."""
    from headrace.ports import FAILPOINTS, REPLAY_FAILPOINTS

    own = [point for point in REPLAY_FAILPOINTS if point != "replay.extended"]
    return (*own, *(point for point in FAILPOINTS if not point.startswith(ELSEWHERE)))


class Campaign:
    """All runs, and what they came to."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self.points = tuple(options.only) if options.only else failpoints()
        self.sums: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.failed = 0

    async def run(self) -> None:
        """Carry out all runs, a few at a time."""
        spawner = await Spawner.start("_replay_worker")
        first = self._options.first
        numbers = iter(range(first, first + self._options.runs))
        try:
            await asyncio.gather(*(self._lane(spawner, numbers) for _ in range(self._options.lanes)))
        finally:
            await spawner.close()

    async def _lane(self, spawner: Spawner, numbers: Iterator[int]) -> None:
        for number in numbers:
            plan = draw(number, self._options.seed, self.points)
            folder = self._folder / f"run-{number:04}"
            folder.mkdir()
            run = Run(plan, spawner, folder, self._options.sabotage)
            began = time.monotonic()
            await run.carry_out()
            self._note(run, await run.judged(), time.monotonic() - began)

    def _note(self, run: Run, verdict: dict[str, Any], seconds: float) -> None:
        self.hits.update(run.hits)
        self.sums.update(run.tally)
        self.sums.update({name: count for name, count in verdict.items() if name != "notes"})
        found = {fault: verdict[fault] for fault in FAULTS if verdict.get(fault)}
        self.sums["runs"] += 1
        bad = bool(found or run.troubles)
        self.failed += bad
        if self._options.verbose or bad:
            self._tell(run.plan, seconds, found, [*run.troubles, *verdict.get("notes", [])[:8]])
        if not (bad or self._options.keep):
            shutil.rmtree(run.folder)

    def _tell(self, plan: Plan, seconds: float, found: dict[str, int], notes: list[str]) -> None:
        told = ", ".join(f"{count} {fault}" for fault, count in found.items()) or "sound"
        print(f"run {plan.number}: {told} ({seconds:.1f} s) {plan}", file=sys.stderr)
        for note in notes:
            print(f"  {note[:1_200]}", file=sys.stderr)

    def result(self, seconds: float) -> dict[str, Any]:
        """Return what is printed."""
        names = ("runs", "kills", "kills_in_flight", "live_kills", "upgraded_midway", "published", "replayed")
        return (
            {name: self.sums[name] for name in names}
            | {"failpoints": {point: self.hits[point] for point in self.points}}
            | {fault: self.sums[fault] for fault in FAULTS}
            | {"failed_runs": self.failed, "seed": self._options.seed, "seconds": round(seconds, 1)}
        )


def main() -> int:
    """Run the campaign; exit code 1 when a run was not sound."""
    options = options_of(__doc__, sys.argv[1:], lanes=LANES)

    def run(folder: Path) -> Campaign:
        campaign = Campaign(options, folder)
        asyncio.run(campaign.run())
        return campaign

    return carried_out(options, "replay-kill", "the journals", run)


if __name__ == "__main__":
    sys.exit(main())
