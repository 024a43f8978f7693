"""Which version of a handler has handled what, as commands ask for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from headrace.ports.values import VersionInfo


class Range(NamedTuple):
    """Offsets of one partition that were taken by one version."""

    partition: int
    version: VersionInfo
    #: The first and the last offset, both included.
    first: int
    last: int
    taken: int
    #: Of those, not finished yet.
    unfinished: int
    #: Finished by another version (a retry after an upgrade, a second run after a crash): offset, version.
    exceptions: tuple[tuple[int, VersionInfo], ...]

    @property
    def handled(self) -> int:
        """Finished by this version."""
        return self.taken - self.unfinished - len(self.exceptions)


class History(NamedTuple):
    """The versions of one handler and what each has handled."""

    handler: str
    active: VersionInfo | None
    versions: list[VersionInfo]
    ranges: list[Range]
    #: Finished by each version, by its number; exceptions counted where they belong.
    handled: dict[int, int]
    taken: int
    unfinished: int
    #: Taken offsets that no range covers; anything but 0 is a fault.
    neither: int
    #: Handled by each version in replays, by its number; ledgers of their own (`--again`) are not counted.
    replayed: Mapping[int, int]

    @property
    def both(self) -> int:
        """How many more were finished than taken: counted twice; anything but 0 is a fault."""
        return max(0, sum(self.handled.values()) + self.unfinished + self.neither - self.taken)


class RetiredOne(NamedTuple):
    """A subscription of a handler that was retired: nobody waits for it."""

    handler: str
    topic: str
    taken: int
    done: int
    dead: int
    expired: int
