"""The reference is what the code says, and commands, options and codes that pages name are there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.docs import _pages as pages

from headrace.cli.invoke import tree
from headrace.errors import catalogue

ROOT = pages.ROOT
REFERENCE = ROOT / "docs" / "reference"
#: The reference is made from the same source: it would be compared with itself.
PAGES = [
    *(page for page in pages.followed() if not page.is_relative_to(REFERENCE)),
    ROOT / "ARCHITECTURE.md",
    ROOT / "SECURITY.md",
]
by_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
COMMAND = re.compile(r"(?:`|^|^\$ |/bin/)headrace ([a-z][^`\n|;&)]*)", re.MULTILINE)


def checked(folder: Path) -> subprocess.CompletedProcess[str]:
    """Compare the pages of a folder with the code."""
    command = [sys.executable, ROOT / "tools" / "reference.py", "--check", "--out", folder]
    return subprocess.run(command, text=True, capture_output=True, check=False, cwd=ROOT)


def test_the_reference_is_what_the_code_says() -> None:
    """Nothing differs; if it does, `make reference` writes the pages anew."""
    ran = checked(REFERENCE)
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(
    ("name", "there", "instead"),
    [
        ("api.md", "### RetryPolicy", "### Retries"),
        ("cli.md", "--metrics-port", "--metrics"),
        ("errors.md", "Hint: ", "Hint "),
        ("settings.md", "`lease_ms`", "`lease_s`"),
        ("metrics.md", "gauge", "counter"),
    ],
)
def test_a_page_that_differs_is_found(tmp_path: Path, name: str, there: str, instead: str) -> None:
    """One word is enough."""
    folder = tmp_path / "reference"
    shutil.copytree(REFERENCE, folder)
    text = (folder / name).read_text("utf-8")
    assert there in text
    (folder / name).write_text(text.replace(there, instead, 1), "utf-8")

    ran = checked(folder)
    assert ran.returncode == 1
    assert f"--- {name}" in ran.stdout


def command_of(words: list[str]) -> Any:
    """Return the command that words begin with, or nothing."""
    found: Any = typer.main.get_command(tree())
    while hasattr(found, "commands"):
        if not words or words[0] not in found.commands:
            return None
        found = found.commands[words.pop(0)]
    return found


def unknown(text: str) -> list[str]:
    """Return the commands and options of a page that the program does not have."""
    missing: list[str] = []
    for line in COMMAND.findall(text):
        words = line.split()
        command = command_of(words)
        if command is None:
            missing.append(f"headrace {line}")
            continue
        options = {option for one in command.params for option in one.opts} | {"--help"}
        missing += [
            f"headrace {line}: {word}"
            for word in words
            if word.startswith("--") and word.partition("=")[0].rstrip(",.") not in options
        ]
    return missing


@by_page
def test_commands_exist(page: Path) -> None:
    """Each command and option that a page names, also where it is not run, is one of the program."""
    assert unknown(page.read_text("utf-8")) == []


def test_a_command_that_is_not_there_is_found() -> None:
    """In a sentence, in a block, in a unit of systemd; or an option."""
    text = (
        "`headrace walk`\nheadrace run app:app --fast\nExecStart=/x/bin/headrace dlq mend\n`headrace run a:a`"
    )
    assert unknown(text) == ["headrace walk", "headrace run app:app --fast: --fast", "headrace dlq mend"]


@by_page
def test_codes_exist(page: Path) -> None:
    """Each error code that a page names is one of the catalogue."""
    assert set(re.findall(r"HR-E\d+", page.read_text("utf-8"))) <= catalogue().keys()
