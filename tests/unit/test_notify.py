"""Hearing of commits: told by inotify where there is one, found by looking where there is not."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Collection
from pathlib import Path

import pytest
from tests.journal.journals import SqliteFile, SqlitePolling

from headrace.app import World
from headrace.journal.notify import (
    ALL,
    NET_MS,
    POLL_MS,
    SLOTS,
    Notifier,
    Tell,
    Watch,
    has_inotify,
    joined,
)
from headrace.journal.sqlite import SqliteJournal

inotify = pytest.mark.skipif(not has_inotify(), reason="there is no inotify here")


@inotify
@pytest.mark.parametrize(("kind", "interval_ms"), [(SqliteFile(), NET_MS), (SqlitePolling(), POLL_MS)])
def test_each_kind_hears_in_its_own_way(tmp_path: Path, kind: SqliteFile, interval_ms: int) -> None:
    """The suite of journals that is to run without inotify does run without it."""

    async def look() -> None:
        journal = kind.make(tmp_path, World())
        await journal.open()
        lease = await journal.join(10_000)
        subscription = await journal.subscribe("a.b", "things", latest=False)
        journal.consumer(lease, subscription, at_least_once=False)
        watch: Watch = journal._watch  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue]
        assert watch.interval_ms == interval_ms
        await journal.close()

    asyncio.run(look())


# --- who is told of what ----------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder that tells of commits, with its writing side."""
    return str(tmp_path / "j.db-notify")


async def told(
    folder: str, tell: Tell, *, topics: Collection[int] | None, flushed: bool = False
) -> list[Tell]:
    """Return what a watch says of one commit."""
    notifier, found = Notifier(folder, 0o600), list[Tell]()
    watch = Watch(folder, found.append, topics=topics, flushed=flushed)
    watch._timer.cancel()
    notifier.committed(tell)
    notifier.flushed(tell)
    await asyncio.sleep(0.02)
    watch.close()
    notifier.close()
    return found


@inotify
@pytest.mark.parametrize("flushed", [False, True])
@pytest.mark.parametrize(
    ("tell", "topics", "expected"),
    [
        ({1}, [1], [{1}]),
        ({1}, [2], []),
        ({1, 2, 3}, [2, 3], [{2, 3}]),
        ({1}, None, [ALL]),
        ({1}, [], []),
        (ALL, [], [ALL]),
        (ALL, [1, 2], [ALL]),
        ({1 + SLOTS}, [1], [{1}]),  # they share a file: once too often, never once too seldom
        ({1}, [1, 1 + SLOTS], [{1, 1 + SLOTS}]),
    ],
)
def test_who_waits_for_a_topic_hears_of_it_and_of_what_concerns_all(
    folder: str, tell: Tell, topics: list[int] | None, expected: list[Tell], *, flushed: bool
) -> None:
    """Events of other topics wake nobody; several that are told at once are heard at once."""
    assert asyncio.run(told(folder, tell, topics=topics, flushed=flushed)) == expected


@inotify
def test_a_file_that_was_deleted_is_told_like_everything(folder: str) -> None:
    """Somebody tidies up while a worker waits: it looks at all it has, and the net below does the rest."""

    async def main() -> list[Tell]:
        Notifier(folder, 0o600).close()
        found = list[Tell]()
        watch = Watch(folder, found.append, topics=[1])
        watch._timer.cancel()
        shutil.rmtree(folder)
        await asyncio.sleep(0.02)
        assert watch.interval_ms == POLL_MS
        watch.close()
        Notifier(folder, 0o600).close()  # it is made again
        return found

    assert ALL in asyncio.run(main())
    assert len(list(Path(folder).iterdir())) == 2 * (SLOTS + 1)


def test_who_may_use_the_journal_may_use_the_folder(folder: str) -> None:
    """Its mode is that of the journal; who may read that, may look into it."""
    Notifier(folder, 0o640).close()
    assert Path(folder).stat().st_mode & 0o777 == 0o750
    assert {one.stat().st_mode & 0o777 for one in Path(folder).iterdir()} == {0o640}


def test_only_news_that_may_be_our_own_are_looked_at_twice(folder: str) -> None:
    """A worker hears of its own commits too: of those it has been told already."""
    notifier = Notifier(folder, 0o600)
    assert not notifier.told_so({1})
    notifier.committed({1})
    assert not notifier.told_so({2})
    assert notifier.told_so({1})
    assert not notifier.told_so({1}), "the next is of somebody else"
    notifier.close()


@pytest.mark.parametrize(
    ("tells", "expected"),
    [([], set()), ([False], set()), ([{1}, False, {2}], {1, 2}), ([{1}, ALL], ALL), ([set()], set())],
)
def test_several_commits_concern_all_that_each_concerns(tells: list[Tell], expected: Tell) -> None:
    """They share a flush, and what is told after it."""
    assert joined(tells) == expected


@inotify
def test_a_commit_whose_news_never_came_is_found_with_the_next(tmp_path: Path) -> None:
    """A publisher dies between commit and news; what is found with our own news is not passed over."""
    kind = SqliteFile()

    async def main() -> list[Tell]:
        journal, other = kind.make(tmp_path, World()), kind.make(tmp_path, World())
        assert isinstance(journal, SqliteJournal)
        assert isinstance(other, SqliteJournal)
        await journal.open()
        await other.open()
        await journal.join(10_000)
        heard = list[Tell]()
        journal._wake = heard.append  # type: ignore[method-assign]
        ours, theirs = journal.connection(), other.connection()
        journal._wake_if_changed(ALL)
        heard.clear()
        write = "INSERT INTO meta (name, value) VALUES (?, 1)"
        await ours.write(lambda: ours.ex(write, ("own",)), tell={7})
        await theirs.write(lambda: theirs.ex(write, ("foreign",)), tell=False)
        journal._wake_if_changed({7})
        journal._wake_if_changed(ALL)
        await other.close()
        await journal.close()
        return heard

    assert asyncio.run(main()) == [ALL]
