"""A started program: its pid, what it printed, its end. It never outlives the process that started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

LAUNCH = Path(__file__).with_name("launch.py")

#: What SIGKILL needs even on a machine that swaps.
KILL_SECONDS_MAX = 10.0
#: Between two looks at something that takes tenths of seconds.
LOOK_SECONDS = 0.02
#: The end of a log, as long as an error with its stack.
TAIL_LINES = 40


class ServiceFailed(Exception):
    """A service could not be fetched, started or stopped; the text ends with what it printed last."""


class Account(NamedTuple):
    """Whom a program runs as."""

    uid: int
    gid: int


@cache
def _starter() -> ThreadPoolExecutor:
    """Return the thread that starts all programs.

    The kernel takes the end of the *thread* that started a program for the end of the parent, so a program
    started in a short-lived thread would die with that. This thread lives as long as the interpreter.
    """
    return ThreadPoolExecutor(max_workers=1, thread_name_prefix="starter of services")


class Process:
    """A running program that writes to a log."""

    def __init__(self, started: subprocess.Popen[bytes], name: str, log: Path) -> None:
        self._started, self._name, self.log = started, name, log

    @classmethod
    def start(
        cls,
        command: Sequence[str | Path],
        log: Path,
        *,
        account: Account | None = None,
        on_orphaned: signal.Signals = signal.SIGKILL,
        environment: Mapping[str, str] | None = None,
    ) -> Self:
        """Start the command; it gets the signal `on_orphaned` should this process end before it."""
        words = [str(word) for word in command]
        whom = account or Account(os.getuid(), os.getgid())
        launch = [sys.executable, "-I", "-S", str(LAUNCH), str(os.getpid()), str(int(on_orphaned))]

        def begin() -> subprocess.Popen[bytes]:
            with log.open("ab") as output:
                return subprocess.Popen(
                    [*launch, str(whom.uid), str(whom.gid), *words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    cwd=log.parent,
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,  # Ctrl-C is for the test, which then stops this in order
                )

        return cls(_starter().submit(begin).result(), Path(words[0]).name, log)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._started.pid

    @property
    def is_alive(self) -> bool:
        """Has it not ended yet?"""
        return self._started.poll() is None

    @property
    def rss_mebibytes(self) -> float:
        """The memory it holds now."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        kibibytes = next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS"))
        return int(kibibytes) / 1024

    def failure(self, what: str) -> ServiceFailed:
        """Return the error that says what happened and how the log ends."""
        return ServiceFailed(f"{self._name} (pid {self.pid}) {what}; its log ends:\n{tail(self.log)}")

    def finish(self, seconds: float) -> None:
        """Wait until it has ended by itself, well."""
        try:
            status = self._started.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self.failure(f"was not done after {seconds} s") from None
        if status:
            raise self.failure(f"ended with {status}")

    def await_that(self, answers: Callable[[], bool], seconds: float) -> None:
        """Wait until it answers; if it does not, or ends, kill it and say so."""
        answered = False

        def is_decided() -> bool:
            nonlocal answered
            answered = answers()
            return answered or not self.is_alive

        if not soon(is_decided, seconds):
            self.kill()
            raise self.failure(f"did not answer within {seconds} s")
        if not answered:
            raise self.failure(f"ended with {self._started.returncode} before it answered")

    def ask_to_end(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Send the signal that lets it end in order."""
        self._started.send_signal(by)

    def stop(self, seconds: float, by: signal.Signals = signal.SIGTERM) -> None:
        """Let it end in order; if it does not, kill it and say so."""
        self.ask_to_end(by)
        try:
            self._started.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self.failure(f"did not end within {seconds} s of {by.name}") from None

    def kill(self) -> None:
        """End it at once by SIGKILL."""
        self._started.kill()
        self._started.wait(KILL_SECONDS_MAX)


def soon(is_so: Callable[[], bool], seconds: float) -> bool:
    """Wait until it is so; tell whether it came about in time."""
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_SECONDS)
    return True


def is_running(pid: int) -> bool:
    """Is there such a process, and is it more than an entry that waits to be collected?"""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
