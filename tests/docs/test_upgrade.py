"""The page on upgrading a model is followed line by line: what it says is what happens."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headrace.errors import catalogue

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "upgrade-a-model.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_S = 60.0


class Reader:
    """Somebody who types what the page says, in one folder; jobs in the background have numbers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        bin_ = str(Path(sys.executable).parent)
        self._environment = own | {"PATH": f"{bin_}{os.pathsep}{own.get('PATH', '')}", "NO_COLOR": "1"}
        self._jobs: dict[int, subprocess.Popen[bytes]] = {}
        self.printed = ""

    def type(self, line: str) -> None:
        """Do what a line says."""
        if line.endswith(" &"):
            number = next(n for n in range(1, 9) if n not in self._jobs)
            words = line.removesuffix(" &").split()
            self._jobs[number] = subprocess.Popen(
                words, cwd=self._folder, env=self._environment, stderr=subprocess.DEVNULL
            )
        elif line.startswith("kill %"):
            job = self._jobs.pop(int(line.removeprefix("kill %")))
            job.send_signal(signal.SIGTERM)
            assert job.wait(PATIENCE_S) in (0, 130)
        else:
            ran = subprocess.run(
                ["bash", "-c", line], cwd=self._folder, env=self._environment, capture_output=True,
                check=False, timeout=PATIENCE_S,
            )  # fmt: skip
            assert ran.returncode == 0, f"{line}\n{ran.stderr.decode()}"
            self.printed = ran.stdout.decode()

    def until(self, line: str, fits: Callable[[str], bool]) -> None:
        """Type a line again and again, until it prints what it should."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.type(line)
            if fits(self.printed):
                return
            assert time.monotonic() < deadline, self.printed

    def leave(self) -> None:
        """End what still runs."""
        for job in self._jobs.values():
            job.kill()
            job.wait()


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    """A reader with the files of the page."""
    for kind, name, text in BLOCK.findall(PAGE):
        if kind == "python" and name:
            (tmp_path / name).write_text(text, "utf-8")
    found = Reader(tmp_path)
    yield found
    found.leave()


def done(count: int) -> Callable[[str], bool]:
    """Return whether the live handler has finished so many events, by ``status --json``."""
    return lambda text: f'"done": {count}, "dead": 0, "expired"' in text


@pytest.mark.timeout(180)
def test_a_model_is_upgraded_as_the_page_says(reader: Reader) -> None:
    """Tried on a side, compared, shadowed, live, and back: each event once per version."""
    history, plan, run, compare, shadow, live, back, again = [
        text.splitlines() for kind, _, text in BLOCK.findall(PAGE) if kind == "sh"
    ]
    for line in history:
        reader.type(line)
    reader.until("headrace status --json", done(2))
    reader.type(*plan)
    assert reader.printed.startswith("2 events would be replayed, on side trial")
    reader.type(*run)
    assert reader.printed.startswith("2 of 2 events handled, 2 emitted, 0 dead, 0 left, on side trial")
    for line, wanted in zip(compare, ('"team":"billing"', "complete", "and 2 in replays"), strict=True):
        reader.type(line)
        assert wanted in reader.printed
    for line in shadow[:2]:
        reader.type(line)
    reader.until(shadow[2], lambda text: len(text.splitlines()) == 3)
    reader.type(shadow[3])
    for line in live[:-1]:
        reader.type(line)
    reader.until(live[-1], lambda text: "2 has handled 1, and 3 in replays" in text)
    for line in back:
        reader.type(line)
    assert "support.route" in reader.printed
    reader.type(*again)
    assert '"allotted": 4' in reader.printed
    reader.type("headrace status --verify")


def test_the_errors_of_the_page_are_there() -> None:
    """Each code that the page names is one of the catalogue."""
    named = set(re.findall(r"HR-E\d+", PAGE))
    assert len(named) > 2
    assert named <= set(catalogue())
