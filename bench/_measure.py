"""What every benchmark shares: options, a folder on a real disk, rounds that take turns, one JSON object."""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headrace.journal.file import filesystem_of

ROOT = Path(__file__).resolve().parents[1]
#: A file there never meets a disk, so that a flush costs nothing.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs", "zram")


def options(about: str | None, **defaults: float | str) -> argparse.Namespace:
    """Return the options of a script: ``--json``, ``--folder``, and one for each default."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout, nothing else")
    parser.add_argument(
        "--folder", type=Path, help="for scratch files, on a real disk; default: TMPDIR, build/"
    )
    for name, value in defaults.items():
        parser.add_argument(f"--{name}", type=type(value), default=value, help=f"default: {value}")
    return parser.parse_args()


@contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    """Yield a new folder on a real disk, and remove it with all that is in it."""
    told = folder or (Path(os.environ["TMPDIR"]) if os.environ.get("TMPDIR") else None)
    place = told if told and (folder or not in_memory(told)) else ROOT / "build"
    place.mkdir(parents=True, exist_ok=True)
    if in_memory(place):
        print(
            f"{place} lies in memory, where a flush costs nothing: name a --folder on a disk", file=sys.stderr
        )
        raise SystemExit(2)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=place) as name:
        yield Path(name)


def in_memory(folder: Path) -> bool:
    """Return whether files of a folder lie in memory."""
    return filesystem_of(folder.resolve()).startswith(IN_MEMORY)


def calm_collector() -> None:
    """Set the garbage collector for a process that lives long; it holds for all sides alike."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


Side = Callable[[], Awaitable[float]]


async def in_turns(sides: Mapping[str, Side], rounds: int, *, quiet: bool = False) -> dict[str, list[float]]:
    """Run every side once a round and return their figures; the order is reversed in every other round.

    A machine that is busy for a while is so for all sides, and a ratio of one round survives it.
    """
    names = list(sides)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(rounds):
        for name in names if turn % 2 == 0 else reversed(names):
            found[name].append(await sides[name]())
        if not quiet:
            say(
                f"round {turn + 1} of {rounds}: "
                + ", ".join(f"{name} {found[name][-1]:,.4g}" for name in names)
            )
    return found


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios of each round."""
    return statistics.median(one / other for one, other in zip(above, below, strict=True))


def median(figures: Sequence[float]) -> float:
    """Return the median."""
    return statistics.median(figures)


def say(text: str) -> None:
    """Tell a person how far it is."""
    print(text, file=sys.stderr, flush=True)


def report(result: Mapping[str, object], targets: Mapping[str, str], *, as_json: bool) -> None:
    """Print the result: one JSON object, or a line for each figure with its target beside it."""
    rounded = {name: _short(value) for name, value in result.items()}
    if as_json:
        print(json.dumps(rounded))
        return
    for name, value in rounded.items():
        print(f"{name:28s} {value}" + (f"   (target {targets[name]})" if name in targets else ""))


def _short(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _short(one) for name, one in value.items()}
    # Four digits: more would claim a precision that no two runs share.
    return float(f"{value:.4g}") if isinstance(value, float) else value
