"""The way into every command: Ctrl-C and a closed pipe end quietly, at any moment."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line of this process and end it."""
    code = 130
    try:
        from headrace.cli.invoke import invoke

        code = invoke(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except BrokenPipeError:  # whoever reads our output has had enough
        code = 0
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    # What is left is Python's own end: a second Ctrl-C in it should not print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)
