"""Several worker processes: started anew, never forked; one that dies is replaced; all stop together."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field

from headrace.cli.output import Exit, counted, say
from headrace.world import SystemClock

#: Waits before a worker that died is started again; doubled each time it dies young.
RESTART_S_MIN, RESTART_S_MAX = 0.2, 30.0
#: One that has lived for this long has not died young.
SETTLED_S = 60.0
#: A worker that does not stop is killed after this long: its own grace, and a little.
STOP_SLACK_S = 20.0


class Supervisor:
    """Keeps a number of workers alive until it is told to stop."""

    def __init__(self, commands: Sequence[Sequence[str]], grace_s: float) -> None:
        self._commands = commands
        self.patience_s = grace_s + STOP_SLACK_S
        self._clock = SystemClock()
        self._children: dict[int, asyncio.subprocess.Process] = {}
        self._stop = asyncio.Event()
        self._interrupted = False
        self._code: int = Exit.DONE

    def run(self) -> int:
        """Serve until stopped; returns the exit code."""
        asyncio.run(self._serve())
        return Exit.INTERRUPTED if self._interrupted else self._code

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        say(f"{counted(len(self._commands), 'worker')}, supervised by pid {os.getpid()}")
        keepers = [asyncio.create_task(self._keep(number)) for number in range(len(self._commands))]
        await self._stop.wait()
        self._signal(signal.SIGTERM)
        _, late = await asyncio.wait(keepers, timeout=self.patience_s)
        if late:
            say(f"killed for not stopping: {counted(len(late), 'worker')}")
            self._signal(signal.SIGKILL)
            await asyncio.wait(late)

    def _interrupt(self) -> None:
        """On a terminal the workers get the same signal; the second one stops all at once."""
        if self._interrupted:
            self._signal(signal.SIGKILL)
            os._exit(Exit.INTERRUPTED)
        self._interrupted = True
        self._stop.set()

    def _signal(self, number: signal.Signals) -> None:
        for child in self._children.values():
            if child.returncode is None:
                child.send_signal(number)

    async def _keep(self, number: int) -> None:
        """Keep one worker alive."""
        wait = Backoff()
        while not self._stop.is_set():
            # Standard input is a pipe whose other end dies with us: a worker without a parent stops.
            child = await asyncio.create_subprocess_exec(
                *self._commands[number], stdin=asyncio.subprocess.PIPE, stdout=sys.stdout, stderr=sys.stderr
            )
            self._children[number] = child
            if self._stop.is_set():  # the signal for all was sent while this one was being born
                child.terminate()
            started_ns = self._clock.boot_ns()
            code = await child.wait()
            if self._stop.is_set():
                return
            lived_s = (self._clock.boot_ns() - started_ns) / 1e9
            if code == Exit.UNUSABLE:  # the same command would fail the same way
                say(f"worker {child.pid} cannot run; all stop")
                self._code = code
                self._stop.set()
                return
            wait_s = wait.after(lived_s)
            told = f"worker {child.pid} {ended(code)} after {lived_s:,.1f} s"
            say(f"{told}; another one starts in {wait_s:.1f} s")
            await self._sleep(wait_s)

    async def _sleep(self, seconds: float) -> None:
        """Wait, but not beyond a stop."""
        sleeping = asyncio.create_task(self._clock.sleep(seconds))
        stopping = asyncio.create_task(self._stop.wait())
        _, pending = await asyncio.wait({sleeping, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in pending:
            task.cancel()


@dataclass(slots=True)
class Backoff:
    """How long to wait before a worker is started again."""

    _next_s: float = field(default=RESTART_S_MIN)

    def after(self, lived_s: float) -> float:
        """Return the wait after a life of so many seconds."""
        if lived_s >= SETTLED_S:
            self._next_s = RESTART_S_MIN
        wait_s, self._next_s = self._next_s, min(RESTART_S_MAX, self._next_s * 2)
        return wait_s


def ended(code: int) -> str:
    """Say how a process ended, in the words of the system."""
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
