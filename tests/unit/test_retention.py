"""Retention as an app declares it: what is refused, and what a worker makes of it."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta
from pathlib import Path

import pytest

from headrace import App, Event, Retention, errors
from headrace.app import World
from headrace.journal.holders import UNKNOWN, holder_of
from headrace.journal.progress import topics
from headrace.journal.reader import Reader
from headrace.ports import Keep
from headrace.settings import Settings
from headrace.testing import ManualClock


class Note(Event, topic="notes", type="retention.note"):
    """Something to keep for a while."""

    text: str


class Remark(Event, topic="notes", type="retention.remark"):
    """Another class of the same topic."""

    text: str


@pytest.mark.parametrize(
    ("rule", "problem"),
    [
        (Retention(), "neither age nor bytes_max"),
        (Retention(age=timedelta(milliseconds=1)), "at least 1 s"),
        (Retention(bytes_max=10), "at least 1,048,576"),
    ],
)
def test_what_cannot_be_meant_is_refused(rule: Retention, problem: str) -> None:
    """A rule without a bound, or with one that no event could live with."""
    with pytest.raises(errors.RetentionInvalid, match=problem):
        App("keeps", retention={Note: rule})


def test_one_topic_has_one_rule() -> None:
    """Two classes of a topic may say the same, not different things."""
    day = Retention(age=timedelta(days=1))
    assert App("keeps", retention={Note: day, Remark: day}).retention == {
        "notes": Keep("notes", 86_400_000_000, None)
    }
    with pytest.raises(errors.RetentionInvalid, match="two event classes"):
        App("keeps", retention={Note: day, Remark: Retention(bytes_max=1 << 20)})


def test_a_worker_keeps_to_it(tmp_path: Path) -> None:
    """It declares the rule and removes what is old while it runs; a topic without a handler too."""
    path = str(tmp_path / "journal.db")

    async def run() -> None:
        past = App("keeps", journal=path)
        past.place_in(World(clock=ManualClock()))
        async with past:
            await past.publish(Note(text="old"))
        app = App("keeps", journal=path, retention={Note: Retention(age=timedelta(hours=1))})
        async with app:
            await app.publish(Note(text="new"))
            stop = asyncio.Event()
            serving = asyncio.create_task(app.run(stop))
            reader = Reader(path)
            while topics(reader)[0].events > 1:  # noqa: ASYNC110 - the journal is the judge
                await asyncio.sleep(0.005)
            (left,) = reader.events()
            reader.close()
            stop.set()
            await serving
            assert b"new" in left.payload

    asyncio.run(run())


def test_a_sweep_that_breaks_is_told_and_work_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it was: nobody waits for the sweep, so it has to tell by itself."""

    async def broken(_self: object) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr("headrace.journal.retention.SqliteSweeper.step", broken)
    app = App("keeps", journal=str(tmp_path / "journal.db"))
    seen = asyncio.Event()

    @app.handler
    async def see(note: Note) -> None:
        seen.set()

    async def run() -> None:
        async with app:
            stop = asyncio.Event()
            serving = asyncio.create_task(app.run(stop))
            await asyncio.sleep(0.05)
            await app.publish(Note(text="after it"))
            async with asyncio.timeout(30):
                await seen.wait()
            stop.set()
            await serving

    asyncio.run(run())
    assert "retention has ended" in caplog.text


def test_on_kafka_it_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The brokers delete: the app runs as ever, and is told which setting of the topic means the same."""
    from headrace.journal.kafka.topics import Elsewhere

    one = Elsewhere([Keep("notes", 86_400_000_000, None)])
    with caplog.at_level(logging.WARNING, "headrace.journal"):
        assert asyncio.run(one.step()) is False
        assert asyncio.run(one.step()) is False

    assert caplog.text.count("HR-E248") == 1
    assert "retention.ms=86400000" in caplog.text


def test_the_window_is_a_setting() -> None:
    """It has a default of 30 days, and bounds."""
    assert Settings().dedup_window_s == 30 * 86_400
    with pytest.raises(errors.SettingInvalid):
        Settings(dedup_window_s=0)


# --- renames as declared ----------------------------------------------------------------------


def test_was_is_a_name_of_the_same_app_or_another() -> None:
    """A short name belongs to the app, one with a dot stands as it is."""
    app = App("keeps")

    @app.handler(was="old")
    async def one(note: Note) -> None: ...

    @app.handler(was="other.old")
    async def two(note: Note) -> None: ...

    assert [handler.was for handler in app.handlers.values()] == ["keeps.old", "other.old"]


@pytest.mark.parametrize("was", ["one", "keeps.one", "white space", ""])
def test_was_has_to_be_another_name(was: str) -> None:
    """Its own name, and what is no name, are refused."""
    app = App("keeps")
    with pytest.raises(errors.SignatureInvalid):

        @app.handler(was=was)
        async def one(note: Note) -> None: ...


def test_a_history_has_one_heir() -> None:
    """Neither two handlers that were the same one, nor one beside that which it was."""
    app = App("keeps")

    @app.handler(was="old")
    async def one(note: Note) -> None: ...

    with pytest.raises(errors.HandlerTwice):

        @app.handler(was="old")
        async def two(note: Note) -> None: ...

    with pytest.raises(errors.HandlerTwice):

        @app.handler
        async def old(note: Note) -> None: ...


# --- who reads --------------------------------------------------------------------------------


def test_the_kernel_tells_who_reads(tmp_path: Path) -> None:
    """Read locks of the -shm lie in five bytes; others are not about readers of old pages."""
    shm = tmp_path / "j.db-shm"
    shm.write_bytes(b"")
    inode = shm.stat().st_ino
    locks = tmp_path / "locks"
    locks.write_text(
        f"1: POSIX  ADVISORY  READ 11 fe:01:{inode} 123 123\n"
        f"2: POSIX  ADVISORY  READ 12 fe:01:{inode} 128 128\n"
        f"3: POSIX  ADVISORY  READ 13 fe:01:{inode + 1} 124 124\n"
        f"4: FLOCK  ADVISORY  READ 14 fe:01:{inode} 124 EOF\n"
        f"5: POSIX  ADVISORY  READ 9 fe:01:{inode} 127 127\n",
        "ascii",
    )

    assert holder_of(str(tmp_path / "j.db"), str(locks)) == "process 9, 11 reads it"
    assert holder_of(str(tmp_path / "j.db"), str(tmp_path / "none")) == UNKNOWN
