"""Ordered visibility: whoever asks for what comes after the last event seen sees all of them, once.

Hypothesis draws who publishes what, side by side on several connections, and when a reader looks: units of
new events, careful ones (ids of the publisher's own, parents, repeats) and refused ones, which leave holes.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.journal.journals import SqliteFile
from tests.journal.lab import OUT, TOPIC, Content, Lab, SeededChance

from headrace import errors
from headrace.journal.reader import Reader
from headrace.ports import Journal, NewEvent

WRITERS = 3


class Unit(NamedTuple):
    """One publish: by whom, of what kind, of how many events."""

    writer: int
    kind: str
    size: int


class Look(NamedTuple):
    """A reader asks for a page after others had some turns of the loop."""

    turns: int
    limit: int


UNITS = st.builds(
    Unit,
    st.integers(0, WRITERS - 1),
    st.sampled_from(["new", "new", "own", "child", "again", "orphan", "conflict", "half"]),
    st.integers(1, 4),
)
LOOKS = st.builds(Look, st.integers(0, 6), st.integers(1, 5))
SCHEDULES = st.lists(UNITS | LOOKS, min_size=4, max_size=24)


class Follower:
    """A reader that asks for what comes after the last event it saw."""

    def __init__(self, path: str, topic: str | None = None) -> None:
        self._reader = Reader(path)
        self._topic = topic
        self.seen: list[tuple[int, bytes]] = []

    def look(self, limit: int) -> int:
        """Ask once; return how many there were."""
        after = self.seen[-1][0] if self.seen else 0
        page = self._reader.events(after=after, topic=self._topic, limit=limit)
        self.seen += [(one.envelope.offset, one.envelope.event_id.bytes) for one in page]
        return len(page)

    def end(self, limit: int) -> list[tuple[int, bytes]]:
        """Ask until there is nothing more; return all that was ever seen."""
        while self.look(limit):
            pass
        self._reader.close()
        return self.seen


@dataclass
class Play:
    """One schedule on one file."""

    lab: Lab
    writers: list[Journal]
    path: str
    #: Events that `publish` said were written.
    accepted: list[NewEvent] = field(default_factory=list)
    refused: int = 0

    async def publish(self, number: int, unit: Unit) -> None:
        """Publish one unit and keep the books; a unit that must be refused is refused whole."""
        journal = self.writers[unit.writer]
        events = await self._events(number, unit, journal)
        must_fail = unit.kind in ("orphan", "conflict", "half") and bool(events)
        try:
            receipts = await journal.publish(events)
        except (errors.ParentMissing, errors.EventConflict):
            assert must_fail
            self.refused += 1
            return
        assert not must_fail, unit
        fresh = [one for one, receipt in zip(events, receipts, strict=True) if not receipt.duplicate]
        assert not fresh if unit.kind == "again" else fresh == events
        self.accepted += fresh

    async def _events(self, number: int, unit: Unit, journal: Journal) -> list[NewEvent]:
        known = list(self.accepted)
        if unit.kind == "again":
            return known[-unit.size :]
        found = []
        for n in range(unit.size):
            name = f"{number}.{n}"
            options: dict[str, Any] = {"journal": journal, "topic": (TOPIC, OUT)[n % 2]}
            if unit.kind == "own":
                options["event_id"] = name.encode().ljust(16, b".")
            elif unit.kind == "child" and known:
                options["parents"] = [known[(number + n) % len(known)].event_id]
            elif unit.kind == "orphan" or (unit.kind == "half" and n == unit.size - 1):
                options["parents"] = [b"nobody".ljust(16, b".")]
            elif unit.kind == "conflict" and known:
                options |= {"event_id": known[-1].event_id, "topic": known[-1].topic}
            found.append(await self.lab.event(Content(f"k{n}", b'"%s"' % name.encode()), **options))
        return found if unit.kind != "conflict" or known else []

    async def run(self, schedule: list[Unit | Look], follower: Follower) -> None:
        """Start every unit as a task; the looks come in between."""
        tasks: list[asyncio.Task[None]] = []
        for number, step in enumerate(schedule):
            if isinstance(step, Unit):
                tasks.append(asyncio.create_task(self.publish(number, step)))
                continue
            for _ in range(step.turns):
                await asyncio.sleep(0)
            follower.look(step.limit)
        await asyncio.gather(*tasks)


async def play(schedule: list[Unit | Look], folder: Path) -> tuple[Play, list[list[tuple[int, bytes]]]]:
    """Run a schedule; return the books, and what each reader saw."""
    lab = Lab(SqliteFile(), folder, chance=SeededChance(1))
    try:
        found = Play(lab, [await lab.another() for _ in range(WRITERS)], str(folder / "journal.db"))
        steps, ended, beside = Follower(found.path), threading.Event(), Follower(found.path)

        def follow() -> None:
            while not ended.wait(0.0005):
                beside.look(3)

        following = asyncio.create_task(asyncio.to_thread(follow))
        try:
            await found.run(schedule, steps)
        finally:
            ended.set()
            await following
        late = [Follower(found.path), Follower(found.path, TOPIC), Follower(found.path, OUT)]
        return found, [steps.end(2), beside.end(3), *(one.end(1_000) for one in late)]
    finally:
        await lab.close()


def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run on a loop of its own."""
    return asyncio.run(coroutine)


@settings(max_examples=min(50, settings.default.max_examples))  # type: ignore[union-attr]
@given(SCHEDULES)
def test_a_reader_sees_every_committed_event_once_in_one_order(schedule: list[Unit | Look]) -> None:
    """Readers that follow along, beside the writers or between them, see what one sees that comes late."""
    with tempfile.TemporaryDirectory() as folder:
        books, (steps, beside, whole, things, made) = run(play(schedule, Path(folder)))

    event(f"refused {min(books.refused, 3)}, accepted {min(len(books.accepted), 20) // 5 * 5}")
    assert steps == beside == whole
    assert sorted(one for _, one in whole) == sorted(one.event_id for one in books.accepted)
    assert len(set(whole)) == len(whole)
    assert all(before < after for (before, _), (after, _) in pairwise(whole))
    assert sorted(things + made) == whole
    assert {one for _, one in things} == {one.event_id for one in books.accepted if one.topic == TOPIC}
