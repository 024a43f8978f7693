"""Help: every command says in one sentence what it does and shows commands that can be copied."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.unit.terminal import apart, here

from headrace import __version__
from headrace.cli.invoke import tree
from headrace.cli.output import Exit

Capture = pytest.CaptureFixture[str]


def commands(found: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command with its path."""
    if not hasattr(found, "commands"):
        yield path, found
        return
    for name, below in found.commands.items():
        yield from commands(below, (*path, name))


COMMANDS = dict(commands(typer.main.get_command(tree())))
NAMES = (
    *("demo", "new", "dev", "run", "publish", "tail", "show", "why", "status", "check", "replay"),
    *("compact", "backup", "erase", "copy", "settings", "doctor", "explain", "completion", "cheat"),
)


def examples(command: Any) -> list[str]:
    """Return the example lines of a command."""
    return [line.strip() for line in command.epilog.splitlines() if line.startswith("  ")]


def test_the_commands_are_these() -> None:
    """Nothing is missing, and nothing is there that nobody asked for."""
    expected = {(name,) for name in NAMES}
    expected |= {("dlq", verb) for verb in ("ls", "show", "redrive", "drop")}
    expected |= {("model", verb) for verb in ("history", "activate", "calibrate")}
    expected |= {("handler", verb) for verb in ("ls", "retire")}
    expected |= {("index", verb) for verb in ("rebuild", "verify")}

    assert set(COMMANDS) == expected


@pytest.mark.parametrize("path", COMMANDS, ids=" ".join)
def test_help_tells_what_and_how(capsys: Capture, path: tuple[str, ...]) -> None:
    """One sentence, usage, the options, and real examples; on stdout, with exit code 0."""
    ran = here(capsys, *path, "--help")

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert ran.out.startswith(f"Usage: headrace {' '.join(path)}")
    assert "Examples:" in ran.out
    for line in examples(COMMANDS[path]):
        assert line in ran.out, "an example that was wrapped cannot be copied"


@pytest.mark.parametrize(
    ("path", "line"),
    [(path, line) for path, command in COMMANDS.items() for line in examples(command)],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_example_can_be_followed(path: tuple[str, ...], line: str) -> None:
    """Each example names its own command, with options and arguments that it has."""
    found = re.search(r"headrace ([^|]+)", line)
    assert found is not None
    words = shlex.split(found[1])

    assert tuple(words[: len(path)]) == path
    COMMANDS[path].make_context("x", words[len(path) :])


def test_the_first_help_lists_the_exit_codes(capsys: Capture) -> None:
    """What a script may rely on stands where people look first."""
    ran = here(capsys, "--help")

    assert ran.code == Exit.DONE
    for code in (
        "0 done",
        "1 it ran and the answer is no",
        "2 it could not run",
        "3 journal",
        "130 interrupted",
    ):
        assert code in " ".join(ran.out.split())


def test_the_version_is_told(capsys: Capture) -> None:
    """The version of the package, on stdout."""
    assert here(capsys, "--version").out == f"headrace {__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("dlq",), ("model",)])
def test_a_group_without_a_command_shows_its_help(capsys: Capture, arguments: tuple[str, ...]) -> None:
    """Nothing was done, so the exit code is 2, and the help is no data."""
    ran = here(capsys, *arguments)

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert "Commands:" in ran.err


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    """Help and commands that look need neither an app nor rich, numpy or the model runtime."""
    script = (
        "import sys; from headrace.cli.invoke import invoke; invoke(['--help']); invoke(['status']);"
        "heavy = ('headrace.app', 'rich', 'numpy', 'onnxruntime');"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert found.stderr.splitlines()[-1] == "[]"


def test_the_module_is_the_command(tmp_path: Path) -> None:
    """``python -m headrace`` does what ``headrace`` does."""
    ran = apart("--version", cwd=tmp_path)

    assert (ran.code, ran.out) == (Exit.DONE, f"headrace {__version__}\n")
