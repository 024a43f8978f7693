"""``headrace run``: handle the events of an app, in this process or in several."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
import os
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from headrace import errors
from headrace.cli.access import warn_of_environment
from headrace.cli.options import Index, Journal, Target, examples
from headrace.cli.output import Exit, counted, plain, say
from headrace.lens.logs import JsonLines, TextLines
from headrace.settings import without_secrets
from headrace.wiring import on_kafka
from headrace.world import SystemClock

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.runtime.worker import Worker

#: The GIL is handed over this often: a handler that computes must not keep the commits of others waiting
#: (measured beside a CPU-bound thread: 0.4-2k commits/s with Python's 5 ms, 9-18k with this).
SWITCH_INTERVAL_S = 0.0005
#: Objects between two looks of the garbage collector: events come and go without cycles.
GC_THRESHOLD = (10_000, 20, 50)
#: How often a worker that holds other partitions than before says so.
NEWS_S = 0.2
WORKERS_MAX, PORT_MAX = 64, 65_535

_EPILOG = examples(
    "headrace run app:app",
    "headrace run app:app --workers 4",
    "headrace run app:app --metrics-port 9464",
    "headrace run app:app --journal /var/lib/support/headrace.db --durability normal",
    more="Ctrl-C or SIGTERM: handlers end or are handed back within stop_grace_ms. Ctrl-C again: at once.",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("run", epilog=_EPILOG)(_run)


def _run(  # noqa: PLR0913, PLR0917 - the options of a command are its parameters
    target: Target,
    workers: Annotated[int, typer.Option("--workers", min=1, max=WORKERS_MAX, help="Worker processes.")] = 1,
    journal: Journal = None,
    index: Index = None,
    lease_ms: Annotated[
        int | None,
        typer.Option(
            "--lease-ms", help="After this long without a sign a worker counts as dead. [default: 10000]",
            show_default=False,
        ),
    ] = None,
    durability: Annotated[
        str | None,
        typer.Option(
            "--durability", help="full, or normal: a power cut may take the last commits. [default: full]",
            show_default=False,
        ),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port", min=0, max=PORT_MAX, show_default=False,
            help="Serve /metrics, /health and /ready; 0 = any free port. Further workers: the next ones.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Where it listens; there is no password.")
    ] = "127.0.0.1",
    log_format: Annotated[
        str | None,
        typer.Option(
            "--log-format", help="text for people, or json for programs. [default: text]", show_default=False
        ),
    ] = None,
    siblings: Annotated[int, typer.Option("--one-of", hidden=True)] = 0,
    ready_fd: Annotated[int | None, typer.Option("--ready-fd", hidden=True)] = None,
    standby: Annotated[bool, typer.Option("--standby", hidden=True)] = False,
) -> int:  # fmt: skip
    """Handle events until stopped; several may run on one journal, and share the partitions."""
    if standby and not _called():
        return Exit.DONE
    flags = {"journal": journal, "index": index, "lease_ms": lease_ms, "durability": durability}
    flags["log_format"] = log_format
    if not siblings:  # else the first process has said so
        warn_of_environment()
    if workers > 1:
        from headrace.cli.supervise import Supervisor
        from headrace.settings import load

        grace_s = load(flags).stop_grace_ms / 1000
        commands = [
            command_of(target, workers, {**flags, **_metrics_of(number, metrics_host, metrics_port)})
            for number in range(workers)
        ]
        return Supervisor(commands, grace_s).run()
    where = None if metrics_port is None else (metrics_host, metrics_port)
    return Process(target, flags, siblings, where, ready_fd).run()


def _called() -> bool:
    """Load what every worker needs, and wait for a byte on standard input; its end means: not needed."""
    from headrace.model.onnx import runtime

    for name in ("journal.sqlite", "runtime.worker"):
        importlib.import_module(f"headrace.{name}")
    with suppress(errors.ExtraMissing):
        runtime()
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # on a terminal it is for those who work
    called = bool(os.read(0, 1))
    signal.signal(signal.SIGINT, before)
    return called


def _metrics_of(number: int, host: str, port: int | None) -> dict[str, Any]:
    """Return the flags of one of several workers: each is scraped by itself, on a port of its own."""
    if port is None:
        return {}
    if port + number > PORT_MAX:
        raise errors.CommandInvalid(problem=f"there is no port {port + number} for worker {number + 1}")
    return {"metrics_host": host, "metrics_port": port + number if port else 0}


def command_of(target: str, workers: int, flags: dict[str, Any]) -> list[str]:
    """Return the command line of one of several workers."""
    options = [
        part
        for name, value in flags.items()
        if value is not None
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
    return [sys.executable, "-m", "headrace", "run", target, "--one-of", str(workers), *options]


class Process:
    """One worker process: signals, settings of the interpreter, and what is told on stderr."""

    def __init__(
        self,
        target: str,
        flags: dict[str, Any],
        siblings: int,
        metrics: tuple[str, int] | None = None,
        ready_fd: int | None = None,
    ) -> None:
        self._target, self._flags, self._siblings = target, flags, siblings
        self._metrics = metrics
        #: Where to say that this process serves.
        self._ready_fd = ready_fd
        self._stop = asyncio.Event()
        self._clock = SystemClock()
        self._interrupted = False
        self._name = f"[{os.getpid()}] " if siblings else ""

    def run(self) -> int:
        """Serve until stopped; returns the exit code."""
        from headrace.cli.target import load

        app = load(self._target)
        app.configure(self._flags)
        _log_to_stderr(self._name, app.settings.log_format)
        if not app.handlers:
            raise errors.TargetInvalid(
                target=self._target, problem="the app has no handlers, so there is nothing to run"
            )
        _share(app, self._siblings)
        if self._metrics is None:
            return asyncio.run(self._serve(app))
        with _Watch(app.settings.lease_ms, self._clock, *self._metrics) as watch:
            say(f"{self._name}metrics on {watch.endpoint.url}/metrics, health on /health and /ready")
            return asyncio.run(self._serve(app, watch))

    async def _serve(self, app: App, watch: _Watch | None = None) -> int:
        self._watch_signals()
        async with app:
            worker = app.worker(observer=watch.counts if watch else None)
            await worker.start_or_finish(self._stop)
            if not self._stop.is_set():
                self._tell_start(app, worker)
            if self._ready_fd is not None:
                os.write(self._ready_fd, b"\n")
                os.close(self._ready_fd)
            quicken()
            beside = [asyncio.create_task(self._tell_partitions(worker))]
            if watch is not None:
                beside.append(asyncio.create_task(watch.health.watch(worker.servers)))
            try:
                handed_back = await worker.run(self._stop)
            finally:
                for task in beside:
                    task.cancel()
        self._tell_end(worker, handed_back)
        return Exit.INTERRUPTED if self._interrupted else Exit.DONE

    # --- signals ------------------------------------------------------------------------------

    def _watch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGINT, self._interrupt)
        loop.add_signal_handler(signal.SIGTERM, self._stop.set)
        if self._siblings:  # the parent holds the other end of our standard input: its end is our end
            loop.add_reader(0, self._parent_gone)

    def _interrupt(self) -> None:
        if self._interrupted:
            say(f"{self._name}stopped at once; what was in hand is taken over when the lease runs out")
            os._exit(Exit.INTERRUPTED)
        self._interrupted = True
        self._stop.set()
        say(f"{self._name}stopping: what is in hand ends or is handed back; Ctrl-C again stops at once")

    def _parent_gone(self) -> None:
        if not os.read(0, 1):
            asyncio.get_running_loop().remove_reader(0)
            self._stop.set()

    # --- words --------------------------------------------------------------------------------

    def _tell_start(self, app: App, worker: Worker) -> None:
        settings = app.settings
        # Brokers have rules of their own.
        kept = "" if on_kafka(settings) else f", {settings.durability} durability"
        say(f"{self._name}{app.name} on {without_secrets(settings.journal)}{kept}")
        for server in worker.servers:
            serving = server.versions.serving
            version = serving.plan.version.name if serving else "none: not the active version"
            topic = app.handlers[server.name].consumes.topic
            say(f"{self._name}{server.name}: version {version}, topic {topic}")

    async def _tell_partitions(self, worker: Worker) -> None:
        """Say how many partitions are held, whenever that has changed."""
        told: dict[str, int] = {}
        while True:
            for server in worker.servers:
                held = server.consumer.held()
                if held != told.get(server.name, 0):
                    told[server.name] = held
                    say(f"{self._name}{server.name}: holds {counted(held, 'partition')}")
            await self._clock.sleep(NEWS_S)

    def _tell_end(self, worker: Worker, handed_back: int) -> None:
        finished = sum(server.finished for server in worker.servers)
        say(f"{self._name}stopped: {counted(finished, 'event')} finished, {handed_back:,} handed back")


class _Watch:
    """What is told of this process over HTTP."""

    def __init__(self, silence_ms_max: int, clock: SystemClock, host: str, port: int) -> None:
        try:
            from headrace.lens.endpoint import Endpoint
        except ModuleNotFoundError as fault:
            raise errors.ExtraMissing(feature="--metrics-port", extra="metrics") from fault
        from headrace.lens.counts import Counts
        from headrace.lens.health import Health

        self.counts = Counts(clock)
        self.health = Health(clock, silence_ms_max)
        self.endpoint = Endpoint(host, port, self.counts, self.health)

    def __enter__(self) -> Self:
        self.endpoint.__enter__()
        return self

    def __exit__(self, *exc: object) -> None:
        self.endpoint.__exit__(*exc)


def _share(app: App, workers: int) -> None:
    """Let this process use its share of the cores, and of the rates of handlers."""
    if workers <= 1:
        return
    for name, handler in app.handlers.items():
        shared = getattr(handler.model, "for_workers", None)
        app.handlers[name] = replace(
            handler,
            model=handler.model if shared is None else shared(workers),
            rate_per_s=None if handler.rate_per_s is None else handler.rate_per_s / workers,
        )


def quicken() -> None:
    """Set the interpreter up for a process that is a worker and nothing else, once all is loaded."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.collect()  # what is left now stays: the collector need not look at it again
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


class _Plain(TextLines):
    """Spells out what could steer a terminal: errors quote what is in events."""

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record), lines=True)


def _log_to_stderr(prefix: str, form: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if form == "json" else _Plain(prefix))
    log = logging.getLogger("headrace")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
