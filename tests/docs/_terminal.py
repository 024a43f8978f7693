"""A terminal: one bash in one folder, into which commands are typed; what it has started ends with it."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Self

#: How long a command may take, and how long a page waits for what a worker should come to.
COMMAND_S_MAX, PATIENCE_S = 120.0, 30.0
#: How long a page waits for workers that have nothing to do; one that has no worker goes on after it.
IDLE_S_MAX = 15.0
#: A job that handles events.
WORKER = re.compile(r"headrace (run|dev)\b")
#: Between two looks.
LOOK_S = 0.1
#: Whatever happens to the test, the jobs of its shell end with the shell.
_BEGIN = "set -m\ntrap 'kill $(jobs -p) 2>/dev/null' EXIT\n"


class Stuck(Exception):
    """A command that did not end, or a shell that did."""


class Terminal:
    """A shell that keeps its variables, folder and jobs from one command to the next."""

    def __init__(self, folder: Path, environment: dict[str, str]) -> None:
        self.folder = folder
        #: What commands print lies beside the folder: the page owns what is inside.
        self._prints = folder.with_name(f"{folder.name}.prints")
        self._prints.mkdir()
        self._typed = 0
        self._environment = environment
        #: Commands in terminals of their own, each with what it prints.
        self._beside: list[subprocess.Popen[bytes]] = []
        self._said, theirs = os.pipe()
        self._fd = theirs
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"], cwd=folder, env=environment, pass_fds=(theirs,),
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True, text=True,
        )  # fmt: skip
        os.close(theirs)
        self._type(_BEGIN)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _type(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    def run(self, command: str, seconds_max: float = COMMAND_S_MAX) -> tuple[int, str]:
        """Type a command; return its exit code and what it printed on both streams."""
        self._typed += 1
        prints = self._prints / f"{self._typed:03}"
        self._type(f"{{ {command}\n}} >'{prints}' 2>&1 </dev/null {self._fd}>&-\necho $? >&{self._fd}\n")
        self._type("jobs >/dev/null\n")  # those that have ended give their numbers back, as at a prompt
        code = self._answer(seconds_max)
        said = prints.read_text("utf-8", "replace") if prints.exists() else ""
        if code is None:
            self._kill()
            raise Stuck(
                f"`{command}` has not ended after {seconds_max:.0f} s, and has printed:\n{said[-4000:]}"
            )
        return code, said

    def beside(self, command: str) -> Path:
        """Leave a command at work, in a terminal of its own; return what it prints into."""
        self._typed += 1
        prints = self._prints / f"{self._typed:03}"
        with prints.open("wb") as file:
            self._beside.append(
                subprocess.Popen(
                    ["bash", "-c", f"exec {command}"], cwd=self.run("pwd")[1].strip(), env=self._environment,
                    stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, start_new_session=True,
                )
            )  # fmt: skip
        return prints

    def _answer(self, seconds_max: float) -> int | None:
        ready, _, _ = select.select([self._said], [], [], seconds_max)
        told = os.read(self._said, 64).decode().strip() if ready else ""
        return int(told) if told else None

    def jobs(self) -> list[int]:
        """Return the process groups that run in the background."""
        return [int(pid) for pid in self.run("jobs -pr")[1].split()]

    def until_idle(self) -> None:
        """Wait as a person who types does: until the workers have nothing more to do."""
        end = time.monotonic() + IDLE_S_MAX
        while WORKER.search(self.run("jobs -r")[1]) and not self._idle() and time.monotonic() < end:
            time.sleep(LOOK_S)

    def _idle(self) -> bool:
        code, said = self.run("headrace status --json 2>/dev/null")
        served = [row for row in json.loads(said)["subscriptions"] if row["workers"]] if code == 0 else []
        return bool(served) and all(row["waiting"] == row["running"] == row["parked"] == 0 for row in served)

    def until_gone(self, before: list[int]) -> None:
        """Wait until one of the jobs has ended: it was told to, and the next gets its number."""
        end = time.monotonic() + PATIENCE_S
        while set(before) <= set(self.jobs()) and time.monotonic() < end:
            time.sleep(LOOK_S)

    def interrupt(self) -> list[int]:
        """Send Ctrl-C to all that runs in the background; return the exit codes."""
        codes: list[int] = []
        for job in self.jobs():
            os.killpg(job, signal.SIGINT)
            codes.append(self.run(f"wait {job}", PATIENCE_S)[0])
        return codes

    def close(self) -> None:
        """End everything that was started here."""
        for one in self._beside:
            _ended(one)
        try:
            if self._shell.poll() is None:
                self.interrupt()
        except Stuck:
            pass  # it is ended now: see `run`
        finally:
            assert self._shell.stdin is not None
            self._shell.stdin.close()
            try:
                self._shell.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self._shell.kill()
                self._shell.wait()
            os.close(self._said)

    def _kill(self) -> None:
        """End what the shell has started, in the foreground too: each job is a process group of its own."""
        children = Path(f"/proc/{self._shell.pid}/task/{self._shell.pid}/children")
        for pid in children.read_text("utf-8").split() if children.exists() else []:
            os.killpg(int(pid), signal.SIGKILL)
        self._answer(PATIENCE_S)


def _ended(process: subprocess.Popen[bytes]) -> None:
    """Give a command Ctrl-C, and what it takes if that is not enough."""
    if process.poll() is not None:
        return
    os.killpg(process.pid, signal.SIGINT)
    try:
        process.wait(PATIENCE_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
