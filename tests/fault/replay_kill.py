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

import asyncio
import sys
from pathlib import Path
from typing import Any

from _campaign import Kills, carried_out, options_of
from _replay_judge import FAULTS
from _replay_run import Run, draw
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


class Campaign(Kills):
    """All runs, and what they came to."""

    module = "_replay_worker"
    faults = tuple(FAULTS)

    def make(self, number: int, spawner: Spawner, folder: Path) -> Run:
        """Draw a plan."""
        plan = draw(number, self._options.seed, self.points)
        return Run(plan, spawner, folder, self._options.sabotage)

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
        campaign = Campaign(options, folder, failpoints())
        asyncio.run(campaign.run())
        return campaign

    return carried_out(options, "replay-kill", "the journals", run)


if __name__ == "__main__":
    sys.exit(main())
