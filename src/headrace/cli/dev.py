"""``headrace dev``: a worker beside the editor; code and models that change are taken up at once."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace import errors
from headrace.cli.access import warn_of_environment
from headrace.cli.options import Index, Journal, Target, examples
from headrace.cli.output import Exit, paint, say, shortened
from headrace.cli.run import command_of
from headrace.cli.sources import Sources, forget_byte_code
from headrace.cli.supervise import STOP_SLACK_S, Backoff, ended
from headrace.world import SystemClock

#: How often the sources are looked at (a change must hold for one more look), and how many times as long as a
#: look takes is between two of them: with many files a look is dear, and 5 % of a core are enough.
LOOK_S, LOOK_SHARE = 0.1, 20
#: A worker that was killed is not waited for longer: a program that is being written dies now and then.
LEASE_MS_MAX = 2_000
#: Names of changed files that are told.
NAMES_CHARS_MAX = 100

_EPILOG = examples(
    "headrace dev app:app",
    "headrace dev app:app --journal scratch.db",
    "headrace dev shop.app:app --watch . --watch ../lib",
    more="Models need no restart: the worker itself takes up a file that changes. Code is taken up by a new"
    " process, which takes over when it is ready; code that does not start leaves the old one at work.",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("dev", epilog=_EPILOG)(_dev)


def _dev(
    target: Target,
    watch: Annotated[
        list[Path] | None,
        typer.Option(
            "--watch", help="Look at the sources in this folder; may be repeated. [default: .]",
            show_default=False,
        ),
    ] = None,
    journal: Journal = None,
    index: Index = None,
) -> int:  # fmt: skip
    """Handle events while the app is written: changed code and models are taken up within a second."""
    from headrace.settings import load

    warn_of_environment()
    folders = watch or [Path()]
    missing = next((folder for folder in folders if not folder.is_dir()), None)
    if missing is not None:
        raise errors.CommandInvalid(problem=f"there is no folder {missing}", hint="--watch names a folder")
    flags: dict[str, Any] = {"journal": journal, "index": index}
    settings = load(flags)
    flags["lease_ms"] = min(settings.lease_ms, LEASE_MS_MAX)
    return Dev(command_of(target, 1, flags), folders, settings.stop_grace_ms / 1000).run()


class Child:
    """One worker process, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, ready: int, news: asyncio.Event) -> None:
        self._process, self._ready_fd, self._news = process, ready, news
        self.pid = process.pid
        self.ready = False
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(ready, self._readable)
        self.end = asyncio.create_task(self._wait())

    @classmethod
    async def start(cls, command: Sequence[str], news: asyncio.Event) -> Child:
        """Start a worker that waits for `go`, and then says when it serves."""
        reading, writing = os.pipe()
        try:
            # Standard input is a pipe whose other end dies with us: a worker without a parent stops.
            process = await asyncio.create_subprocess_exec(
                *command, "--standby", "--ready-fd", str(writing), pass_fds=(writing,),
                stdin=asyncio.subprocess.PIPE, stdout=sys.stdout, stderr=sys.stderr,
            )  # fmt: skip
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        return cls(process, reading, news)

    def _readable(self) -> None:
        self.ready = bool(os.read(self._ready_fd, 1))
        self._loop.remove_reader(self._ready_fd)
        os.close(self._ready_fd)
        self._news.set()

    async def _wait(self) -> int:
        code = await self._process.wait()
        self._news.set()
        return code

    def go(self) -> None:
        """Let it load the code and serve."""
        if self._process.stdin is not None:
            self._process.stdin.write(b"\n")

    def ended(self) -> int | None:
        """Return the exit code of a process that has ended."""
        return self.end.result() if self.end.done() else None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it still runs."""
        if not self.end.done():
            with suppress(ProcessLookupError):
                self._process.send_signal(number)


class Dev:
    """Keeps a worker with the present code at work; the old one works until the new one does."""

    def __init__(self, command: Sequence[str], folders: Sequence[Path], grace_s: float) -> None:
        self._command, self._folders = command, folders
        self._patience_s = grace_s + STOP_SLACK_S
        self._clock = SystemClock()
        self._stop, self._news = asyncio.Event(), asyncio.Event()
        self._interrupted = False
        self._serving: Child | None = None
        self._coming: Child | None = None
        #: Has loaded all but the app, and waits: half a second less for whoever has just saved a file.
        self._spare: Child | None = None
        #: Told to stop, and not ended yet.
        self._leaving: list[Child] = []
        self._backoff = Backoff()
        self._began_ns = self._again_ns = 0

    def run(self) -> int:
        """Serve until stopped; returns the exit code."""
        asyncio.run(self._serve())
        return Exit.INTERRUPTED if self._interrupted else Exit.DONE

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._end)
        sources = Sources(self._folders)
        if sources.full():
            say("there are more sources than are looked at: name fewer folders with --watch")
        await self._begin()
        while not self._stop.is_set():
            began_ns = self._clock.boot_ns()
            changed = sources.changed()
            wait_s = max(LOOK_S, LOOK_SHARE * (self._clock.boot_ns() - began_ns) / 1e9)
            if changed:
                say(paint(f"changed: {_names(changed)}", "dim", sys.stderr))
                forget_byte_code(changed)
                await self._begin()
            await self._look_after()
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), wait_s)
        await self._finish()

    # --- one process after the other ----------------------------------------------------------

    async def _begin(self) -> None:
        """Start a process with the code as it is now; one that was just starting is out of date."""
        if self._coming is not None:
            self._let_go(self._coming)
        self._began_ns = self._clock.boot_ns()
        spare, self._spare = self._spare, None
        if spare is None or spare.ended() is not None:
            spare = await Child.start(self._command, self._news)
        self._coming = spare
        spare.go()

    def _let_go(self, child: Child) -> None:
        child.signal(signal.SIGTERM)
        self._leaving.append(child)

    async def _look_after(self) -> None:
        self._leaving = [child for child in self._leaving if child.ended() is None]
        coming, serving = self._coming, self._serving
        if coming is not None and coming.ready:
            self._take_over(coming)
            self._spare = self._spare or await Child.start(self._command, self._news)
        elif coming is not None and coming.ended() is not None:
            self._coming = None
            old = "the old code keeps serving" if serving is not None else "nothing is served"
            say(paint(f"the code cannot run: {old}; waiting for a change", "red", sys.stderr))
        elif serving is not None and (code := serving.ended()) is not None:
            self._serving = None
            lived_s = (self._clock.boot_ns() - self._began_ns) / 1e9
            wait_s = self._backoff.after(lived_s)
            self._again_ns = self._clock.boot_ns() + int(wait_s * 1e9)
            say(f"worker {serving.pid} {ended(code)}; another one starts in {wait_s:.1f} s")
        elif self._again_ns and coming is None and self._clock.boot_ns() >= self._again_ns:
            await self._begin()

    def _take_over(self, coming: Child) -> None:
        """The new process serves; the old one ends what it has in hand, or hands it back."""
        old, self._serving, self._coming = self._serving, coming, None
        self._again_ns = 0
        if old is not None:
            self._let_go(old)
            took_s = (self._clock.boot_ns() - self._began_ns) / 1e9
            say(paint(f"worker {coming.pid} serves the new code, after {took_s:.2f} s", "green", sys.stderr))

    # --- the end ------------------------------------------------------------------------------

    def _end(self) -> None:
        self._stop.set()
        self._news.set()

    def _interrupt(self) -> None:
        """On a terminal the workers get the same signal; the second one stops all at once."""
        if self._interrupted:
            for child in self._children():
                child.signal(signal.SIGKILL)
            os._exit(Exit.INTERRUPTED)
        self._interrupted = True
        self._end()

    def _children(self) -> list[Child]:
        return [
            child for child in (self._serving, self._coming, self._spare, *self._leaving) if child is not None
        ]

    async def _finish(self) -> None:
        children = self._children()
        for child in children:
            child.signal(signal.SIGTERM)
        if children:
            _, late = await asyncio.wait([child.end for child in children], timeout=self._patience_s)
            if late:
                for child in children:
                    child.signal(signal.SIGKILL)
                await asyncio.wait(late)


def _names(files: Sequence[str]) -> str:
    here = Path.cwd()
    shown = [str(Path(file).relative_to(here)) if Path(file).is_relative_to(here) else file for file in files]
    return shortened(", ".join(shown), NAMES_CHARS_MAX)
