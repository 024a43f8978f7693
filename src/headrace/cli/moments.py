"""Times and offsets as the command line takes them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import NamedTuple

from headrace import errors
from headrace.ports.look import us_of

_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}
_AGO = re.compile(r"([0-9]{1,9})([smhd])")

#: The highest offset of a journal: a 64-bit integer.
OFFSET_MAX, OFFSET_DIGITS_MAX = (1 << 63) - 1, 19


class Bound(NamedTuple):
    """An end of a stretch of history: an offset, or a time in microseconds since 1970; ``None`` = neither."""

    offset: int | None = None
    us: int | None = None


#: No end: the whole of history.
EVER = Bound()


def stretch_of(first: str | None, last: str | None, now_us: int) -> tuple[Bound, Bound]:
    """Return both ends, of ``--from`` and ``--to``; raises `CommandInvalid`, also where they cross."""
    begin, end = bound_of("--from", first, now_us), bound_of("--to", last, now_us)
    for one, other in zip(begin, end, strict=True):
        if one is not None and other is not None and one > other:
            raise errors.CommandInvalid(
                problem=f"--from {first} is beyond --to {last}",
                hint=f"--from names the beginning: --from {last} --to {first}",
            )
    return begin, end


def bound_of(flag: str, text: str | None, now_us: int) -> Bound:
    """Return the end that a flag names; raises `CommandInvalid`."""
    if text is None:
        return EVER
    if text.isascii() and text.isdecimal():
        if len(text) > OFFSET_DIGITS_MAX or int(text) > OFFSET_MAX:
            raise errors.CommandInvalid(problem=f"{flag} is an offset of at most {OFFSET_MAX:,}")
        return Bound(offset=int(text))
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return Bound(us=now_us - int(ago[1]) * _UNITS_S[ago[2]] * 1_000_000)
    try:
        time = datetime.fromisoformat(text)
        zoned = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        return Bound(us=us_of(zoned))
    except (ValueError, OverflowError):
        raise errors.CommandInvalid(
            problem=f"{flag} {text!r} is neither an offset nor a time",
            hint="a time is 2026-05-04, 2026-05-04T09:00 (UTC), 2026-05-04T09:00+02:00, or 15m, 2h, 3d ago",
        ) from None
