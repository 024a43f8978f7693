"""The way into every command: Ctrl-C ends it quietly; streams that are closed or full do no harm."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from typing import NoReturn

_STDERR = 2


def main() -> NoReturn:
    """Run the command line of this process and end it."""
    _open_streams()
    code = 130
    try:
        from headrace.cli.invoke import invoke

        code = invoke(sys.argv[1:])
    except KeyboardInterrupt:
        with suppress(OSError):  # it may be closed or full too
            print("interrupted", file=sys.stderr)
    except BrokenPipeError:  # of a command that only shows something: whoever reads has had enough
        code = 0
    code = _flushed(code)
    # What is left is Python's own end: a second Ctrl-C in it should not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def _flushed(code: int) -> int:
    """Write what is left in the streams; returns the exit code, which tells of data that is lost."""
    from headrace.cli.output import exit_with, lose, unheard

    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as fault:
            if stream is sys.stdout and not isinstance(fault, BrokenPipeError):
                lose(fault)
            else:
                unheard(stream)
    return exit_with(code)


def _open_streams() -> None:
    """Put nothing in the place of streams that were closed: else a journal would get their numbers."""
    found = os.open(os.devnull, os.O_RDWR)
    while found <= _STDERR:
        os.set_inheritable(found, True)  # noqa: FBT003 - the function takes it so
        found = os.open(os.devnull, os.O_RDWR)
    os.close(found)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: PTH123, SIM115 - for good
