"""The real clock and the real chance; everything else gets them through the ports."""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from functools import cache
from pathlib import Path


class SystemClock:
    """Wall time, boot time and sleep of this machine."""

    def wall_us(self) -> int:
        """Return microseconds since 1970, UTC."""
        return time.time_ns() // 1000

    #: Nanoseconds since 1970, UTC: the system's function itself, because the hot path calls it per event.
    wall_ns = staticmethod(time.time_ns)

    def boot_ns(self) -> int:
        """Return nanoseconds since boot; counts suspended time on Linux."""
        return time.clock_gettime_ns(_BOOT_CLOCK)

    def boot_id(self) -> str:
        """Return a name of this boot, the same for every process of the machine."""
        return _boot_id()

    def nap(self, seconds: float) -> None:
        """Block this thread for a moment."""
        time.sleep(seconds)

    async def sleep(self, seconds: float) -> None:
        """Wait on the running event loop."""
        await asyncio.sleep(seconds)


_BOOT_CLOCK: int = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


@cache
def _boot_id() -> str:
    named = Path("/proc/sys/kernel/random/boot_id")
    if named.exists():
        return named.read_text(encoding="ascii").strip()
    # Elsewhere: the moment of boot, to ten seconds, so that processes which look at different times agree.
    return f"boot-{round((time.time() - time.monotonic()) / 10)}"


#: Random bytes are drawn from the system so many at a time (measured: 20 us a call on a virtual machine).
DRAWN_BYTES = 1 << 12


class _Drawn(threading.local):
    """What is left of the bytes that this thread has drawn: in a forked child a lock could stay closed."""

    bytes, at, pid = b"", 0, 0


class SystemChance:
    """The operating system's randomness, and a quick generator for jitter."""

    def __init__(self) -> None:
        self._jitter = random.Random()  # noqa: S311 - spreads retries, protects nothing
        self._drawn = _Drawn()

    def bytes(self, size: int) -> bytes:
        """Return unpredictable bytes; may be called from any thread."""
        if size > DRAWN_BYTES:
            return os.urandom(size)
        drawn = self._drawn
        if drawn.at + size > DRAWN_BYTES or drawn.pid != os.getpid():  # a fork's are its own
            drawn.bytes, drawn.at, drawn.pid = os.urandom(DRAWN_BYTES), 0, os.getpid()
        drawn.at += size
        return drawn.bytes[drawn.at - size : drawn.at]

    def unit(self) -> float:
        """Return a number in [0, 1)."""
        return self._jitter.random()
