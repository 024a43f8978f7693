"""Tracebacks as users read them: they begin in the user's code, not with the frames that led there."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import traceback
from pathlib import Path
from types import TracebackType

_PACKAGE = Path(__file__).parents[1]
#: Whatever stands between us and the user's code; the demo is an app like any other.
_OURS = (
    f"{_PACKAGE}/",
    "<frozen importlib",
    f"{Path(asyncio.__file__).parent}/",
    f"{Path(concurrent.futures.__file__).parent}/",
)
_CONTEXTLIB, _DEMO = contextlib.__file__, f"{_PACKAGE}/demo/"


def users_traceback(error: BaseException, *, ours: bool = True) -> str:
    """Return the traceback of an error from the first frame of the user on.

    Where there is none it is the whole, or, without ``ours``, no frame at all.
    """
    first: TracebackType | None = error.__traceback__
    while first is not None and _is_ours(first.tb_frame.f_code.co_filename):
        first = first.tb_next
    shown = traceback.TracebackException(type(error), error, first or (error.__traceback__ if ours else None))
    return "".join(shown.format())


def _is_ours(file: str) -> bool:
    if file.startswith(_DEMO):
        return False
    return file.startswith(_OURS) or "/importlib/" in file or file == _CONTEXTLIB
