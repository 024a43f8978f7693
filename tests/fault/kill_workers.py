#!/usr/bin/env python3
"""Kills, stops and reloads workers and publishers at every failpoint and in between; judges the journals.

Each run is one journal with two or three worker processes and a publisher that publishes every fifth event
twice.  A run kills one of them at one failpoint, kills others from outside, stops one past its lease, puts
new weights in place and rolls back.  When all is idle and every process has gone, `_judge.py` reads the file.

A kill counts as in flight when, by the journal, somebody has an event in hand: asked just before a signal
from outside, and right after a death at a failpoint, before anybody can have taken over.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from _campaign import Kills, carried_out, options_of
from _judge import FAULTS
from _plan import draw
from _scenario import Run
from _spawner import Spawner

#: Runs at the same time: most of a run is waiting for leases to run out.
LANES = 4


def failpoints() -> tuple[str, ...]:
    """Return every failpoint of the product."""
    from headrace.ports import FAILPOINTS

    return FAILPOINTS


class Campaign(Kills):
    """All runs, and what they came to."""

    faults = tuple(FAULTS)

    def __init__(self, options: argparse.Namespace, folder: Path, points: tuple[str, ...]) -> None:
        super().__init__(options, folder, points)
        self.idle_kills: Counter[str] = Counter()

    def make(self, number: int, spawner: Spawner, folder: Path) -> Run:
        """Draw a plan."""
        plan = draw(number, self._options.seed, self.points)
        return Run(plan, spawner, folder, self._options.sabotage)

    def note(self, run: Any, verdict: dict[str, Any], seconds: float) -> None:
        """Add up what made kills that hit nobody, too."""
        self.idle_kills.update(run.idle_kills)
        super().note(run, verdict, seconds)

    def result(self, seconds: float) -> dict[str, Any]:
        """Return what is printed."""
        names = ("runs", "kills", "kills_in_flight")
        more = ("stops", "stops_taken_over", "published", "events", "calls", "reruns")
        return (
            {name: self.sums[name] for name in names}
            | {"failpoints": {point: self.hits[point] for point in self.points}}
            | {"idle_kills": dict(self.idle_kills)}
            | {fault: self.sums[fault] for fault in FAULTS}
            | {name: self.sums[name] for name in more}
            | {"failed_runs": self.failed, "seed": self._options.seed, "seconds": round(seconds, 1)}
        )


def main() -> int:
    """Run the campaign; exit code 1 when a run was not sound."""
    options = options_of(__doc__, sys.argv[1:], lanes=LANES)

    def run(folder: Path) -> Campaign:
        campaign = Campaign(options, folder, failpoints())
        asyncio.run(campaign.run())
        return campaign

    return carried_out(options, "kill-workers", "the journals", run)


if __name__ == "__main__":
    sys.exit(main())
