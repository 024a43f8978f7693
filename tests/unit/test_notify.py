"""Hearing of commits: told by inotify where there is one, found by looking where there is not."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.journal.journals import SqliteFile, SqlitePolling

from headrace.app import World
from headrace.journal.notify import NET_MS, POLL_MS, Watch, has_inotify


@pytest.mark.skipif(not has_inotify(), reason="there is no inotify here")
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
