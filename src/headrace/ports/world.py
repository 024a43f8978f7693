"""The outside as the runtime sees it: time, chance, failpoints."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Time.  Wall time is for people and envelopes, boot time for leases and waits."""

    def wall_us(self) -> int:
        """Return microseconds since 1970, UTC; may jump."""
        ...

    def wall_ns(self) -> int:
        """Return nanoseconds since 1970, UTC; the hot path divides."""
        ...

    def boot_ns(self) -> int:
        """Return nanoseconds since boot, suspended time included; never jumps within one `boot_id`."""
        ...

    def boot_id(self) -> str:
        """Return a name of this boot, the same in every process."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Wait; other tasks go on."""
        ...

    def nap(self, seconds: float) -> None:
        """Block this thread for less than a turn of the event loop costs."""
        ...


class Chance(Protocol):
    """Randomness: ids, trace ids, jitter."""

    def bytes(self, size: int) -> bytes:
        """Return unpredictable bytes."""
        ...

    def unit(self) -> float:
        """Return a number in [0, 1)."""
        ...


class Faults(Protocol):
    """Named places where a test may let the process die or the store fail."""

    def at(self, point: str) -> None:
        """Pass a failpoint; may raise or not return."""
        ...


class World(Protocol):
    """The outside as the runtime sees it."""

    clock: Clock
    chance: Chance
    faults: Faults


class NoFaults:
    """Failpoints outside of tests: nothing happens."""

    def at(self, point: str) -> None:
        """Pass."""


#: Every failpoint of the product, in the order in which one event meets them.
FAILPOINTS = (
    "publish.begin",
    "publish.inserted",
    "publish.committed",
    "version.offered",
    "balance.taken",
    "balance.committed",
    "claim.begin",
    "claim.written",
    "claim.committed",
    "handle.before",
    "handle.after",
    "settle.begin",
    "settle.positions",
    "settle.events",
    "settle.open",
    "settle.dead",
    "settle.committed",
    "release.committed",
)

#: Those of a replay beside them, on both: history is allotted, inside of the transaction and behind it; more
#: follows.
REPLAY_FAILPOINTS = ("replay.allotted", "replay.begun", "replay.extended")

#: Those of who looks after a file: a handler is renamed or retired, a payload removed (for good or not),
#: what is left of it forgotten, pages are given back, the file is rewritten, its WAL emptied, a copy made.
CARE_FAILPOINTS = (
    "rename.written",
    "retire.partition",
    "retire.committed",
    "remove.skeleton",
    "remove.events",
    "remove.committed",
    "forget.committed",
    "erase.step",
    "erase.told",
    "compact.step",
    "compact.rewritten",
    "wal.emptied",
    "backup.copied",
    "backup.checked",
    "backup.named",
)

#: Those of a journal on Kafka.  ``take``: a partition is taken over; ``claim``: the index notes what is taken
#: of it; ``settle``: a transaction; ``decide``: a decision about a dead letter is carried out.
KAFKA_FAILPOINTS = (
    "version.appended",
    "version.offered",
    "take.ledger",
    "take.claim",
    "take.ready",
    "claim.begin",
    "claim.noted",
    "handle.before",
    "handle.after",
    "settle.begin",
    "settle.records",
    "settle.offsets",
    "settle.committed",
    "decide.noted",
    "release.committed",
)
