"""What commands ask of the index beside a journal: to be made again, to be compared with the log."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from headrace.ports.look import Violation

#: Told how much is done, and of how much.
Progressed = Callable[[int, int], None]


class Rebuilt(NamedTuple):
    """An index that was made again."""

    topics: list[str]
    partitions: int
    events: int
    seconds: float


class Checked(NamedTuple):
    """An index that was compared with its log."""

    topics: list[str]
    records: int
    violations: list[Violation]


class Upkeep(Protocol):
    """The index beside a journal that has one."""

    #: For people: the address of the index, without secrets.
    address: str

    async def open(self, *, make: bool) -> None:
        """Connect; an index that is not there is made, or `IndexMissing`."""
        ...

    async def close(self) -> None:
        """Disconnect; harmless when that is done."""
        ...

    async def rebuild(self, topics: Sequence[str], progressed: Progressed) -> Rebuilt:
        """Drop what the log can give back and make it again, of known topics and of these."""
        ...

    async def verify(self, progressed: Progressed) -> Checked:
        """Compare the index with the log."""
        ...
