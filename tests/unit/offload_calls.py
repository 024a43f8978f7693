"""What runs in other processes: importable by its name there."""

from __future__ import annotations

import os
import threading

from headrace import errors


def double(number: int) -> tuple[int, int]:
    """Return twice the number, and who says so."""
    return 2 * number, os.getpid()


def fail(number: int) -> None:
    """Raise what Headrace raises."""
    raise errors.InputRefused("There it is.", problem=f"{number}")


def stop(number: int) -> int:
    """Ask an empty iterator for its next."""
    return next(iter(range(number, number)))


def die(number: int) -> None:
    """End the process without a word, as a segmentation fault does."""
    os._exit(number)


def hang(path: str) -> None:
    """Say who waits, then wait for good."""
    with open(path, "w", encoding="ascii") as file:  # noqa: PTH123 - as plain as it gets
        file.write(f"{os.getpid()}\n")
    threading.Event().wait()
