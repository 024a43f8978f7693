#!/usr/bin/env python3
"""Hands over from one version of a model to the next in the middle of load, kills a worker, and rolls back.

Two workers on a real Kafka, their index in PostgreSQL.  A third of the events is handled by the first
version; then new weights are put in place, and who has answered with them first is killed, with work in hand;
after two thirds the old weights come back, and `headrace model activate` makes them the active ones.  A plain
committed reader counts the results of each version, and `headrace model history` says its own counts.
"""

# ruff: noqa: ASYNC110 - what is waited for is in other processes

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from _chaos_ground import Ground, ground
from _chaos_judge import FAULTS, Seen, judge, numbers, version_of
from _spawner import Child, Spawner
from _weights import plus

NAME = "handover"
HANDLER = f"{NAME}.weigh"
WORKERS = 2
LEASE_MS = 2_000
#: Events of one transaction of the publisher, and the mean wait between two: a load, and no flood.
UNIT, PACE_MS = 50, 40.0
PATIENCE_S = 300.0
LOOK_S = 0.05


class Handover:
    """The one run."""

    def __init__(self, services: Ground, spawner: Spawner, folder: Path, events: int) -> None:
        self._services, self._spawner, self._folder, self._events = services, spawner, folder, events
        self._journal = services.journal("classic")
        self._workers: list[Child] = []
        self.kills = 0
        self.seen = Seen()

    async def _spawn(self, role: str) -> Child:
        task = {
            "role": role, "folder": str(self._folder), "name": NAME, "journal": self._journal,
            "index": self._services.index, "seed": 1, "lease_ms": LEASE_MS, "partitions": 16,
            "troubled": False, "last": self._events, "unit": UNIT, "pace_ms": PACE_MS,
        }  # fmt: skip
        return await self._spawner.spawn(task, self._folder / "processes.log")

    async def _until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while not holds():
                await asyncio.sleep(LOOK_S)

    def _diary(self) -> list[list[str]]:
        path = self._folder / "calls.log"
        return [line.split(" ") for line in path.read_text("ascii").splitlines()] if path.exists() else []

    def _weighed(self) -> int:
        """Return how many results the first step has had, by the handlers' diary."""
        return sum(line[:2] == ["-", "weigh"] for line in self._diary())

    async def _headrace(self, *words: str) -> Any:
        """Run a command of the tool; return what it prints."""
        where = ("--journal", self._journal, "--index", self._services.index, "--json")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "headrace", *words, *where, stdout=asyncio.subprocess.PIPE
        )
        told, _ = await process.communicate()
        return json.loads(told)

    async def carry_out(self) -> None:
        """Publish, hand over, kill, roll back, and wait for the end."""
        plus(self._folder / "plus.onnx", 1.0)
        self._workers = [await self._spawn("worker") for _ in range(WORKERS)]
        try:
            publisher = await self._spawn("publisher")
            await self._until(lambda: self._weighed() > self._events / 3)
            await self._hand_over()
            await self._until(lambda: self._weighed() > self._events * 2 / 3)
            await self._roll_back()
            assert await publisher.ended == 0, "the publisher has failed"
            async with asyncio.timeout(PATIENCE_S):
                while not self._finished(await self._services.seen(NAME)):
                    await asyncio.sleep(1)
        finally:
            await self._end()
        self.seen, ended = await self._services.settled(NAME)
        if not ended:
            raise TimeoutError("a transaction does not end")

    async def _hand_over(self) -> None:
        """Put new weights in place, and kill who has answered with them first."""
        plus(self._folder / "plus.onnx", 2.0)
        new: list[int] = []
        await self._until(
            lambda: new.extend(int(line[3]) for line in self._diary() if line[4] == "2.0") or new
        )
        (victim,) = [one for one in self._workers if one.pid == new[0]]
        self.kills += victim.send(signal.SIGKILL)
        await victim.ended
        self._workers[self._workers.index(victim)] = await self._spawn("worker")

    async def _roll_back(self) -> None:
        """Bring the old weights back, and make theirs the active version."""
        plus(self._folder / "plus.onnx", 1.0)
        await self._headrace("model", "activate", HANDLER, "@1")

    def _finished(self, seen: Seen) -> bool:
        return len(set(numbers(seen.filed))) == self._events

    async def _end(self) -> None:
        for worker in self._workers:
            worker.send(signal.SIGTERM)
        await asyncio.wait([worker.ended for worker in self._workers], timeout=30)
        for worker in self._workers:
            worker.send(signal.SIGKILL)

    async def result(self) -> dict[str, Any]:
        """Return what came of it, by a plain reader and by the tool."""
        verdict = judge(range(self._events), self.seen, troubled=False)
        (history,) = await self._headrace("model", "history", HANDLER)
        told = {one["version"]: one["handled"] for one in history["versions"]}
        return {
            "events": self._events,
            "versions": dict(sorted(Counter(map(version_of, self.seen.weighed)).items())),
            "history": dict(sorted(told.items())),
            **{fault: verdict.counts[fault] for fault in FAULTS},
            "neither": history["neither"],
            "both": history["both"],
            "kills": self.kills,
        }


def is_sound(result: dict[str, Any]) -> bool:
    """Is each event in exactly one version's results, of both versions some, and does the history say so?"""
    faults = any(result[name] for name in (*FAULTS, "neither", "both"))
    both_have_some = len(result["versions"]) == 2
    return not faults and both_have_some and result["versions"] == result["history"]


async def hand_over(services: Ground, folder: Path, events: int) -> dict[str, Any]:
    """Do it all; return what came of it."""
    spawner = await Spawner.start("_chaos_worker")
    try:
        run = Handover(services, spawner, folder, events)
        await run.carry_out()
        return await run.result()
    finally:
        await spawner.close()


def main() -> int:
    """Run; exit code 1 when it was not sound."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
    options = parser.parse_args()
    folder, began = Path(tempfile.mkdtemp(prefix="kafka-handover-")), time.monotonic()
    with ground(folder) as services:
        result = asyncio.run(hand_over(services, folder, options.events))
    result["seconds"] = round(time.monotonic() - began, 1)
    if options.json:
        print(json.dumps(result))
    else:
        for name, value in result.items():
            print(f"{name:>14}  {value}")
    if is_sound(result):
        shutil.rmtree(folder)
        return 0
    print(f"diaries and logs are in {folder}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
