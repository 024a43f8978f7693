"""What commands print: data on stdout, everything else on stderr; and what their exit codes mean."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import IntEnum
from typing import IO, Any
from uuid import UUID

from headrace import errors
from headrace.errors.tree import MESSAGE_CHARS_MAX, bounded
from headrace.world import SystemClock


class Exit(IntEnum):
    """What a command says to the shell."""

    DONE = 0
    NO = 1  # it ran, and the answer is no, or some items failed
    UNUSABLE = 2  # it could not run: usage, settings, import
    UNREACHABLE = 3  # journal, broker or model
    INTERRUPTED = 130


#: The first that fits decides; a family stands after its members.
_EXITS: tuple[tuple[type[errors.HeadraceError], Exit], ...] = (
    (errors.EventNotFound, Exit.NO),
    (errors.HandlerUnknown, Exit.NO),
    (errors.RedriveRefused, Exit.NO),
    (errors.CopyRefused, Exit.NO),
    (errors.BackupRefused, Exit.NO),
    (errors.RetireRefused, Exit.NO),
    (errors.WalHeld, Exit.NO),
    (errors.NotOnKafka, Exit.UNUSABLE),
    (errors.RenameRefused, Exit.UNUSABLE),
    (errors.RetentionInvalid, Exit.UNUSABLE),
    (errors.CopyDiffers, Exit.NO),
    (errors.ReplayRefused, Exit.NO),
    (errors.TopicMismatch, Exit.NO),
    (errors.JournalUrlInvalid, Exit.UNUSABLE),
    (errors.JournalLoopBound, Exit.UNUSABLE),
    (errors.JournalError, Exit.UNREACHABLE),
    (errors.VersionUnknown, Exit.NO),
    (errors.VersionInactive, Exit.NO),
    (errors.ModelError, Exit.UNREACHABLE),
    (errors.ContractInvalid, Exit.UNUSABLE),
    (errors.TypeTwice, Exit.UNUSABLE),
    (errors.EventError, Exit.NO),
    (errors.OutputLost, Exit.NO),
)


def exit_of(error: errors.HeadraceError) -> Exit:
    """Return the exit code that an error ends a command with."""
    return next((code for kind, code in _EXITS if isinstance(error, kind)), Exit.UNUSABLE)


#: The width of a file or a pipe.
ENDLESS = 1_000_000

# --- whoever reads may go away, and a disk may be full ----------------------------------------

_ends_with_its_reader: list[bool] = []
#: That data could not be written is told once, and decides the exit code.
_lost: list[errors.OutputLost] = []


@contextmanager
def ending_with_reader() -> Generator[None]:
    """While the block lasts, printing is all that the command does: when nobody reads any more, it ends.

    All others go on to their end: half of what was asked for, and exit code 0, would be worse than silence.
    """
    _ends_with_its_reader.append(True)
    try:
        yield
    finally:
        _ends_with_its_reader.pop()


def _write(text: str, stream: IO[str], *, flush: bool = False) -> None:
    try:
        print(text, end="", file=stream, flush=flush)
    except BrokenPipeError:
        if _ends_with_its_reader:
            raise
        unheard(stream)
    except OSError as fault:
        if stream is sys.stderr:  # nowhere is left to tell it, and the work goes on
            return
        lost = lose(fault)
        if _ends_with_its_reader:
            raise lost from fault


def unheard(stream: IO[str]) -> None:
    """Let go of what is left to be written: whoever read it has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def lose(fault: OSError) -> errors.OutputLost:
    """Let go of all data from here on, since it cannot be written; say so once, and return the error."""
    unheard(sys.stdout)
    if not _lost:
        _lost.append(errors.OutputLost(problem=fault.strerror or str(fault)))
        show_error(_lost[0])
    return _lost[0]


def exit_with(code: int) -> int:
    """Return the exit code of a command that ends with this one: without its data it has not done all."""
    return exit_of(_lost[0]) if _lost and code == Exit.DONE else code


# --- words on stderr --------------------------------------------------------------------------


def say(text: str = "") -> None:
    """Tell the person something that is not data.

    A line is one write, without a buffer too: workers share a stderr, and theirs would run into each other.
    """
    _write(f"{text}\n", sys.stderr, flush=True)


def warn(text: str) -> None:
    """Tell of something that is wrong, without ending."""
    say(f"{paint('warning:', 'yellow', sys.stderr)} {bounded(text, MESSAGE_CHARS_MAX)}")


def show_error(error: errors.HeadraceError, prefix: str = "") -> None:
    """Print an error as every command does: code and message, a blank line, the hint."""
    say(f"{paint(f'error[{error.code}]:', 'red', sys.stderr)} {prefix}{told(error.message)}")
    if error.hint:
        say()
        say(f"{paint('hint:', 'cyan', sys.stderr)} {told(error.hint)}")


def told(text: str) -> str:
    """Return text of an error for the terminal: what docstrings set in double backticks has single ones."""
    return plain(text.replace("``", "`"), lines=True)


# --- data on stdout ---------------------------------------------------------------------------


def put(text: str = "") -> None:
    """Print a line of data."""
    _write(f"{text}\n", sys.stdout)


def put_json(value: Any) -> None:
    """Print one JSON document: indented for a person, on one line for a program."""
    indent = 2 if sys.stdout.isatty() else None
    _write(f"{json.dumps(value, default=_jsonable, ensure_ascii=False, indent=indent)}\n", sys.stdout)


def put_json_line(value: Any) -> None:
    """Print one line of a stream of JSON, at once and in one write."""
    _write(f"{json.dumps(value, default=_jsonable, ensure_ascii=False)}\n", sys.stdout, flush=True)


def _jsonable(value: object) -> object:
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, UUID):
        return str(value)
    raise TypeError(type(value).__name__)


def iso(time: datetime | None) -> str | None:
    """Return a time as RFC 3339 has it, in UTC, to the microsecond."""
    return None if time is None else time.astimezone(UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def mib(size_bytes: int) -> str:
    """Return a size for people."""
    return f"{size_bytes / (1 << 20):,.1f} MiB"


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: ``1 event``, ``2,000 events``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def plain(text: str, *, lines: bool = False) -> str:
    """Return text that cannot steer a terminal: what is not printable is spelled out."""
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(one if one.isprintable() or one in kept else _spelled(one) for one in text)


def _spelled(one: str) -> str:
    return one.encode("unicode_escape", "surrogatepass").decode("ascii")


def put_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, numbers: Iterable[int] = ()) -> None:
    """Print a table without boxes; columns of numbers stand to the right."""
    cells = [[plain(_cell(one)) for one in row] for row in rows]
    widths = [max(len(name), *(len(row[at]) for row in cells), 0) for at, name in enumerate(head)]
    right = set(numbers)

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            text.rjust(widths[at]) if at in right else text.ljust(widths[at]) for at, text in enumerate(row)
        ).rstrip()

    put(paint(line(head), "bold"))
    for row in cells:
        put(line(row))


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def put_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one a line; what is ``None`` or empty is left out."""
    width = max((len(name) for name in facts), default=0)
    for name, value in facts.items():
        if value not in (None, "", (), []):
            put(f"  {paint(name.ljust(width), 'dim')}  {plain(_cell(value))}")


def width_of() -> int:
    """Return how many characters a line has: those of the terminal, or any number where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else ENDLESS


def shortened(text: str, size: int) -> str:
    """Return text of at most ``size`` characters."""
    return text if len(text) <= size else text[: max(0, size - 1)] + "…"


# --- colour -----------------------------------------------------------------------------------

_STYLES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}


def paint(text: str, style: str, stream: IO[str] | None = None) -> str:
    """Return the text in a colour, where the stream shows colours and nobody has said no."""
    return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if _colours(stream or sys.stdout) else text


def _colours(stream: IO[str]) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


# --- questions and progress -------------------------------------------------------------------


def confirmed(question: str, *, yes: bool) -> bool:
    """Return whether to go on; without a terminal there is nobody to ask, so ``--yes`` must say so."""
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise errors.CommandInvalid(problem="there is no terminal to confirm on", hint="add --yes")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


class Progress:
    """One line on the terminal with rate and time left; silent for a second, and where nobody looks."""

    PATIENCE_NS, REDRAW_NS = 1_000_000_000, 100_000_000

    def __init__(self, total: int | None, unit: str = "") -> None:
        self._clock = SystemClock()
        #: ``None`` where nobody knows how much there is.
        self.total, self._unit = total, unit
        self._started_ns = self._clock.boot_ns()
        self._next_ns = self._started_ns + self.PATIENCE_NS
        self._drawn = False
        self._wanted = sys.stderr.isatty() and not os.environ.get("HEADRACE_NO_PROGRESS")

    def at(self, done: int, note: str = "") -> None:
        """Show how far it is."""
        now = self._clock.boot_ns()
        if not self._wanted or now < self._next_ns:
            return
        self._next_ns = now + self.REDRAW_NS
        rate = done / ((now - self._started_ns) / 1e9)
        left = f", {(self.total - done) / rate:.0f} s left" if done and self.total is not None else ""
        of = "" if self.total is None else f" of {self.total:,}"
        text = f"{done:,}{of}{self._unit}  {rate:,.0f}/s{left}  {note}"
        room = os.get_terminal_size(sys.stderr.fileno()).columns - 1
        print(f"\r\x1b[K{shortened(text, room)}", end="", file=sys.stderr, flush=True)
        self._drawn = True

    def told(self, done: int, total: int) -> None:
        """Show how far it is, where each step says how much there is."""
        self.total = total
        self.at(done)

    def end(self) -> None:
        """Take the line away."""
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._drawn = False
