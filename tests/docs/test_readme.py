"""What the README shows is what happens: its code runs, its sessions are typed in, its tables compared."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from headrace.errors import catalogue
from headrace.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = Path(sys.executable).parent
#: How long a command, or a background worker, may take to show what the README shows.
PATIENCE_S = 60

BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SHORT_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}(?:-[0-9a-f]{4}){0,2}(?![0-9a-f-])")
#: What differs from run to run, and what stands for it in both texts.
VARIES = (
    (ID, "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d+"), "<time>"),
    (re.compile(r"after [\d,.]+ ms"), "after <n> ms"),
    (re.compile(r"\bpid \d+"), "pid <n>"),
)


def blocks(kind: str) -> list[tuple[str, str]]:
    """Return the blocks of a kind as (file name or an empty string, text)."""
    return [(found[2] or "", found[3]) for found in BLOCK.finditer(README) if found[1] == kind]


def plain(text: str) -> str:
    """Return a text with all that differs from run to run replaced."""
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


class Terminal:
    """One folder in which the README is followed from top to bottom."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        own = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self._environment = own | {
            "PATH": f"{COMMANDS}{os.pathsep}{own.get('PATH', '')}",
            "COLUMNS": "120",
            "NO_COLOR": "1",
        }
        self._workers: list[subprocess.Popen[bytes]] = []
        #: The ids that the README shows, and those that came in their place.
        self._ids: dict[str, str] = {}

    def type(self, command: str, shown: str) -> None:
        """Run a command as it stands in the README, and compare what it prints."""
        for told in SHORT_ID.findall(command):
            real = next((mine for theirs, mine in self._ids.items() if theirs.startswith(told)), None)
            assert real is not None, f"{told} was not shown by an earlier command"
            command = command.replace(told, real[: len(told)])
        if command.endswith("&"):
            self._start(command)
            return
        repeatable = re.match(r"headrace (show|status|tail|why|model history)\b", command) is not None
        printed = self._run(command)
        deadline = time.monotonic() + PATIENCE_S
        while repeatable and plain(printed) != plain(shown) and time.monotonic() < deadline:
            time.sleep(0.1)  # a person who types gives the worker more time than this
            printed = self._run(command)
        assert plain(printed) == plain(shown), f"{command}; the worker said:\n{self._logs()}"
        self._ids |= dict(zip(ID.findall(shown), ID.findall(printed), strict=True))

    def _run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command], cwd=self.folder, env=self._environment, text=True, timeout=PATIENCE_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}"
        return done.stdout

    def _start(self, command: str) -> None:
        # `exec`, so that the signal at the end reaches the worker and no shell in between.
        line = "exec " + command.removesuffix("&").strip()
        self._workers.append(subprocess.Popen(["bash", "-c", line], cwd=self.folder, env=self._environment))

    def _logs(self) -> str:
        return "".join(file.read_text("utf-8") for file in sorted(self.folder.glob("*.log")))

    def close(self) -> list[int]:
        """Stop what runs in the background; return the exit codes."""
        for worker in self._workers:
            worker.send_signal(signal.SIGINT)
        return [worker.wait(PATIENCE_S) for worker in self._workers]


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal in a folder that holds the files of the README."""
    for name, text in blocks("python"):
        (tmp_path / name).write_text(text, "utf-8")
    made = Terminal(tmp_path)
    yield made
    made.close()


def test_the_sessions_are_real(terminal: Terminal) -> None:
    """Every command of the README, typed in one after the other, prints what the README says."""
    typed = 0
    for _, text in blocks("console"):
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            terminal.type(command, shown)
            typed += 1
    assert typed >= 4
    assert terminal.close() == [130], "the worker ends as after Ctrl-C"


def test_the_example_is_twelve_lines() -> None:
    """The app on the first screen has twelve lines of code."""
    name, text = blocks("python")[0]
    assert name == "app.py"
    assert len([line for line in text.splitlines() if line.strip()]) == 12


def test_the_test_of_the_example_passes(terminal: Terminal) -> None:
    """The test that the README shows is of five lines, and passes without the model and without a file."""
    text = dict(blocks("python"))["test_app.py"]
    assert text.count("\n    ") + 2 == 5, "import, def and three lines"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir=.", "test_app.py"],
        cwd=terminal.folder, text=True, timeout=PATIENCE_S, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert not list(terminal.folder.glob("*.db*"))


def test_the_picture_has_the_shape_of_a_run(terminal: Terminal) -> None:
    """The measured picture is the output of `headrace demo`, number for number in the same places."""
    ((_, picture),) = blocks("text")
    done = subprocess.run(
        [COMMANDS / "headrace", "demo", "--events", "200", "--journal", "demo.db"],
        cwd=terminal.folder, text=True, timeout=PATIENCE_S, capture_output=True, check=True,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1"},
    )  # fmt: skip

    def shape(line: str) -> str:
        return " ".join(re.sub(r"[█▏▎▍▌▋▊▉]+", "", re.sub(r"[\d,.]*\d", "0", line)).split())

    printed = {shape(line) for line in done.stdout.splitlines()}
    assert {shape(line) for line in picture.splitlines()} <= printed


# --- tables and names ---------------------------------------------------------------------------


def table(heading: str) -> list[list[str]]:
    """Return the rows of the first table below a heading, without its first two lines."""
    below = README.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = [line.strip("|").split(" | ") for line in below.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def test_every_promise_is_attacked() -> None:
    """Each promise links to a test or a script that exists and is run by `make test` or `make bench`."""
    promises = table("Promises")
    assert len(promises) >= 4
    for promise, attacks in promises:
        links = re.findall(r"\]\(([^)]+)\)", attacks)
        assert links, promise
        for link in links:
            assert re.fullmatch(r"(tests|bench)/[\w/]+\.py", link), link
            assert (ROOT / link).is_file(), f"{promise}: {link}"


def test_every_number_has_a_script() -> None:
    """Each figure of speed links to the benchmark that measures it."""
    numbers = table("Numbers")
    assert len(numbers) >= 4
    for row in numbers:
        found = re.search(r"\]\((bench/\w+\.py)\)", row[-1])
        assert found is not None, row
        assert (ROOT / found[1]).is_file(), row


def test_the_settings_are_those_of_the_code() -> None:
    """The table of settings names each setting with its default, and no other."""
    shown = {row[0].strip("`"): row[1].strip("`") for row in table("Settings")}
    assert shown == {field.name: str(field.default) for field in fields(Settings)}


@cache
def helps(*words: str) -> str:
    """Return the help text of a command, or nothing when there is no such command."""
    done = subprocess.run(
        [COMMANDS / "headrace", *words, "--help"],
        text=True, timeout=PATIENCE_S, capture_output=True, check=False,
    )  # fmt: skip
    return done.stdout if done.returncode == 0 else ""


def test_commands_exist() -> None:
    """Each command and flag that the README names is one that the program has."""
    named = set(re.findall(r"(?:`|^\$ )headrace ((?:(?:model|dlq) )?[a-z]+)([^`\n]*)", README, re.MULTILINE))
    assert len(named) > 10
    for words, rest in named:
        text = helps(*words.split())
        assert text, f"headrace {words}"
        for flag in re.findall(r"--[a-z-]+", rest):
            assert flag in text, f"headrace {words} {flag}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/README.md", "bench/README.md"])
def test_targets_of_make_exist(page: str) -> None:
    """Each target of make that a page names is in the Makefile."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^ {4})make ([a-z-]+)", (ROOT / page).read_text("utf-8"), re.MULTILINE))
    assert named <= known


def test_codes_exist() -> None:
    """Each error code that the README names is one of the catalogue."""
    assert set(re.findall(r"HR-E\d+", README)) <= catalogue().keys()


@pytest.mark.parametrize(
    ("check", "broken"),
    [
        (plain, "after 5 ms; 01a22a53-3b70-7ac8-b8e3-ff3d1bbe5cb2"),
        (lambda text: " ".join(SHORT_ID.findall(text)), "headrace show 01a22a53-3b70-7ac8 | tail"),
    ],
)
def test_what_varies_is_found(check: Callable[[str], str], broken: str) -> None:
    """Times and ids, whole and shortened, are recognised: else a comparison could never fail for them."""
    assert check(broken) in ("after <n> ms; <id>", "01a22a53-3b70-7ac8")
