"""A process killed at any failpoint leaves no half outcome; the next one finishes each event once."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from pathlib import Path

import pytest
from tests.journal.journals import Kind
from tests.journal.nursery import EVENTS, Nursery, named, run_once

from headrace.ports import FAILPOINTS, NoFaults

#: Passed more than once in a run of the app: hit the first and the second time.
TWICE = set(FAILPOINTS) - {"version.offered", "balance.taken", "balance.committed", "release.committed"}
DEAD = {n for n in range(EVENTS) if n % 4 == 2}


async def heir(kind: Kind, folder: Path) -> tuple[list[str], Counter[bytes], int]:
    """Run the app again after the lease of the dead; return breaches, children by parent, dead letters."""
    app = await run_once(kind, folder, NoFaults(), late_s=60)
    ledger = kind.ledger(folder, app.journal)
    children = Counter(parent for parent, _, _ in ledger.children().elements())
    found = ledger.breaches(), children, len(ledger.letters())
    await app.close()
    return found


@pytest.mark.parametrize(
    ("point", "hit"), [*[(one, 1) for one in FAILPOINTS], *[(one, 2) for one in sorted(TWICE)]]
)
def test_a_kill_at_any_failpoint_costs_nothing(
    shared_kind: Kind, tmp_path: Path, nursery: Nursery, point: str, hit: int
) -> None:
    """The journal is whole after the kill, and in the end each event has one child or one dead letter."""
    codes = nursery.run(
        {"job": "crash", "kind": shared_kind.where, "folder": str(tmp_path), "point": point, "hit": hit}
    )
    assert codes == [-signal.SIGKILL]

    breaches, children, dead = asyncio.run(heir(shared_kind, tmp_path))
    assert breaches == []
    assert children == {named(n): 1 for n in range(EVENTS) if n not in DEAD}
    assert dead == len(DEAD)


def test_the_crashing_app_ends_by_itself_without_a_failpoint(
    shared_kind: Kind, tmp_path: Path, nursery: Nursery
) -> None:
    """The same run without a kill ends in order, so that the kills above are due to the failpoints."""
    assert nursery.run(
        {"job": "crash", "kind": shared_kind.where, "folder": str(tmp_path), "point": "", "hit": 0}
    ) == [0]
