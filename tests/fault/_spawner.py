"""Starts processes quickly: a process that has imported everything and forks one child for each request.

Run as a file, with the name of the module whose `main` performs a `Task`, it is that process; `Spawner` is
the other side, for the driver.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import selectors
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

#: How a process ends that cannot reach its journal, and one that starts while its model cannot be loaded.
UNREACHABLE, UNLOADABLE = 3, 4

# --- the driver's side --------------------------------------------------------------------------


#: Of what the processes of a run have said, as much is told of one that ended by itself, in characters.
WORDS_MAX = 1_500
#: Between two looks.
LOOK_S = 0.002


async def until(holds: Callable[[], object], seconds: float, every_s: float = LOOK_S) -> bool:
    """Wait for something, for a while."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            return False
        await asyncio.sleep(every_s)
    return True


def last_words(folder: Path) -> str:
    """Return the end of what the processes of a run have said."""
    path = folder / "processes.log"
    return path.read_text("utf-8", errors="replace")[-WORDS_MAX:] if path.exists() else ""


class Child:
    """One process: signalled by its pidfd, so that no other process can be hit."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        #: What ``waitpid`` said: an exit code, or the negative number of a signal.
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        #: Signals that the driver has sent and that end a process.
        self.asked: list[signal.Signals] = []

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; returns ``False`` when the process has ended."""
        if self._pidfd < 0:
            return False
        try:
            signal.pidfd_send_signal(self._pidfd, number)
        except ProcessLookupError:
            return False
        if number in (signal.SIGKILL, signal.SIGTERM):
            self.asked.append(number)
        return True

    def end(self, status: int) -> None:
        """Note the end."""
        os.close(self._pidfd)
        self._pidfd = -1
        self.ended.set_result(status)


class Spawner:
    """Has processes started, and learns of their ends."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._asked: dict[int, asyncio.Future[Child]] = {}
        self._children: dict[int, Child] = {}
        self._count = 0
        self._reader = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, module: str = "_worker") -> Spawner:
        """Start the process that forks; its children perform tasks of the module."""
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, __file__, module)
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe))

    async def spawn(self, task: dict[str, Any], errors: Path) -> Child:
        """Return a new process that performs the task; what it says is appended to a file."""
        assert self._process.stdin is not None
        self._count += 1
        asked = self._asked[self._count] = asyncio.get_running_loop().create_future()
        line = json.dumps({"id": self._count, "task": task, "errors": str(errors)})
        self._process.stdin.write(line.encode() + b"\n")
        return await asked

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            told = json.loads(line)
            if "status" in told:
                self._children.pop(told["id"]).end(told["status"])
            else:
                # The spawner reaps a child only after it was told to: the number cannot be another's.
                child = Child(told["pid"], os.pidfd_open(told["pid"]))
                self._children[told["id"]] = child
                self._tell({"reap": told["pid"]})
                self._asked.pop(told["id"]).set_result(child)

    def _tell(self, said: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(said).encode() + b"\n")

    async def close(self) -> None:
        """End the spawner and with it all that it has started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()
        await self._reader


# --- the process that forks ---------------------------------------------------------------------


class Forker:
    """Forks on request and tells how each child has ended."""

    def __init__(self, module: Any) -> None:
        self._module = module
        self._selector = selectors.DefaultSelector()
        self._living: dict[int, tuple[int, int]] = {}  # pid -> number of the request, pidfd
        self._stdin = os.fdopen(0, "rb", buffering=0)
        self._stdout = os.fdopen(1, "wb", buffering=0)
        self._selector.register(self._stdin, selectors.EVENT_READ)
        self._rest = b""

    def run(self) -> None:
        """Serve until the driver has gone, then kill what is left."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._stdin:
                    self._reap(key.data)
                elif not self._listen():
                    for pid in self._living:
                        os.kill(pid, signal.SIGKILL)
                    return

    def _listen(self) -> bool:
        received = self._stdin.read(65_536)
        *lines, self._rest = (self._rest + (received or b"")).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "reap" in told:
                pid = told["reap"]
                self._selector.register(self._living[pid][1], selectors.EVENT_READ, pid)
            else:
                self._fork(told)
        return bool(received)

    def _fork(self, told: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            _be_child(told, self._module)
        self._living[pid] = told["id"], os.pidfd_open(pid)
        self._say({"id": told["id"], "pid": pid})

    def _reap(self, pid: int) -> None:
        number, pidfd = self._living.pop(pid)
        self._selector.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._say({"id": number, "status": os.waitstatus_to_exitcode(status)})

    def _say(self, told: dict[str, Any]) -> None:
        self._stdout.write(json.dumps(told).encode() + b"\n")


def _be_child(told: dict[str, Any], module: Any) -> None:
    """Become the process that was asked for; does not return."""
    status = 1
    try:
        errors = os.open(told["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        os.closerange(3, 1_024)
        module.main(module.Task(**told["task"]))
        status = 0
    except SystemExit as end:
        status = int(end.code or 0)
    except BaseException:  # the end of a process: all is told, nothing goes on
        traceback.print_exc()
    finally:
        stream: IO[str] = sys.stderr
        stream.flush()
        os._exit(status)


if __name__ == "__main__":
    Forker(importlib.import_module(sys.argv[1])).run()
