"""The README is short, and its picture and tables are true; test_newcomer.py runs its code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from tests.docs import _pages as pages

from headrace.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
COMMANDS = Path(sys.executable).parent
#: How long a command may take.
PATIENCE_S = 60


def blocks(kind: str) -> list[tuple[str, str]]:
    """Return the blocks of a kind as (file name or an empty string, text)."""
    return [(one.name, one.text) for one in pages.read(ROOT / "README.md") if one.kind == kind]


def test_the_example_is_twelve_lines() -> None:
    """The app on the first screen has twelve lines of code."""
    name, text = blocks("python")[0]
    assert name == "app.py"
    assert len([line for line in text.splitlines() if line.strip()]) == 12


def test_the_test_of_the_example_is_short() -> None:
    """The test that the README shows is of five lines."""
    text = dict(blocks("python"))["test_app.py"]
    assert text.count("\n    ") + 2 == 5, "import, def and three lines"


def test_the_picture_has_the_shape_of_a_run(tmp_path: Path) -> None:
    """The measured picture is the output of `headrace demo`, number for number in the same places."""
    ((_, picture),) = blocks("text")
    done = subprocess.run(
        [COMMANDS / "headrace", "demo", "--events", "200", "--journal", "demo.db"],
        cwd=tmp_path, text=True, timeout=PATIENCE_S, capture_output=True, check=True,
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


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/README.md", "bench/README.md"])
def test_targets_of_make_exist(page: str) -> None:
    """Each target of make that a page names is in the Makefile."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    named = set(re.findall(r"(?:`|^ {4}|^)make ([a-z-]+)", (ROOT / page).read_text("utf-8"), re.MULTILINE))
    assert named <= known
