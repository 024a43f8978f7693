"""Runs commands as a shell would: in this process, or in one of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest

from headrace.cli.invoke import invoke

#: Seconds: a command that hangs is a failure, on the slowest machine too.
PATIENCE_S = 60


class Ran(NamedTuple):
    """What a command has said."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        """The JSON lines on stdout."""
        return [json.loads(line) for line in self.out.splitlines()]


def here(capsys: pytest.CaptureFixture[str], *arguments: object) -> Ran:
    """Run a command in this process: quick, and right for all that does not import an app."""
    capsys.readouterr()
    code = invoke([str(one) for one in arguments])
    out, err = capsys.readouterr()
    return Ran(code, out, err)


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a process of its own, without settings of whoever runs the tests."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("HEADRACE_", "FORCE_COLOR", "NO_COLOR"))
    }
    return kept | {"PYTHONUNBUFFERED": "1"} | more


def command(*arguments: object) -> list[str]:
    """Return the command line of a process of its own."""
    return [sys.executable, "-m", "headrace", *(str(one) for one in arguments)]


def apart(
    *arguments: object, cwd: Path, stdin: bytes | None = None, env: Mapping[str, str] | None = None
) -> Ran:
    """Run a command to its end in a process of its own."""
    found = subprocess.run(
        command(*arguments),
        cwd=cwd,
        input=stdin,
        stdin=None if stdin is not None else subprocess.DEVNULL,
        capture_output=True,
        env=environment(**(env or {})),
        timeout=PATIENCE_S,
        check=False,
    )
    return Ran(found.returncode, found.stdout.decode(), found.stderr.decode())


class Running:
    """A command that runs until it is told to end; its stderr is read line by line."""

    def __init__(self, *arguments: object, cwd: Path, **env: str) -> None:
        self.process = subprocess.Popen(
            command(*arguments),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(**env),
            text=True,
        )
        self.err: list[str] = []

    def __enter__(self) -> Self:
        """Return itself; whatever happens, the process does not outlive the test."""
        return self

    def __exit__(self, *exc: object) -> None:
        """Kill what still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def until(self, text: str, times: int = 1) -> str:
        """Read stderr until a line holds the text, so many times; return that line.

        When it does not come the process is killed: what it has said instead is shown.
        """
        assert self.process.stderr is not None
        too_late = threading.Timer(PATIENCE_S, self.process.kill)
        too_late.start()
        try:
            for line in self.process.stderr:
                self.err.append(line)
                times -= text in line
                if times <= 0:
                    return line
        finally:
            too_late.cancel()
        raise AssertionError(f"{text!r} never came: {''.join(self.err)}")

    def ended(self, number: signal.Signals | None = None) -> Ran:
        """Send a signal, if any, and return what the process has said."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return Ran(self.process.returncode, out, "".join(self.err) + err)
