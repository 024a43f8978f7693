"""What campaigns of kills share: their options, the runs of those on files, and how a campaign ends."""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

from _spawner import Spawner


class Campaign(Protocol):
    """All runs, and what they came to."""

    #: Runs that were not sound.
    failed: int

    def result(self, seconds: float) -> dict[str, Any]:
        """Return what is printed."""
        ...


class Run(Protocol):
    """One run on a journal in a file."""

    plan: Any
    folder: Path
    hits: Counter[str]
    tally: Counter[str]
    troubles: list[str]

    async def carry_out(self) -> None:
        """Do all of it."""
        ...

    async def judged(self) -> dict[str, Any]:
        """Return what a process of its own says of the journal."""
        ...


class Kills:
    """All runs on journals in files, and what they came to."""

    #: The module of the processes, and what their judge counts as faults.
    module = "_worker"
    faults: tuple[str, ...] = ()

    def __init__(self, options: argparse.Namespace, folder: Path, points: tuple[str, ...]) -> None:
        self._options, self._folder = options, folder
        self.points = tuple(options.only) if options.only else points
        self.sums: Counter[str] = Counter()
        self.hits: Counter[str] = Counter()
        self.failed = 0

    def make(self, number: int, spawner: Spawner, folder: Path) -> Run:
        """Return a run by its number."""
        raise NotImplementedError

    async def run(self) -> None:
        """Carry out all runs, a few at a time."""
        spawner = await Spawner.start(self.module)
        first = self._options.first
        numbers = iter(range(first, first + self._options.runs))
        try:
            await asyncio.gather(*(self._lane(spawner, numbers) for _ in range(self._options.lanes)))
        finally:
            await spawner.close()

    async def _lane(self, spawner: Spawner, numbers: Iterator[int]) -> None:
        for number in numbers:
            folder = self._folder / f"run-{number:04}"
            folder.mkdir()
            run = self.make(number, spawner, folder)
            began = time.monotonic()
            await run.carry_out()
            self.note(run, await run.judged(), time.monotonic() - began)

    def note(self, run: Run, verdict: dict[str, Any], seconds: float) -> None:
        """Add up what a run came to; tell of one that was not sound."""
        self.hits.update(run.hits)
        self.sums.update(run.tally)
        self.sums.update({name: count for name, count in verdict.items() if name != "notes"})
        found = {fault: verdict[fault] for fault in self.faults if verdict.get(fault)}
        self.sums["runs"] += 1
        bad = bool(found or run.troubles)
        self.failed += bad
        if self._options.verbose or bad:
            told = ", ".join(f"{count} {fault}" for fault, count in found.items()) or "sound"
            print(f"run {run.plan.number}: {told} ({seconds:.1f} s) {run.plan}", file=sys.stderr)
            for note in [*run.troubles, *verdict.get("notes", [])[:8]]:
                print(f"  {note[:1_200]}", file=sys.stderr)
        if not (bad or self._options.keep):
            shutil.rmtree(run.folder)


def options_of(about: str | None, arguments: list[str], *, lanes: int) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(about or "").partition("\n")[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--first", type=int, default=0, help="number of the first run, to repeat one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--lanes", type=int, default=lanes, help="runs at the same time")
    parser.add_argument("--only", action="append", help="a failpoint; may be given more than once")
    parser.add_argument("--sabotage", default="", help="a rule to switch off, to see that it is noticed")
    parser.add_argument("--dir", type=Path, help="where the files of runs lie while they are in use")
    parser.add_argument("--keep", action="store_true", help="leave them; those of a faulty run always stay")
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")
    parser.add_argument("--verbose", action="store_true", help="tell of every run")
    return parser.parse_args(arguments)


def carried_out(options: argparse.Namespace, name: str, files: str, run: Callable[[Path], Campaign]) -> int:
    """Run a campaign in a folder of its own and print its result; exit code 1 when a run was not sound."""
    folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=options.dir))
    began = time.monotonic()
    campaign = run(folder)
    result = campaign.result(time.monotonic() - began)
    if options.json:
        print(json.dumps(result))
    else:
        for figure, value in result.items():
            print(f"{figure:>20}  {value}")
    if any(folder.glob("run-*")):
        print(f"{files} are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return 1 if campaign.failed else 0
