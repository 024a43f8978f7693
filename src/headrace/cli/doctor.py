"""``headrace doctor``: is this machine fit for the journal and the app?  Nothing is changed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace import errors
from headrace.cli.options import Index, Journal, Json, examples
from headrace.cli.output import Exit, counted, paint, put, put_json, told

if TYPE_CHECKING:
    from headrace.journal.holders import Hold
    from headrace.ports.look import Look, StoredEvent
    from headrace.settings import Settings

#: As large as the WAL may become: with less room than that a busy journal soon meets a full disk.
FREE_BYTES_MIN = WAL_BYTES_WARN = 64 << 20
#: A process that keeps the write lock for so long is in everybody's way; a commit holds it for 0.5 ms.
WRITE_LOCK_LOOKS, WRITE_LOCK_NAP_S = 20, 0.05
#: Clocks of two processes of one machine do not differ by more.
AHEAD_US_MAX = 1_000_000
#: File systems that are gone after a restart.
_FLEETING = ("tmpfs", "ramfs", "overlay")
_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


class Check(NamedTuple):
    """One thing that was looked at."""

    #: ``ok``, ``warn`` or ``fail``.
    level: str
    name: str
    told: str
    hint: str = ""


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    epilog = examples(
        "headrace doctor",
        "headrace doctor app:app",
        "headrace doctor --journal /var/lib/support/headrace.db --json",
    )
    top.command("doctor", epilog=epilog)(_doctor)


def _doctor(
    target: Annotated[
        str | None,
        typer.Argument(metavar="[MODULE:APP]", help="Load the models of this app, too.", show_default=False),
    ] = None,
    journal: Journal = None,
    index: Index = None,
    as_json: Json = False,
) -> int:
    """Check disk, journal, locks, clock, models and kernel rights; exit 1 when something is not fit."""
    found: list[Check] = []
    for check in _checks(target, journal, index):
        found.append(check)
        if not as_json:
            _put(check)
    fit = all(check.level != "fail" for check in found)
    if as_json:
        put_json({"fit": fit, "checks": [check._asdict() for check in found]})
    return Exit.DONE if fit else Exit.NO


def _put(check: Check) -> None:
    put(f"{paint(check.level.ljust(4), _COLOURS[check.level])}  {check.name}: {told(check.told)}")
    if check.hint:
        put(f"      {paint('hint:', 'cyan')} {told(check.hint)}")


def _failed(name: str, fault: errors.HeadraceError) -> Check:
    return Check("fail", name, f"[{fault.code}] {fault.message}", fault.hint)


def _checks(target: str | None, journal: str | None, index: str | None) -> Iterator[Check]:
    from headrace.settings import ENVIRONMENT, load, mistyped, without_secrets

    yield _sqlite()
    for given, meant in mistyped():
        yield Check("warn", "settings", f"{given} in the environment means nothing", f"did you mean {meant}?")
    try:
        settings = load({"journal": journal, "index": index})
    except errors.HeadraceError as fault:
        yield _failed("settings", fault)
    else:
        shown = without_secrets(settings.journal)
        yield Check("ok", "settings", f"journal {shown} ({ENVIRONMENT}JOURNAL, --journal)")
        yield from _journal(settings)
    yield _clock()
    yield _wake_up()
    yield _kernel()
    if target is not None:
        yield from _models(target)


def _sqlite() -> Check:
    from headrace.journal.file import library_version, safe_version

    version = library_version()
    if safe_version(version):
        return Check("ok", "sqlite", f"version {version}")
    return Check("fail", "sqlite", f"version {version} can lose commits", "pip install -U apsw")


# --- the journal ------------------------------------------------------------------------------


def _journal(settings: Settings) -> Iterator[Check]:
    from headrace.settings import MEMORY, path_of
    from headrace.wiring import on_kafka

    if not on_kafka(settings):
        try:
            path = path_of(settings.journal)
        except errors.HeadraceError as fault:
            yield _failed("journal", fault)
            return
        if path == MEMORY:
            yield Check("ok", "journal", "in memory: for one process, gone at its end")
            return
        yield from _place(Path(path).absolute().parent)
        # Before the journal is opened: see `holders`.
        yield from _locks(path)
    yield from _content(settings)


def _place(folder: Path) -> Iterator[Check]:
    from headrace.journal.file import filesystem_of, on_network

    if not folder.is_dir():
        yield Check("fail", "file system", f"the folder {folder} does not exist", "make it")
        return
    kind = filesystem_of(folder.resolve()) or "unknown"
    if on_network(kind):
        hint = "put the journal on a local disk, or use Kafka"
        yield Check("fail", "file system", f"{kind}: locks over a network cannot be relied on", hint)
    elif kind in _FLEETING:
        hint = "a journal that is to last belongs on a disk (in a container: on a volume)"
        yield Check("warn", "file system", f"{kind}: what it holds is gone with the machine", hint)
    else:
        yield Check("ok", "file system", kind)
    free = shutil.disk_usage(folder).free
    level, hint = (
        ("ok", "") if free >= FREE_BYTES_MIN else ("fail", "make room: a full disk stops everything")
    )
    yield Check(level, "room", f"{free >> 20:,} MiB free in {folder}", hint)


def _locks(path: str) -> Iterator[Check]:
    """Tell of the WAL and of who is in the way of writers, or of the WAL starting again."""
    from headrace.journal.holders import holders
    from headrace.world import SystemClock

    def writer(held: list[Hold]) -> Hold | None:
        return next((one for one in held if one.lock == "write"), None)

    try:
        held = holders(path)
        first = writer(held)
        clock, looks = SystemClock(), 0
        while first is not None and not first.stopped and looks < WRITE_LOCK_LOOKS:
            clock.nap(WRITE_LOCK_NAP_S)
            looks, now = looks + 1, writer(holders(path))
            first = now if now is not None and now.pid == first.pid else None
    except OSError as fault:
        yield Check(
            "warn", "locks", f"they cannot be looked at: {fault.strerror}", "run it as the workers' user"
        )
        return
    yield _write_lock(first)
    yield _wal(path, held)


def _write_lock(held: Hold | None) -> Check:
    if held is None:
        return Check("ok", "write lock", "nobody keeps it")
    who = f"process {held.pid} ({held.command})" if held.pid else "a process of another container"
    if held.stopped:
        hint = (
            f"kill -CONT {held.pid} lets it go on; kill -KILL {held.pid} ends it, and SQLite undoes its part"
        )
        return Check("fail", "write lock", f"{who} is stopped inside a write: nobody else can write", hint)
    seconds = WRITE_LOCK_LOOKS * WRITE_LOCK_NAP_S
    return Check("warn", "write lock", f"{who} was seen with it for {seconds:.0f} s", "look what it does")


def _wal(path: str, held: list[Hold]) -> Check:
    wal = Path(f"{path}-wal")
    size = wal.stat().st_size if wal.exists() else 0
    mode = f"WAL of {size >> 10:,} KiB"
    if size <= WAL_BYTES_WARN:
        return Check("ok", "wal", mode)
    readers = [one for one in held if one.lock == "read"]
    who = ", ".join(f"{one.pid}{' (stopped)' if one.stopped else ''}" for one in readers) or "nobody now"
    hint = "a reader that does not end keeps it from starting again: end it"
    return Check("warn", "wal", f"{mode}; held open by {who}", hint)


def _content(settings: Settings) -> Iterator[Check]:
    """Open the journal as a command would, and look at its newest event."""
    from headrace.cli.access import looked
    from headrace.world import SystemClock

    async def look(at: Look) -> tuple[int, list[StoredEvent]]:
        return len(await at.topics()), await at.feed().newest(1)

    try:
        topics, newest = looked(settings.journal, settings.index, look)
    except errors.JournalMissing:
        yield Check("ok", "journal", "not there yet; the first worker or publisher makes it")
        return
    except errors.HeadraceError as fault:
        yield _failed("journal", fault)
        return
    yield Check("ok", "journal", f"it opens, and holds {counted(topics, 'topic')}")
    for event in newest:
        ahead_us = event.envelope.time.timestamp() * 1e6 - SystemClock().wall_us()
        if ahead_us > AHEAD_US_MAX:
            told = f"the newest event is {ahead_us / 1e6:,.0f} s ahead of this clock"
            yield Check("warn", "clock", told, "the clock was set back, or a publisher's is wrong")


# --- the machine ------------------------------------------------------------------------------


def _clock() -> Check:
    from headrace.lens.machine import clock_is_kept
    from headrace.ports.look import moment
    from headrace.world import SystemClock

    now = moment(SystemClock().wall_us()).strftime("%Y-%m-%d %H:%M:%SZ")
    kept = clock_is_kept()
    if kept is False:
        return Check("warn", "clock", f"{now}; nobody keeps it true", "start chrony or another time service")
    return Check("ok", "clock", f"{now}{'; kept true' if kept else ''}")


def _wake_up() -> Check:
    from headrace.journal.notify import POLL_MS, has_inotify

    if has_inotify():
        return Check("ok", "wake-up", "inotify: other processes hear of a commit at once")
    hint = "on Linux: fs.inotify.max_user_instances may be used up"
    return Check("warn", "wake-up", f"no inotify: they look every {POLL_MS} ms", hint)


def _kernel() -> Check:
    from headrace.lens.machine import kernel_rights

    rights = kernel_rights()
    names = [name for name, may in rights._asdict().items() if may]
    told = f"may use {', '.join(names)}" if names else "none"
    if rights.bpf and rights.btf:
        return Check("ok", "kernel probes", told)
    hint = "for latency down to the kernel: CAP_BPF and CAP_PERFMON, and a kernel with BTF; all else works"
    return Check("warn", "kernel probes", told, hint)


def _models(target: str) -> Iterator[Check]:
    from headrace.cli.target import load

    for handler in load(target).handlers.values():
        if handler.model is None:
            continue
        try:
            loaded = handler.model.load()
        except errors.HeadraceError as fault:
            yield _failed(f"model of {handler.name}", fault)
            continue
        yield Check("ok", f"model of {handler.name}", f"{loaded.name}, digest {loaded.digest[:12]}")
        loaded.close()
