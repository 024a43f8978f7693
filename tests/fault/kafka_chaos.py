#!/usr/bin/env python3
"""Kills, stops and reloads workers of an app on a real Kafka and PostgreSQL, and these; judges the topics.

Each run is an app with topics of its own, two workers, a third that comes and goes, a publisher, and one that
publishes every fifth event again.  A worker dies, or stops past its session, at one failpoint; others are
killed and stopped from outside; new weights are put in place and rolled back; the broker or the database is
killed, or the database restored from a backup.  Runs share broker and database, so what befalls one of these
befalls the other runs under way as well.  When all is finished and every process has gone, plain committed
readers say what there is, and `_chaos_judge.py` what is wrong with it.

A kill counts as in flight when, by what the handlers themselves have written down, the process had an event
in hand: begun and not ended, or ended and begun once more by another.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import time
from collections import Counter
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from _campaign import carried_out, options_of
from _chaos_ground import Ground, ground
from _chaos_judge import FAULTS
from _chaos_plan import draw
from _chaos_run import Run
from _spawner import Spawner

#: Runs at the same time: most of a run is waiting for sessions to run out.
LANES = 2
#: One in so many runs a lone broker may leave with a transaction that never ends (`_chaos_ground.DROPPED`):
#: another takes its place, and what is hidden there is not lost; beyond it such a run is a fault.
HUNG_IN = 12
#: A decision about a dead letter is no part of these runs.
LEFT_OUT = ("decide.noted",)


def failpoints() -> tuple[str, ...]:
    """Return the failpoints of the product at which workers die or stop."""
    from headrace.ports import KAFKA_FAILPOINTS

    return tuple(point for point in KAFKA_FAILPOINTS if point not in LEFT_OUT)


class Campaign:
    """All runs, and what they came to."""

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self._options, self._folder = options, folder
        self.points = tuple(options.only) if options.only else failpoints()
        self.sums: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.failed = 0
        self._left: int = options.runs

    async def run(self, services: Ground) -> None:
        """Carry out all runs, two at a time."""
        spawner = await Spawner.start("_chaos_worker")
        numbers = count(self._options.first)
        try:
            await asyncio.gather(
                *(self._lane(spawner, services, numbers) for _ in range(self._options.lanes))
            )
        finally:
            await spawner.close()
        self.sums.update(services.tally)

    async def _lane(self, spawner: Spawner, services: Ground, numbers: Iterator[int]) -> None:
        while self._left:
            self._left -= 1
            number = next(numbers)
            plan = draw(number, self._options.seed, self.points)
            folder = self._folder / f"run-{number:04}"
            folder.mkdir()
            run = Run(plan, spawner, services, folder, self._options.sabotage)
            began = time.monotonic()
            await run.carry_out()
            verdict = await run.judged()
            if run.hung:
                self.sums["hung_by_broker"] += 1
                if self.sums["hung_by_broker"] > max(1, self._options.runs // HUNG_IN):
                    run.troubles.append("too many runs that the broker has hung")
                else:
                    self._left += 1  # another in its place
            self._note(run, dict(verdict.counts), verdict.notes, time.monotonic() - began)
            await services.clear(run.name)

    def _note(self, run: Run, found: dict[str, int], notes: list[str], seconds: float) -> None:
        self.hits.update(run.hits)
        self.sums.update(run.tally)
        self.sums.update(found)
        bad = bool(found or run.troubles)
        self.sums["runs"] += bad or not run.hung
        self.failed += bad
        if self._options.verbose or bad or run.hung:
            told = ", ".join(f"{count} {fault}" for fault, count in found.items()) or "sound"
            told += ", hung by the broker" if run.hung else ""
            print(
                f"run {run.plan.number}: {told} ({seconds:.1f} s) {dict(run.tally)} {run.plan}",
                file=sys.stderr,
            )
            for note in [*run.troubles, *notes[:12]]:
                print(f"  {note[:1_600]}", file=sys.stderr, flush=True)
        if not (bad or run.hung or self._options.keep):
            shutil.rmtree(run.folder)

    def result(self, seconds: float) -> dict[str, Any]:
        """Return what is printed."""
        names = ("runs", "kills", "kills_in_flight", "stops", "broker_kills", "rebalances", "rollbacks")
        more = (
            "stale_owners", "kills_while_waiting", "publisher_kills", "index_kills", "index_restores",
            "reloads", "unreachable", "hung_by_broker", "published", "copies", "calls",
        )  # fmt: skip
        return (
            {name: self.sums[name] for name in (*names, *FAULTS)}
            | {"seconds": round(seconds, 1)}
            | {name: self.sums[name] for name in more}
            | {"failpoints": dict(sorted(self.hits.items()))}
            | {"failed_runs": self.failed, "seed": self._options.seed}
        )


def main() -> int:
    """Run the campaign; exit code 1 when a run was not sound."""
    options = options_of(__doc__, sys.argv[1:], lanes=LANES)

    def run(folder: Path) -> Campaign:
        campaign = Campaign(options, folder)
        with ground(folder) as services:
            asyncio.run(campaign.run(services))
        return campaign

    return carried_out(options, "kafka-chaos", "diaries and logs", run)


if __name__ == "__main__":
    sys.exit(main())
