"""What a machine allows, and how well its clock runs; asked of the kernel, nothing is changed."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: ``struct timex`` is 208 bytes on 64-bit Linux; what is asked for is zeros: to change nothing.
_TIMEX_BYTES = 256
#: The answer of ``adjtimex`` when nobody keeps the clock true.
_TIME_ERROR = 5
#: Bits of ``CapEff``.
_CAPABILITIES = {"CAP_SYS_ADMIN": 21, "CAP_PERFMON": 38, "CAP_BPF": 39}
#: From here on ``perf_event_open`` takes a capability for what concerns the kernel.
_PARANOID_MAX = 1


def clock_is_kept() -> bool | None:
    """Return whether the wall clock is kept true (NTP, PTP); ``None`` where the kernel does not tell."""
    if sys.platform != "linux":
        return None
    with suppress(AttributeError, OSError):
        state = int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(_TIMEX_BYTES)))
        return None if state < 0 else state != _TIME_ERROR
    return None


class Rights(NamedTuple):
    """What this process may ask of the kernel about latency."""

    #: Load programs that follow the scheduler.
    bpf: bool
    #: Read switch records of its own threads.
    perf: bool
    #: Read run-queue delays of its own threads.
    schedstat: bool
    #: The kernel describes its own types: programs need not be compiled for it.
    btf: bool


def kernel_rights() -> Rights:
    """Return the rights of this process."""
    held = _capabilities()
    bpf = "CAP_SYS_ADMIN" in held or {"CAP_BPF", "CAP_PERFMON"} <= held
    perf = bpf or "CAP_PERFMON" in held or _paranoid() <= _PARANOID_MAX
    return Rights(
        bpf=bpf,
        perf=perf and sys.platform == "linux",
        schedstat=Path("/proc/self/schedstat").exists(),
        btf=Path("/sys/kernel/btf/vmlinux").exists(),
    )


def _capabilities() -> set[str]:
    with suppress(OSError, ValueError):
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
        mask = next((int(line.split()[1], 16) for line in lines if line.startswith("CapEff:")), 0)
        return {name for name, bit in _CAPABILITIES.items() if mask >> bit & 1}
    return set()


def _paranoid() -> int:
    with suppress(OSError, ValueError):
        return int(Path("/proc/sys/kernel/perf_event_paranoid").read_text("ascii"))
    return _PARANOID_MAX + 1
