"""``headrace demo``: the packaged example app on a stream of messages, and what came of it."""

from __future__ import annotations

import asyncio
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import errors
from headrace.cli.options import Json, examples
from headrace.cli.output import Exit, Progress, counted, paint, put, put_json, say, warn, width_of

if TYPE_CHECKING:
    from headrace.demo.stream import Report

EVENTS_DEFAULT = 3_000
EVENTS_MAX = 1_000_000
INTENTS_SHOWN_MAX = 12
BAR_CHARS_MAX = 40

_EPILOG = examples(
    "headrace demo",
    "headrace demo --events 20000 --json",
    "headrace demo --journal headrace.db",
    "headrace demo --model-to intent.onnx",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("demo", epilog=_EPILOG)(_demo)


def _demo(
    events: Annotated[
        int, typer.Option("--events", min=1, max=EVENTS_MAX, help="Messages to publish.")
    ] = EVENTS_DEFAULT,
    journal: Annotated[
        str | None,
        typer.Option(
            "--journal",
            help="Use this journal instead of a new one in a temporary folder.",
            show_default=False,
        ),
    ] = None,
    model_to: Annotated[
        Path | None,
        typer.Option("--model-to", help="Write the intent model to this file, and end.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> int:
    """Run the example app: messages of customers are published, routed by a model, counted, checked."""
    if model_to is not None:
        return _write_model(model_to)
    folder = Path(tempfile.mkdtemp(prefix="headrace-demo-")) if journal is None else None
    try:
        report = _run(_path(journal, folder), events)
    except BaseException:
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if as_json:
        put_json(_document(report))
    else:
        _put_text(report)
    for one in report.violations:
        warn(f"verify: {one.rule}: {one.where}")
    whole = report.published == report.handled and not report.violations
    return Exit.DONE if whole else Exit.NO


def _path(journal: str | None, folder: Path | None) -> str:
    from headrace.settings import path_of

    return str(folder / "headrace.db") if folder is not None else path_of(journal or "")


def _run(journal: str, events: int) -> Report:
    from headrace.cli.run import quicken
    from headrace.demo import stream

    quicken()
    progress = Progress(events)
    try:
        return asyncio.run(stream.run(journal, events, progress.at))
    finally:
        progress.end()


def _write_model(path: Path) -> int:
    """Write the model, whole or not at all; another file of that name is left alone."""
    content = files("headrace.demo").joinpath("intent.onnx").read_bytes()
    if path.exists():
        if path.is_file() and path.read_bytes() == content:
            say(f"{path} is there already")
            return Exit.DONE
        raise errors.CommandInvalid(problem=f"{path} exists and is another file", hint="choose another name")
    if not path.absolute().parent.is_dir():
        raise errors.CommandInvalid(
            problem=f"there is no folder {path.absolute().parent}", hint="make it first"
        )
    part = path.with_name(f"{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as fault:
        with suppress(OSError):
            part.unlink()
        raise errors.CommandInvalid(
            problem=f"{path} cannot be written: {fault.strerror}", hint="choose another folder"
        ) from None
    say(f"wrote {path} ({len(content):,} bytes)")
    return Exit.DONE


# --- what came of it --------------------------------------------------------------------------


def _document(report: Report) -> dict[str, Any]:
    return {
        "published": report.published,
        "handled": report.handled,
        "emitted": report.emitted,
        "dead": report.dead,
        "p50_ms": report.percentile_ms(0.5),
        "p95_ms": report.percentile_ms(0.95),
        "events_per_s": round(report.published / report.seconds, 1),
        "model_version": report.model_version,
        "escalated": report.escalated,
        "seconds": round(report.seconds, 3),
        "violations": [one._asdict() for one in report.violations],
        "journal": report.journal,
    }


def _put_text(report: Report) -> None:
    per_s = report.published / report.seconds
    put(
        f"{counted(report.published, 'message')} published, {report.handled:,} handled,"
        f" {counted(report.emitted, 'event')} emitted, {counted(report.dead, 'dead letter')}"
    )
    put(f"{per_s:,.0f} messages/s with model {report.model_version}")
    sound = paint("clean", "green") if not report.violations else paint("NOT CLEAN", "red")
    put(f"verify: {sound} (checksums, accounting, versions, causes)")
    put()
    p50, p95 = report.percentile_ms(0.5), report.percentile_ms(0.95)
    put(paint(f"latency, published to committed: p50 {p50:.1f} ms, p95 {p95:.1f} ms", "bold"))
    _put_bars(_histogram(report.latencies_us))
    put()
    top = report.intents.most_common(INTENTS_SHOWN_MAX)
    put(paint(f"intents, the first {len(top)} of {len(report.intents)}", "bold"))
    _put_bars(top)
    put(f"  {counted(report.escalated, 'message')} the model was unsure of went on to a person (Escalated)")
    put()
    put(paint("next", "bold"))
    for line in _next(report):
        put(f"  {line}")


def _next(report: Report) -> list[str]:
    where = f"--journal {shlex.quote(report.journal)}"
    asked = [f"show {report.example}"] if report.example else []
    asked += ["status", "tail --topic escalated", "model history"]
    return [f"{_command()} {one} {where}" for one in asked]


def _command() -> str:
    """Return what to type for ``headrace`` here: `make demo` runs it from a folder that no path leads to."""
    if shutil.which("headrace") is not None:
        return "headrace"
    own = Path(sys.argv[0])
    return shlex.quote(str(own)) if own.name == "headrace" else f"{shlex.quote(sys.executable)} -m headrace"


def _put_bars(rows: Sequence[tuple[str, int]]) -> None:
    most = max((count for _, count in rows), default=0)
    names = max((len(name) for name, _ in rows), default=0)
    room = min(BAR_CHARS_MAX, max(10, width_of() - names - 14))
    for name, count in rows:
        # Whole blocks and eighths: a bar of one message is seen too.
        eighths = max(1, round(count / most * room * 8)) if count else 0
        bar = "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()
        put(f"  {name.rjust(names)}  {paint(bar.ljust(room), 'cyan')}  {count:>7,}")


def _histogram(latencies_us: Sequence[int]) -> list[tuple[str, int]]:
    """Return counts by doubling classes, from a quarter of a millisecond on; empty ends are left out."""
    counts = Counter((max(0, one) // 250).bit_length() for one in latencies_us)
    classes = range(min(counts, default=0), max(counts, default=-1) + 1)
    return [(f"{_bound_ms(one - 1)} to {_bound_ms(one)} ms", counts[one]) for one in classes]


def _bound_ms(number: int) -> str:
    return "0" if number < 0 else f"{0.25 * 2**number:g}"
