#!/usr/bin/env python3
"""Writes docs/reference from the code: API, commands, errors, settings, metrics.

tools/reference.py            write the pages
tools/reference.py --check    exit status 1 where a page is not what would be written
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _api
import typer

from headrace import errors, settings
from headrace.cli.invoke import tree
from headrace.lens.endpoint import Numbers

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "reference"
MADE = "<!-- Made by tools/reference.py from the code; not written by hand. -->"
HELP_CHARS = 88
COMMANDS = """\
`headrace COMMAND --help` prints the same. Data goes to stdout, everything else to stderr; what reads has
`--json` or `--jsonl`. [Settings](settings.md) may stand in the environment or in a file.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | it ran and the answer is no, or some items failed |
| 2 | it could not run: usage, settings, import |
| 3 | journal or model out of reach |
| 130 | interrupted |"""
ERRORS = """\
Every error has a code, says whose fault it is, what happens next and what to do. `headrace explain CODE`
prints the same. In Python they are the classes of `headrace.errors`, with `code`, `message`, `hint`,
`fault`, `retryable` and `context`; braces stand for what an error names when it is raised."""
SETTINGS = """\
A flag wins over the environment, that over `headrace.toml` or `[tool.headrace]` of the nearest
`pyproject.toml`, that over the default. What an app says itself (`App(journal=...)`) wins over all but a
flag. `headrace settings` shows what is in force, and where each value comes from."""
METRICS = """\
What `/metrics` of a worker tells, with `--metrics-port`; [Watching workers](../how-to/watch.md) says how to
use it. Times are in seconds, as Prometheus has it. Counters begin with the process."""
PROCESS = """\
Beside them stand the usual metrics of a process (`process_cpu_seconds_total`,
`process_resident_memory_bytes`, ...)."""
#: The families of errors, by the hundreds of their codes.
FAMILIES = {0: "In general", 1: "Events", 2: "The journal", 3: "Models", 4: "Handlers", 5: "Usage"}


# --- commands -----------------------------------------------------------------------------------


def commands() -> str:
    """Return the page of the commands: the help of each, as it is printed."""
    top: Any = typer.main.get_command(tree())
    parts = [
        "# Commands",
        COMMANDS,
        *(
            part
            for path, text in _helps(top, None, "headrace")
            for part in (f"## {path}", f"```text\n{text}\n```")
        ),
    ]
    return "\n\n".join(parts)


def _helps(command: Any, parent: Any, name: str) -> Iterator[tuple[str, str]]:
    context = command.context_class(command, info_name=name, parent=parent, terminal_width=HELP_CHARS)
    context.max_content_width = HELP_CHARS
    below = getattr(command, "commands", None)
    if below is None or parent is None:
        lines = command.get_help(context).splitlines()
        yield context.command_path, "\n".join(line.rstrip() for line in lines).strip()
    for word, one in (below or {}).items():
        yield from _helps(one, context, word)


# --- errors -------------------------------------------------------------------------------------


def all_errors() -> str:
    """Return the page of the errors: what `headrace explain` prints, and what is in the class."""
    parts = [
        "# Errors",
        ERRORS,
    ]
    family = -1
    for code, kind in errors.catalogue().items():
        hundred = int(code.removeprefix("HR-E")) // 100
        if hundred != family:
            family = hundred
            parts.append(f"## {FAMILIES[family]}")
        parts += _error(code, kind)
    return "\n\n".join(parts)


def _error(code: str, kind: type[errors.HeadraceError]) -> Iterator[str]:
    first, *rest = (inspect.getdoc(kind) or "").split("\n\n")
    yield f"### {code} {kind.__name__}"
    yield f"**{_safe(_api.prose(first))}**"
    for part in rest:
        yield _safe(_api.prose(part))
    again = "It is tried again by itself." if kind.retryable else "It is not tried again by itself."
    yield f"Whose fault: {kind.fault.value}. {again}"


def _safe(text: str) -> str:
    """Return prose in which nothing is taken for markup, but for names in backquotes."""
    parts = text.split("`")
    parts[::2] = [one.replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_") for one in parts[::2]]
    return "`".join(parts)


# --- settings -----------------------------------------------------------------------------------


def all_settings() -> str:
    """Return the page of the settings."""
    rows = [
        "| setting | environment | default | values | meaning |",
        "|---|---|---|---|---|",
        *map(_setting, fields(settings.Settings)),
    ]
    last = (
        "Beside them `HEADRACE_NO_PROGRESS` and `NO_COLOR` are about one terminal, and no settings of an app."
    )
    return "\n\n".join(["# Settings", SETTINGS, "\n".join(rows), last])


def _setting(field: Any) -> str:
    source = inspect.getsource(settings.Settings).splitlines()
    number = next(at for at, line in enumerate(source, 1) if line.strip().startswith(f"{field.name}:"))
    meaning = _api.prose(" ".join(_api.said_above(source, number)))
    low, high = settings._BOUNDS.get(field.name, (None, None))  # noqa: SLF001 - the page shows them
    choices = settings._CHOICES.get(field.name, ())  # noqa: SLF001 - as above
    values = f"{low:,} to {high:,}" if low is not None else ", ".join(f"`{one}`" for one in choices)
    environment = f"`{settings.ENVIRONMENT}{field.name.upper()}`"
    return f"| `{field.name}` | {environment} | `{field.default}` | {values} | {meaning} |"


# --- metrics ------------------------------------------------------------------------------------


def metrics() -> str:
    """Return the page of the metrics, in the order in which a worker tells them."""
    nothing: dict[Any, Any] = {}
    counted = SimpleNamespace(
        handled=nothing, emitted=nothing, dead=nothing, handler_s=nothing, age_s=nothing, commit_s=nothing
    )
    counts: Any = SimpleNamespace(counted=lambda: counted)
    health: Any = SimpleNamespace(looks=(), silence_s=lambda: 0.0, ready=lambda: SimpleNamespace(good=True))
    rows = [_metric(family) for family in Numbers(counts, health).collect()]
    table = "\n".join(["| name | kind | labels | meaning |", "|---|---|---|---|", *rows])
    return f"# Metrics\n\n{METRICS}\n\n{table}\n\n{PROCESS}"


def _metric(family: Any) -> str:
    name = f"{family.name}_total" if family.type == "counter" else family.name
    labels = ", ".join(family._labelnames)  # noqa: SLF001 - the library has no other name for it
    return f"| `{name}` | {family.type} | {labels} | {family.documentation} |".replace("  |", " |")


# --- the pages ----------------------------------------------------------------------------------

PAGES: dict[str, Callable[[], str]] = {
    "api.md": _api.page,
    "cli.md": commands,
    "errors.md": all_errors,
    "settings.md": all_settings,
    "metrics.md": metrics,
}


def main() -> int:
    """Write the pages, or compare them with what is there."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare; write nothing")
    parser.add_argument("--out", type=Path, default=OUT, help="the folder of the pages")
    options = parser.parse_args()
    stale = 0
    for name, made in PAGES.items():
        page: Path = options.out / name
        head, _, rest = made().partition("\n\n")
        text = f"{head}\n\n{MADE}\n\n{rest}\n"
        if not options.check:
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(text, "utf-8")
            continue
        there = page.read_text("utf-8") if page.exists() else ""
        difference = difflib.unified_diff(
            there.splitlines(), text.splitlines(), name, "the code", lineterm="", n=1
        )
        lines = list(difference)
        print("\n".join(lines), end="\n" if lines else "")
        stale += bool(lines)
    if stale:
        print(f"{stale} pages are not what the code says: make reference", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
