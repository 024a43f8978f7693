"""Reading a journal: events, progress, standing, history, dead letters, verify; nothing is ever changed."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from tests.unit.shop import DEAD, HANDLED, WAITING, change, made_journal, order

from headrace import App, errors
from headrace.journal import letters, progress
from headrace.journal.history import histories
from headrace.journal.reader import Reader
from headrace.journal.standing import standings
from headrace.journal.verify import verify
from headrace.ports.look import State, moment
from headrace.testing import ManualClock
from headrace.world import SystemClock

DONE = HANDLED - DEAD


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A journal of its own for each test."""
    return made_journal(tmp_path)


@pytest.fixture
def reader(path: str) -> Iterator[Reader]:
    """A reader of it."""
    found = Reader(path)
    yield found
    found.close()


def test_events_come_in_commit_order(reader: Reader) -> None:
    """Pages follow each other without a gap, of one topic or of all."""
    everything = reader.events()
    offsets = [one.envelope.offset for one in everything]

    assert offsets == sorted(offsets)
    assert len(everything) == HANDLED + DONE + WAITING
    assert reader.events(after=offsets[9], limit=3) == everything[10:13]
    assert reader.events(topic="packed") == [one for one in everything if one.envelope.topic == "packed"]


def test_the_newest_events_are_found_backwards(reader: Reader) -> None:
    """The last events of a topic or of a type, oldest first."""
    everything = reader.events()

    assert reader.newest(5) == everything[-5:]
    assert (
        reader.newest(5, topic="packed") == [one for one in everything if one.envelope.topic == "packed"][-5:]
    )
    assert reader.newest(2, fits=lambda one: one.envelope.type == "Packed") == reader.newest(
        2, topic="packed"
    )
    assert reader.newest(2, topic="nothing") == []


def test_an_event_is_found_by_its_id_or_a_beginning(reader: Reader) -> None:
    """A unique beginning will do; one that several have, none has, or that is too short is refused."""
    event = reader.events()[0]
    text = str(event.envelope.event_id)

    assert reader.find(text) == event
    assert reader.find(text.replace("-", "").upper()[:31]) == event
    assert reader.find(text, topic="orders") == event
    for wrong in ("", "abc", "not hexadecimal", text[:7], "0" * 32, text + "0"):
        with pytest.raises(errors.EventNotFound):
            reader.find(wrong)
    with pytest.raises(errors.EventNotFound):
        reader.find(text, topic="packed")
    with pytest.raises(errors.EventNotFound, match="Several begin so"):
        reader.find(text[:8])  # the digits of the time, which all events of the test share


def test_an_event_is_found_by_the_name_its_publisher_gave(path: str, reader: Reader) -> None:
    """The name becomes the id that publishing makes of it; so do names that look like digits."""
    given = ["mail-4711", "4711", "deadbeef", "größe 7"]
    published = asyncio.run(_publish(path, "shop", *given))

    for name, event_id in zip(given, published, strict=True):
        assert reader.find(name).envelope.event_id == event_id
        assert reader.find(name, topic="orders").envelope.event_id == event_id
        with pytest.raises(errors.EventNotFound, match="Looked for in topic packed alone"):
            reader.find(name, topic="packed")
    asyncio.run(_publish(path, "other", "mail-4711"))
    with pytest.raises(errors.EventNotFound, match=f"Several publishers have given it: .*{published[0]}"):
        reader.find("mail-4711")


async def _publish(path: str, app_name: str, *names: str) -> list[UUID]:
    async with App(app_name, journal=path) as app:
        return [(await app.publish(order(7), event_id=name)).event_id for name in names]


def test_a_chain_is_whole_from_any_of_its_events(reader: Reader) -> None:
    """The first event and what followed, whichever of them is asked for."""
    packed = reader.events(topic="packed")[0]
    first = reader.find(str(packed.envelope.causality_id))

    assert reader.chain(packed) == [first, packed]
    assert reader.chain(first) == [first, packed]


def test_an_envelope_that_cannot_be_read_is_shown_as_such(path: str, reader: Reader) -> None:
    """Bytes that are no envelope do not stop the reading of others."""
    change(path, "UPDATE event SET head = x'00' WHERE seq = 3")

    broken = reader.events()[2]

    assert broken.problem
    assert broken.envelope.offset == 3
    assert broken.payload.startswith(b"{")


def test_the_equation_holds_and_names_what_waits(reader: Reader) -> None:
    """Published = waiting + running + parked + done + dead + expired, for each handler."""
    packing, sending = progress.progress(reader, SystemClock())

    assert (packing.handler, packing.published, packing.waiting) == ("shop.pack", HANDLED + WAITING, WAITING)
    assert (packing.done, packing.dead, packing.running) == (DONE, DEAD, 0)
    assert (sending.published, sending.done, sending.waiting) == (DONE, DONE, 0)
    assert packing.sound
    assert sending.sound
    assert packing.trouble == "no live worker"
    assert sending.trouble == ""
    assert packing.oldest_waiting == reader.newest(WAITING)[0].envelope.time
    assert [topic.events for topic in progress.topics(reader)] == [HANDLED + WAITING, DONE]


def test_an_equation_that_does_not_hold_shows(path: str, reader: Reader) -> None:
    """A count that is wrong in the file is not hidden."""
    change(path, "UPDATE position SET done = done + 1 WHERE sub = 1 AND done > 0")

    assert [one.sound for one in progress.progress(reader, SystemClock())] == [False, True]


def test_nobody_with_the_active_version_is_told_apart_from_nobody(path: str, reader: Reader) -> None:
    """A live worker that does not serve the handler means that nobody has its active version."""
    clock = ManualClock()
    alive = (clock.boot_id(), clock.boot_ns() + 10**9)
    change(path, "INSERT INTO worker VALUES (77, 4711, ?, ?, 10000, 0, NULL)", *alive)

    assert progress.progress(reader, clock)[0].trouble == "no live worker has the active version"
    change(path, "INSERT INTO member VALUES (1, 77)")
    assert progress.progress(reader, clock)[0].trouble == "no partition has an owner yet"
    change(path, "UPDATE position SET owner = 77 WHERE sub = 1")
    owned = progress.progress(reader, clock)[0]
    assert owned.trouble == ""
    assert [(one.pid, one.partitions, one.alive) for one in owned.owners] == [(4711, 16, True)]
    clock.advance(2)
    assert progress.progress(reader, clock)[0].trouble == "no live worker"


def test_a_waiting_event_says_how_many_come_first(reader: Reader) -> None:
    """An event above the position waits, behind those of its partition."""
    event = reader.newest(1)[0]

    (standing,) = standings(reader, event, SystemClock())

    same = [one for one in reader.newest(WAITING) if one.envelope.partition == event.envelope.partition]
    assert standing.state is State.WAITING
    assert standing.ahead == len(same) - 1
    assert standing.workers == 0


def test_a_handled_event_says_by_which_version(reader: Reader) -> None:
    """What is done names the version of its range, or of its exception row."""
    event = reader.find(str(reader.events(topic="packed")[0].envelope.causality_id))

    (standing,) = standings(reader, event, SystemClock())

    assert standing.state is State.DONE
    assert standing.version is not None
    assert standing.version.name == "1"


def test_a_dead_event_says_why(reader: Reader) -> None:
    """What is dead leads to its letter."""
    (standing,) = standings(reader, letters.letters(reader)[0].event, SystemClock())

    assert standing.state is State.DEAD
    assert standing.letter == letters.letters(reader)[0]


@pytest.mark.parametrize("state", ["running", "retry", "blocked", "parked", "returned", "redriven"])
def test_an_open_event_says_what_it_waits_for(path: str, reader: Reader, state: str) -> None:
    """Every state of an open offset is known, with attempts, errors and when it is due."""
    event = reader.at(1)
    assert event is not None
    change(
        path,
        "INSERT INTO open (sub, tp, seq, state, attempts, crashes, generation, due_us, noted_us, errors)"
        " SELECT 1, tp, seq, ?, 2, 1, 0, 1700000000000000, 0, '[\"first\"]' FROM event WHERE seq = 1",
        state,
    )

    (standing,) = standings(reader, event, SystemClock())

    assert standing.state == state
    assert (standing.attempts, standing.crashes, standing.errors) == (2, 1, ("first",))
    assert standing.due == moment(1_700_000_000_000_000)


def test_a_blocked_event_names_the_one_before_it(path: str, reader: Reader) -> None:
    """The event of the same key that is open and older is named, not one of another key."""
    first, second = [one for one in reader.events() if one.envelope.key == "customer-1"][:2]
    for event in (first, second):
        change(
            path,
            "INSERT INTO open (sub, tp, seq, state, attempts, crashes, generation, due_us, noted_us, errors)"
            " SELECT 1, tp, seq, 'blocked', 0, 0, 0, 0, 0, '[]' FROM event WHERE seq = ?",
            event.envelope.offset,
        )

    assert standings(reader, second, SystemClock())[0].blocked_by == first.envelope.event_id
    assert standings(reader, first, SystemClock())[0].blocked_by is None


def test_an_event_older_than_the_start_is_skipped(path: str, reader: Reader) -> None:
    """A subscription that starts later has nothing to do with it."""
    change(path, "UPDATE position SET start = 5 WHERE sub = 1")

    assert standings(reader, reader.events()[0], SystemClock())[0].state is State.SKIPPED


def test_history_counts_each_event_once(path: str, reader: Reader) -> None:
    """What was taken is handled by one version or unfinished; an exception counts where it belongs."""
    change(path, "INSERT INTO version VALUES (9, 1, '2', 0, 0, 0)")
    change(path, "INSERT INTO exception SELECT 1, tp, seq, 9 FROM event WHERE seq = 2")

    (found,) = histories(reader, "pack")

    assert found.handled == {1: HANDLED - 1, 9: 1}
    assert (found.taken, found.unfinished, found.neither, found.both) == (HANDLED, 0, 0, 0)
    assert sum(one.handled for one in found.ranges) == HANDLED - 1
    assert histories(reader, "nobody") == []


def test_history_finds_what_no_version_has_handled(path: str, reader: Reader) -> None:
    """Offsets that were taken although no range covers them are counted."""
    change(path, "DELETE FROM range WHERE sub = 1")

    assert histories(reader, "shop.pack")[0].neither == HANDLED


def test_dead_letters_pass_filters(path: str, reader: Reader) -> None:
    """By handler (whole or short name), reason and type; what was decided on is shown only when asked for."""
    assert len(letters.letters(reader)) == DEAD
    assert len(letters.letters(reader, letters.Filter(handler="pack", reason="failed", type="Order"))) == DEAD
    by = letters.Filter
    for none in (by(handler="send"), by(handler="ack"), by(reason="crash"), by(type="Packed")):
        assert letters.letters(reader, none) == []
    change(path, "UPDATE dead SET fate = 'dropped' WHERE id = 1")
    assert [one.id for one in letters.letters(reader)] == [2, 3, 4]
    assert len(letters.letters(reader, letters.Filter(decided=True))) == DEAD
    assert letters.left(reader) == DEAD - 1


def test_a_dead_letter_is_named_by_number_or_event(reader: Reader) -> None:
    """Both lead to the same letter, with the original bytes."""
    first = letters.letters(reader)[0]

    assert letters.named(reader, str(first.id)) == [first]
    assert letters.named(reader, str(first.event.envelope.event_id)) == [first]
    assert first.event.payload.startswith(b'{"customer"')
    assert first.errors == (f"ValueError: no box for \x1b[31m{_number(first)}",)
    for wrong in ("99", str(reader.events(topic="packed")[0].envelope.event_id), str(UUID(int=1))):
        with pytest.raises(errors.EventNotFound):
            letters.named(reader, wrong)


def _number(letter: letters.Letter) -> int:
    return int(letter.event.payload.split(b":")[-1].rstrip(b"}"))


def test_a_sound_journal_has_no_violations(reader: Reader) -> None:
    """Nothing is found where nothing is wrong."""
    assert verify(reader) == []


BROKEN = {
    "accounting": "UPDATE position SET done = done + 1 WHERE sub = 1 AND done > 0",
    "taken": "UPDATE position SET taken = taken + 1, done = done + 1 WHERE sub = 1 AND done > 0",
    "starts": "UPDATE position SET start = 1 WHERE sub = 2 AND tp & 1023 = 0",
    "bounds": "UPDATE position SET claimed_after = high + 1 WHERE sub = 2",
    "running": "UPDATE position SET running = 1, done = done - 1, owner = 1 WHERE sub = 1 AND done > 0",
    "ownerless": "UPDATE position SET running = 1, done = done - 1 WHERE sub = 1 AND done > 0",
    "open_place": "INSERT INTO open VALUES (1, 1024, 999, 'retry', 1, 0, 0, 0, 0, '[]')",
    "dead_count": "DELETE FROM dead WHERE id = 1",
    "dead_place": "UPDATE position SET high = 0, claimed_after = 0 WHERE sub = 1",
    "dead_twice": "INSERT INTO dead SELECT 99, sub, tp, seq, 1, version, reason, code, error, traceback,"
    " attempts, crashes, errors, eid, type, trace, head, body, died_us, fate FROM dead WHERE id = 1",
    "ranges": "DELETE FROM range WHERE sub = 2",
    "range_place": "UPDATE range SET version = 99 WHERE sub = 2",
    "exception_place": "INSERT INTO exception VALUES (1, 1024, 999, 1)",
    "active": "UPDATE handler SET active = 99 WHERE id = 1",
    "positions": "DELETE FROM position WHERE sub = 2 AND tp & 1023 = 5",
    "event_place": "UPDATE topic SET partitions = 1 WHERE id = 2",
    "chains": "UPDATE event SET cid = seq WHERE cid <> 0",
    "checksum": "UPDATE event SET body = x'7b7d' WHERE seq = 1",
    "causes": "DELETE FROM event WHERE seq = 2",
    "depth": "UPDATE event SET depth = 0 WHERE depth = 1",
}


@pytest.mark.parametrize("rule", BROKEN)
def test_verify_finds_what_is_broken(path: str, reader: Reader, rule: str) -> None:
    """Each rule, broken in the file, is named; so silence means something."""
    change(path, BROKEN[rule])

    assert rule in {one.rule for one in verify(reader)}


def test_verify_finds_a_damaged_page(path: str) -> None:
    """SQLite's own check is part of it."""
    size = Path(path).stat().st_size
    with Path(path).open("r+b") as file:
        file.seek(size - 4096)
        file.write(b"\xff" * 2048)
    reader = Reader(path)

    try:
        found = {one.rule for one in verify(reader)}
    except errors.JournalCorrupt:
        found = {"file"}
    finally:
        reader.close()

    assert "file" in found


def test_a_snapshot_does_not_see_what_is_written_meanwhile(path: str, reader: Reader) -> None:
    """All queries of a snapshot agree with each other."""
    with reader.snapshot():
        before = progress.topics(reader)
        change(path, "DELETE FROM event WHERE seq > 30")
        with reader.snapshot():  # one within another is the same
            assert progress.topics(reader) == before

    assert progress.topics(reader) != before


def test_reading_leaves_the_file_as_it_is(path: str) -> None:
    """Not a byte of the journal changes, and none is created where there was none."""
    before = Path(path).read_bytes()
    reader = Reader(path)
    verify(reader)
    progress.progress(reader, SystemClock())
    reader.close()

    assert Path(path).read_bytes() == before
    missing = Path(path).with_name("missing.db")
    with pytest.raises(errors.JournalMissing):
        Reader(str(missing))
    assert not missing.exists()


def test_a_place_that_is_no_journal_is_told(tmp_path: Path) -> None:
    """A folder is named as one, with what to name instead; a path beyond every limit is cut short."""
    with pytest.raises(errors.JournalForeign, match="It is a folder") as caught:
        Reader(str(tmp_path))
    assert str(tmp_path / "headrace.db") in caught.value.hint
    with pytest.raises(errors.JournalUnavailable, match=r"x{9}\.\.\. does not answer\. File name too long\."):
        Reader("x" * 5_000)
    (tmp_path / "file").touch()
    with pytest.raises(errors.JournalMissing):
        Reader(str(tmp_path / "file" / "journal.db"))


@pytest.mark.parametrize(
    ("content", "refused"),
    [
        (b"", errors.JournalMissing),  # somebody may be about to set it up
        (b"not a journal at all, only text, and long enough to be read as one" * 9, errors.JournalForeign),
    ],
)
def test_a_file_that_is_not_ours_is_refused(
    tmp_path: Path, content: bytes, refused: type[errors.JournalError]
) -> None:
    """In an empty file there is no journal; a foreign one is none."""
    foreign = tmp_path / "foreign.db"
    foreign.write_bytes(content)

    with pytest.raises(refused):
        Reader(str(foreign))


LOOK = """
import os, sys
from headrace import errors
from headrace.journal.reader import Reader
path, user, other = sys.argv[1], int(sys.argv[2]), sys.argv[3]
Reader(other).events()  # loads all code, while we may still read it
if user:
    os.setgid(user); os.setuid(user)
try:
    print(len(Reader(path).events()))
except errors.HeadraceError as fault:
    print(fault.code)
"""


@pytest.fixture
def sealed(path: str) -> Iterator[Path]:
    """The journal in a folder that nobody may write to, once `_look` looks."""
    folder = Path(path).parent / "sealed"
    folder.mkdir()
    Path(path).rename(folder / "shop.db")
    yield folder / "shop.db"
    folder.chmod(stat.S_IRWXU)


def _look(path: Path, mode: int = 0o444, folder_mode: int = 0o555) -> str:
    """Read a sealed journal as somebody who has no right to write, whoever runs the tests."""
    for place in (path.parent, *path.parents[1:-1]):  # the way there must be open to that user
        if place.stat().st_uid == os.getuid() and place != Path("/"):
            place.chmod(place.stat().st_mode | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    path.chmod(mode)
    path.parent.chmod(folder_mode)
    user = "65534" if os.getuid() == 0 else "0"
    found = subprocess.run(
        [sys.executable, "-c", LOOK, str(path), user, made_journal(path.parents[1])],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or found.stderr


def test_a_journal_in_a_sealed_folder_can_be_read(sealed: Path) -> None:
    """Without the right to make the files of the WAL, the file alone is read."""
    assert _look(sealed) == str(HANDLED + DONE + WAITING)


def test_a_sealed_journal_with_a_wal_is_not_read_in_part(sealed: Path) -> None:
    """Events that are in a WAL which cannot be read must not be missing without a word."""
    sealed.with_name("shop.db-wal").write_bytes(b"\x00" * 100)

    assert _look(sealed) == "HR-E202"


@pytest.mark.parametrize(("mode", "folder_mode"), [(0o000, 0o555), (0o444, 0o000)], ids=["file", "folder"])
def test_a_journal_that_may_not_be_read_is_told(sealed: Path, mode: int, folder_mode: int) -> None:
    """Closed to this user, itself or its folder: a code of its own, not a disk that does not answer."""
    assert _look(sealed, mode, folder_mode) == "HR-E221"
