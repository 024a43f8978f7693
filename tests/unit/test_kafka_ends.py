"""Where a replay stops reading, though it is allotted more by another thread at that moment."""

from __future__ import annotations

from typing import Any, NamedTuple

from headrace.journal.kafka.allotted import Allotted
from headrace.journal.kafka.ends import Ends


class Record(NamedTuple):
    """A record as the library hands it on."""

    at: int

    def error(self) -> None:
        """Tell of no error."""

    def topic(self) -> str:
        """Return its topic."""
        return "t"

    def partition(self) -> int:
        """Return its partition."""
        return 3

    def offset(self) -> int:
        """Return its offset."""
        return self.at


class Read:
    """A consumer that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int]] = []

    def pause(self, where: Any) -> None:
        """Pause partitions."""
        self.told += [("pause", one.partition) for one in where]

    def resume(self, where: Any) -> None:
        """Go on with partitions."""
        self.told += [("resume", one.partition) for one in where]

    def seek(self, where: Any) -> None:
        """Go back."""
        self.told.append(("seek", where.offset))


def test_what_is_allotted_in_the_midst_of_a_burst_is_read_again() -> None:
    """A record behind one that was passed over is not handed on before it: it would come twice."""
    allotted, consumer = Allotted({3: [(0, 10)]}), Read()
    given: Any = consumer
    ends, burst = Ends(given, "t", allotted), [Record(at) for at in (9, 10, 11)]
    records: list[Any] = list(burst)

    handed_on = []
    for record in records:
        if not ends.beyond(record):
            handed_on.append(record.at)
        if record.at == 10:
            allotted.grow({3: [(0, 20)]})
    assert handed_on == [9]
    assert ends.reached({3}) == {3: 10}
    ends.go_on(paused=False)
    assert consumer.told == [("pause", 3), ("seek", 10), ("resume", 3)]
    assert not ends.beyond(records[1])


def test_partitions_that_were_given_up_are_not_read_on() -> None:
    """Somebody else has them; the library knows nothing of them here."""
    allotted, consumer = Allotted({3: [(0, 10)]}), Read()
    given: Any = consumer
    record: Any = Record(10)
    ends = Ends(given, "t", allotted)
    assert ends.beyond(record)
    assert ends.reached({3}) == {3: 10}
    ends.forget({3})
    allotted.grow({3: [(0, 20)]})
    ends.go_on(paused=False)
    assert consumer.told == [("pause", 3)]
