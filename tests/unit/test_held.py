"""What a worker keeps in mind of a partition: lines of keys, who blocks whom, who is due."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.journal.held import Held, Open
from headrace.ports import Attempt, OpenState

WAITING = (OpenState.RETRY, OpenState.BLOCKED, OpenState.RETURNED, OpenState.REDRIVEN)

ENTRIES = st.builds(
    lambda seq, state, due, key, crashes: Open(seq, state, Attempt(1, crashes), due, key),
    st.integers(1, 20),
    st.sampled_from(list(OpenState)),
    st.integers(0, 20),
    st.sampled_from(["a", "b", None]),
    st.sampled_from([0, 0, 0, 1]),
)


def held(*entries: Open, unsettled: int = 0, claimed_after: int = 99) -> Held:
    """Return a partition with these offsets open."""
    found = Held(tp=1024, epoch=1, high=100, version=1, claimed_after=claimed_after, unsettled=unsettled)
    for entry in entries:
        found.add(entry)
    return found


def one(
    seq: int,
    key: str | None = "k",
    state: OpenState = OpenState.RETRY,
    *,
    due: int = 0,
    crashes: int = 0,
) -> Open:
    """Return an open offset."""
    return Open(seq, state, Attempt(2, crashes), due, key)


def due(partition: Held, now: int = 0, limit: int = 99) -> list[int]:
    """Return the offsets that are due."""
    return [entry.seq for entry in partition.due(now, limit)]


def test_who_stands_behind_another_is_not_looked_at() -> None:
    """A thousand events behind one that waits cost a busy worker nothing: only the foremost are asked."""
    partition = held(*[one(seq) for seq in range(1, 500)], *[one(seq, None) for seq in (700, 701)])

    assert sorted(entry.seq for entry in partition._foremost()) == [1, 700, 701]
    partition.add(one(1, state=OpenState.RUNNING))
    partition.close(700)
    partition.add(one(701, None, OpenState.RUNNING))
    assert partition._foremost() == []
    assert partition.copy()._foremost() == []


def test_events_of_a_key_stand_in_line() -> None:
    """In the order of their offsets, whatever the order in which they came; only the first may run."""
    partition = held(one(9), one(3), one(5), one(4, "other"), one(1, None))

    assert partition.lines == {"k": [3, 5, 9], "other": [4]}
    assert due(partition) == [1, 3, 4]
    partition.close(3)
    assert due(partition) == [1, 4, 5]


def test_a_line_that_is_empty_is_forgotten() -> None:
    """Closing what is not open is harmless; nothing is left of what was closed."""
    partition = held(one(3), one(4, None))
    for seq in (3, 4, 4, 77):
        partition.close(seq)
    assert (partition.open, partition.lines, partition.waiting) == ({}, {}, set())


def test_an_offset_that_changes_its_state_keeps_its_place() -> None:
    """Running ones do not wait; whoever is added again is not in line twice."""
    partition = held(one(3), one(5))
    partition.add(one(3, state=OpenState.RUNNING))
    assert (partition.lines, partition.waiting) == ({"k": [3, 5]}, {5})
    assert due(partition) == []
    partition.add(one(3, state=OpenState.RETRY, due=9))
    assert (partition.lines, partition.waiting) == ({"k": [3, 5]}, {3, 5})


def test_the_second_of_a_key_waits_for_the_first_even_when_it_is_due() -> None:
    """Order within a key is worth more than a wait that is over."""
    partition = held(one(3, due=50), one(5, due=0), one(6, "other", due=10))
    assert due(partition, now=20) == [6]
    assert due(partition, now=50) == [3, 6]


def test_a_running_event_behind_holds_back_the_first() -> None:
    """One event of a key in flight: a redriven one waits for a later one that runs."""
    partition = held(one(3, state=OpenState.REDRIVEN), one(5, state=OpenState.RUNNING))
    assert due(partition) == []
    partition.close(5)
    assert due(partition) == [3]


def test_a_redriven_event_waits_until_nothing_is_in_hand() -> None:
    """An event of its key may be among those that were claimed and stand in no line yet."""
    partition = held(
        one(3, state=OpenState.REDRIVEN), one(4, None, OpenState.REDRIVEN), one(5, "other"), unsettled=1
    )
    assert due(partition) == [5]
    partition.unsettled = 0
    assert due(partition) == [3, 4, 5]


def test_a_waiting_event_of_the_claimed_range_waits_for_the_first_outcome() -> None:
    """Closed before any outcome of the range was written, a crash would bring it back."""
    partition = held(one(3), one(5, "other"), one(6, None), unsettled=2, claimed_after=4)
    assert due(partition) == [3]
    assert partition.next_due_ns() == 0
    partition.unsettled = 0
    assert due(partition) == [3, 5, 6]


@pytest.mark.parametrize("state", list(OpenState))
def test_a_new_event_waits_behind_one_that_does_not_run(state: OpenState) -> None:
    """Behind all but a running one, and only within its key; without a key there is no order."""
    partition = held(one(3, state=state))
    assert partition.blocks("k") is (state is not OpenState.RUNNING)
    assert not partition.blocks("other")
    assert not held(one(3, None, state)).blocks(None)


def test_a_parked_event_is_never_due() -> None:
    """It waits for something else than time, and those of its key wait with it."""
    partition = held(one(3, state=OpenState.PARKED), one(5), one(6, None, OpenState.PARKED))
    assert due(partition, now=1 << 60) == []
    assert partition.next_due_ns() is None


def test_a_suspect_of_a_crash_comes_alone() -> None:
    """Others go first without it; when it is the first it comes by itself, also among suspects."""
    partition = held(one(1, "a"), one(2, "b", crashes=1), one(3, "c"), one(4, "d", crashes=2))
    assert due(partition) == [1]
    partition.close(1)
    assert due(partition) == [2]
    partition.close(2)
    assert due(partition) == [3]
    partition.close(3)
    assert due(partition) == [4]


def test_no_more_come_than_were_asked_for() -> None:
    """The oldest first, up to the limit."""
    assert due(held(*(one(seq, None) for seq in range(9, 0, -1))), limit=3) == [1, 2, 3]


def test_the_next_is_the_earliest_that_may_run() -> None:
    """Not one that stands behind another, however early it is."""
    partition = held(one(3, due=50), one(5, due=1), one(6, "other", due=70))
    assert partition.next_due_ns() == 50
    partition.close(3)
    assert partition.next_due_ns() == 1
    assert held().next_due_ns() is None


def test_a_worker_has_work_while_something_runs_or_is_claimed() -> None:
    """Waiting ones do not count."""
    assert not held(one(1)).running()
    assert held(one(1, state=OpenState.RUNNING)).running()
    assert held(unsettled=1).running()


def test_a_copy_is_independent() -> None:
    """What is done to one is not seen in the other, numbers and lines included."""
    partition = held(one(3), one(5), unsettled=2)
    copy = partition.copy()
    partition.close(3)
    partition.add(one(7, state=OpenState.RUNNING))
    partition.unsettled, partition.high = 0, 200

    assert copy == held(one(3), one(5), unsettled=2)
    assert partition.lines == {"k": [5, 7]}


@given(entries=st.lists(ENTRIES, max_size=25), closed=st.sets(st.integers(1, 20)), now=st.integers(0, 20))
def test_the_books_agree_and_what_is_due_may_run(entries: list[Open], closed: set[int], now: int) -> None:
    """After any adding and closing the lines are sorted and whole, and what is due keeps every rule."""
    partition = held()
    for entry in entries:  # an offset keeps its key for good
        before = partition.open.get(entry.seq)
        partition.add(entry if before is None else one(entry.seq, before.key, entry.state, due=entry.due_ns))
    for seq in closed:
        partition.close(seq)

    kept = partition.open.values()
    assert partition.waiting == {entry.seq for entry in kept if entry.state in WAITING}
    assert sorted(seq for line in partition.lines.values() for seq in line) == sorted(
        e.seq for e in kept if e.key is not None
    )
    assert all(a < b for line in partition.lines.values() for a, b in pairwise(line))
    found = partition.due(now, 99)
    keys = [entry.key for entry in found if entry.key is not None]
    assert len(keys) == len(set(keys))
    assert all(entry.due_ns <= now and partition.may_run(entry) for entry in found)
    assert len(found) == 1 or not any(entry.attempt.crashes for entry in found)
    if not found:
        earliest = partition.next_due_ns()
        assert earliest is None or earliest > now
