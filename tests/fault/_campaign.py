"""What both campaigns of kills share: their options, and how a campaign ends."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Campaign(Protocol):
    """All runs, and what they came to."""

    #: Runs that were not sound.
    failed: int

    def result(self, seconds: float) -> dict[str, Any]:
        """Return what is printed."""
        ...


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
    if campaign.failed or options.keep:
        print(f"{files} are in {folder}", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return 1 if campaign.failed else 0
