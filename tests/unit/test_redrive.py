"""Decisions about dead letters: redriven whole or not at all, refused with the reason, told to workers."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.shop import DEAD, change, made_app, made_journal, settle

from headrace.app import World
from headrace.journal import letters, progress, redrive
from headrace.journal.connection import Connection
from headrace.journal.reader import Reader
from headrace.journal.verify import verify
from headrace.world import SystemClock


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A journal of its own for each test."""
    return made_journal(tmp_path)


@pytest.fixture
def db(path: str) -> Iterator[Connection]:
    """A connection that may write to it."""
    world = World()
    found = Connection(path, durability="full", clock=world.clock, chance=world.chance, faults=world.faults)
    yield found
    found.close()


@pytest.fixture
def reader(path: str) -> Iterator[Reader]:
    """A reader of it."""
    found = Reader(path)
    yield found
    found.close()


def _dead(reader: Reader) -> tuple[int, int, dict[str, int]]:
    """Return dead, waiting, and what stands open, of the first handler."""
    found = progress.progress(reader, SystemClock())[0]
    return found.dead, found.waiting, found.open


def test_a_redriven_event_waits_again(db: Connection, reader: Reader) -> None:
    """It no longer counts as dead but as waiting, and the journal stays sound."""
    _, waiting, _ = _dead(reader)

    assert asyncio.run(redrive.redrive(db, [1, 2])) == [redrive.Decided(1), redrive.Decided(2)]

    assert _dead(reader) == (DEAD - 2, waiting + 2, {"redriven": 2})
    assert [one.fate for one in letters.letters(reader, letters.Filter(decided=True))][:3] == [
        "redriven",
        "redriven",
        None,
    ]
    assert verify(reader) == []


def test_many_letters_are_decided_in_several_transactions(
    db: Connection, reader: Reader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them is whole; none is left out."""
    monkeypatch.setattr(redrive, "LETTERS_MAX", 3)

    decided = asyncio.run(redrive.redrive(db, list(range(1, DEAD + 1))))

    assert [one.id for one in decided] == list(range(1, DEAD + 1))
    assert _dead(reader)[0] == 0


def test_what_is_refused_says_why_and_changes_nothing(db: Connection, path: str, reader: Reader) -> None:
    """A letter that was decided on, is not there, whose event is gone, or whose handler has no version."""
    asyncio.run(redrive.redrive(db, [1]))
    asyncio.run(redrive.drop(db, [2]))
    change(path, "DELETE FROM event WHERE seq = (SELECT seq FROM dead WHERE id = 3)")
    before = letters.letters(reader, letters.Filter(decided=True))

    told = [one.problem for one in asyncio.run(redrive.redrive(db, [1, 2, 3, 99]))]

    assert told == [
        "it was redriven before",
        "it was dropped before",
        "the journal no longer holds its event; publish the payload anew",
        "there is no such dead letter",
    ]
    assert letters.letters(reader, letters.Filter(decided=True)) == before
    change(path, "UPDATE handler SET active = NULL")
    assert redrive.refusals(db, [4])[0].problem == "shop.pack has no active version"


def test_what_the_active_version_has_elsewhere_is_refused(db: Connection, path: str) -> None:
    """A replay of that version has the event, or has finished it: no version handles an event twice."""
    change(path, "INSERT INTO subscription VALUES (50, 1, 1, 'replay:50', 0)")
    change(path, "INSERT INTO replay VALUES (50, 1, 'replay', NULL, '{}', 0, 1, '{}', 0, 0)")
    change(path, "INSERT INTO allotted SELECT 50, tp, seq - 1, seq FROM dead WHERE id = 1")

    assert asyncio.run(redrive.redrive(db, [1]))[0].problem == (
        "the active version of shop.pack has its event in a replay, or has finished it there"
    )
    change(path, "UPDATE replay SET version = 99")
    assert asyncio.run(redrive.redrive(db, [1])) == [redrive.Decided(1)]


def test_a_dry_run_says_the_same_and_does_nothing(db: Connection, reader: Reader) -> None:
    """What would be refused is known beforehand, for a redrive and for a drop."""
    asyncio.run(redrive.drop(db, [1]))
    before = _dead(reader)

    for drop, deed in ((False, redrive.redrive), (True, redrive.drop)):
        foretold = redrive.refusals(db, [1, 99], drop=drop)
        assert foretold == asyncio.run(deed(db, [1, 99]))
        assert redrive.refusals(db, [2], drop=drop) == [redrive.Decided(2)]
    assert _dead(reader) == before


def test_a_dropped_letter_still_counts_as_dead(db: Connection, reader: Reader) -> None:
    """It leaves the list; the accounting is not touched, for the event was never handled."""
    before = _dead(reader)

    assert asyncio.run(redrive.drop(db, [1, 1])) == [
        redrive.Decided(1),
        redrive.Decided(1, "it was dropped before"),
    ]

    assert _dead(reader) == before
    assert letters.left(reader) == DEAD - 1
    assert verify(reader) == []


def test_an_event_that_dies_again_for_the_same_reason_is_marked(
    db: Connection, path: str, reader: Reader
) -> None:
    """A loop of redrives shows; the first death is not marked."""
    asyncio.run(redrive.redrive(db, [1]))

    async def again() -> None:
        app = made_app(path)
        async with app:
            await settle(app, path)

    asyncio.run(again())
    first, *_, last = letters.letters(reader, letters.Filter(decided=True))

    assert (first.fate, first.again, first.generation) == ("redriven", False, 0)
    assert (last.fate, last.again, last.generation) == (None, True, 1)
    assert last.event.envelope.event_id == first.event.envelope.event_id
    assert verify(reader) == []


def test_a_redrive_wakes_a_worker_that_waits(db: Connection, path: str, reader: Reader) -> None:
    """A worker in another connection learns of it and runs the event, without a restart."""

    async def scenario() -> None:
        app = made_app(path)
        stop = asyncio.Event()
        async with app:
            await settle(app, path)
            serving = asyncio.create_task(app.run(stop))
            await redrive.redrive(db, [1])
            while len(letters.letters(reader, letters.Filter(decided=True))) == DEAD:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            stop.set()
            await serving

    asyncio.run(asyncio.wait_for(scenario(), 30))

    assert verify(reader) == []
