"""Counts what a worker does; told by its loop and its threads, read by the thread of the endpoint."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from headrace.ports import Clock
from headrace.ports.observer import BatchReport, Call

#: Upper bounds in seconds.  A handler may take from microseconds to minutes; an event may wait for days.
HANDLER_S = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0,
    10.0, 30.0, 60.0,
)  # fmt: skip
AGE_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0, 3600.0)
COMMIT_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Histogram:
    """Numbers of seconds, counted by bounds."""

    def __init__(self, bounds_s: Sequence[float]) -> None:
        self.bounds_s = bounds_s
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_s = 0.0

    def add(self, values_s: Iterable[float]) -> None:
        """Count numbers."""
        counts, bounds = self.counts, self.bounds_s
        for value in values_s:
            counts[bisect_left(bounds, value)] += 1
            self.sum_s += value

    def copy(self) -> Histogram:
        """Return what is counted so far."""
        found = Histogram(self.bounds_s)
        found.counts, found.sum_s = self.counts.copy(), self.sum_s
        return found


class Counted(NamedTuple):
    """What is counted so far, all at one moment."""

    #: By handler, version and outcome.
    handled: dict[tuple[str, str, str], int]
    emitted: dict[tuple[str], int]
    #: By handler and reason.
    dead: dict[tuple[str, str], int]
    handler_s: dict[str, Histogram]
    age_s: dict[str, Histogram]
    commit_s: dict[str, Histogram]


class Counts:
    """An observer that counts: once for each commit, but for the time of handlers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._handled: Counter[tuple[str, str, str]] = Counter()
        self._emitted: Counter[tuple[str]] = Counter()
        self._dead: Counter[tuple[str, str]] = Counter()
        self._handler_s: dict[str, Histogram] = {}
        self._age_s: dict[str, Histogram] = {}
        self._commit_s: dict[str, Histogram] = {}
        #: What handlers took, in nanoseconds, and is not counted yet; a list takes values from any thread.
        self._spans_ns: dict[str, list[int]] = {}

    def committed(self, report: BatchReport) -> None:
        """Count one committed outcome."""
        handler, version = report.handler, report.version
        with self._lock:
            if report.latencies_us:
                self._handled[handler, version, "done"] += len(report.latencies_us)
                self._of(self._age_s, handler, AGE_S).add(one / 1e6 for one in report.latencies_us)
            if report.retried:
                self._handled[handler, version, "retried"] += report.retried
            if report.reasons:
                self._handled[handler, version, "dead"] += len(report.reasons)
                self._dead.update((handler, reason) for reason in report.reasons)
            self._emitted[(handler,)] += report.emitted
            if report.commit_s is not None:
                self._of(self._commit_s, handler, COMMIT_S).add((report.commit_s,))
            self._drain(handler)

    def timed(self, handler: str, call: Call) -> Call:
        """Return a handler's function that notes how long it took, waiting included."""
        note = self._spans_ns.setdefault(handler, []).append
        now_ns = self._clock.boot_ns

        async def measured(*args: Any, **kwargs: Any) -> Any:
            began_ns = now_ns()
            try:
                return await call(*args, **kwargs)
            finally:
                note(now_ns() - began_ns)

        return measured

    def _drain(self, handler: str) -> None:
        spans = self._spans_ns.get(handler)
        if spans:
            taken = spans[:]
            del spans[: len(taken)]  # a thread may have added more meanwhile
            self._of(self._handler_s, handler, HANDLER_S).add(one / 1e9 for one in taken)

    @staticmethod
    def _of(found: dict[str, Histogram], handler: str, bounds_s: Sequence[float]) -> Histogram:
        return found.get(handler) or found.setdefault(handler, Histogram(bounds_s))

    def counted(self) -> Counted:
        """Return what is counted so far."""
        with self._lock:
            for handler in self._spans_ns:
                self._drain(handler)
            return Counted(
                dict(self._handled),
                dict(self._emitted),
                dict(self._dead),
                *(
                    {name: one.copy() for name, one in of.items()}
                    for of in (self._handler_s, self._age_s, self._commit_s)
                ),
            )
