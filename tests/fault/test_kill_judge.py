"""The judge of `kill_workers.py` finds every fault that is put into a sound journal: it is able to fail."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fault._judge import FAULTS, unpack

HERE = Path(__file__).parent
SEED, EVENTS = 20_250_101, 60
#: Long enough for new weights to be in use before the second attempts.
BACKOFF_MS = 1_500
WAIT_S_MAX = 60.0


def start(role: str, folder: Path, **more: Any) -> subprocess.Popen[bytes]:
    """Start one process of the app."""
    task = {"role": role, "folder": str(folder), "seed": SEED, **more}
    return subprocess.Popen([sys.executable, str(HERE / "_worker.py"), json.dumps(task)])


def until(folder: Path, sql: str, right: Callable[[int], bool]) -> None:
    """Wait until a number in the journal is right."""
    end = time.monotonic() + WAIT_S_MAX
    with closing(sqlite3.connect(f"file:{folder / 'journal.db'}?mode=ro", uri=True, timeout=5)) as db:
        while not right(db.execute(sql).fetchone()[0]):
            assert time.monotonic() < end, sql
            time.sleep(0.05)


def judge(folder: Path) -> dict[str, Any]:
    """Return the verdict on a journal."""
    command = [sys.executable, str(HERE / "_judge.py"), str(folder), str(SEED), str(EVENTS)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=60).stdout)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished journal with two model versions, ranges, exceptions, retries and dead letters."""
    folder = tmp_path_factory.mktemp("sound")
    (folder / "weights.bin").write_bytes(b"weights:one")
    assert start("publisher", folder, last=EVENTS, pace_ms=1.0).wait(WAIT_S_MAX) == 0
    worker = start("worker", folder, backoff_ms=BACKOFF_MS)
    try:
        until(folder, "SELECT count(*) FROM subscription", lambda found: found == 3)
        until(
            folder,
            f"SELECT count(*) FROM open WHERE sub = {SUB} AND state = 'retry'",
            lambda found: found > 9,
        )
        (folder / "weights.new").write_bytes(b"weights:two")
        (folder / "weights.new").replace(folder / "weights.bin")
        until(folder, UNFINISHED, lambda found: found == 0)
    finally:
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(WAIT_S_MAX) == 0
    return folder


UNFINISHED = """
SELECT (SELECT count(*) FROM open) + (SELECT sum(running) FROM position)
    + (SELECT count(*) FROM event JOIN position ON position.tp = event.tp WHERE seq > high)
"""
#: The subscription of `file`, and an event that it has finished under another version than its range's.
SUB = """(SELECT subscription.id FROM subscription
    JOIN handler ON handler.id = subscription.handler WHERE handler.name = 'kill.file')"""
EXCEPTED = f"(SELECT min(seq) FROM exception WHERE sub = {SUB})"
PLACE = f"(SELECT tp FROM event WHERE seq = {EXCEPTED})"
#: Of the two versions, the one that does not stand in the row.
OTHER = f"""(SELECT sum(version.id) FROM version
    JOIN subscription ON subscription.handler = version.handler WHERE subscription.id = {SUB}) - version"""
#: A half outcome: the event is open again, its child is there.
REOPENED = f"""
INSERT INTO open (sub, tp, seq, state, attempts, crashes, generation, due_us, noted_us, errors)
VALUES ({SUB}, {PLACE}, {EXCEPTED}, 'running', 1, 0, 0, 0, 0, '[]')
"""
LETTER = """
INSERT INTO dead SELECT max(id) + 1, sub, tp, seq, generation + 1, version, reason, code, error, traceback,
    attempts, crashes, errors, eid, type, trace, head, body, died_us, fate FROM dead
"""
#: Two children of one key, in each other's place.
SWAPPED = """
CREATE TEMP TABLE pair AS SELECT min(seq) AS a, max(seq) AS b FROM event
    WHERE tp >> 10 = (SELECT id FROM topic WHERE name = 'routed') AND json_extract(body, '$.customer') = 'c4';
UPDATE event SET seq = -1 WHERE seq = (SELECT a FROM pair);
UPDATE event SET seq = (SELECT a FROM pair) WHERE seq = (SELECT b FROM pair);
UPDATE event SET seq = (SELECT b FROM pair) WHERE seq = -1;
"""


def last(topic: str) -> str:
    """Return SQL for the last event of a topic."""
    return f"(SELECT max(seq) FROM event WHERE tp >> 10 = (SELECT id FROM topic WHERE name = '{topic}'))"


def copied(topic: str, event_id: str) -> str:
    """Return SQL that writes the last event of a topic once more."""
    return f"""
    INSERT INTO event (tp, eid, cid, depth, head, body, sum)
    SELECT tp, {event_id}, cid, depth, head, body, sum FROM event WHERE seq = {last(topic)}
    """


#: What is done to the journal, and a fault that it is (it may be others as well).
TAMPERED = {
    "a child is gone": ("lost", f"DELETE FROM event WHERE seq = {last('filed')}"),
    "half an outcome is gone": ("torn", f"DELETE FROM event WHERE seq = {last('filed')}"),
    "a parent is gone": ("torn", f"DELETE FROM event WHERE seq = {last('scored')}"),
    "a ticket is gone": ("lost", f"DELETE FROM event WHERE seq = {last('tickets')}"),
    "a child is there twice": ("doubled", copied("filed", "randomblob(16)")),
    "an id is there twice": ("doubled", f"DROP INDEX event_id; {copied('routed', 'eid')}"),
    "a ticket is there twice": ("doubled", copied("tickets", "randomblob(16)")),
    "a dead letter is gone": ("lost", "DELETE FROM dead WHERE id = (SELECT min(id) FROM dead)"),
    "a dead letter is there twice": ("doubled", LETTER),
    "a child of what is not finished": ("torn", REOPENED),
    "an event is open again": ("lost", REOPENED),
    "an open row without an event": ("torn", REOPENED.replace(f"{PLACE}, {EXCEPTED}", "1024, 999999")),
    "the position has gone back": ("lost", f"UPDATE position SET high = {EXCEPTED} - 1 WHERE tp = {PLACE}"),
    "a range is still claimed": ("torn", f"UPDATE position SET claimed_after = 0 WHERE tp = {PLACE}"),
    "done counts one too many": ("torn", "UPDATE position SET done = done + 1 WHERE tp = 1024"),
    "taken counts one too few": ("torn", "UPDATE position SET taken = taken - 1 WHERE tp = 1024"),
    "something still runs": ("torn", "UPDATE position SET running = 1 WHERE tp = 1024"),
    "a range names another version": (
        "two_versions",
        f"UPDATE range SET version = {OTHER} WHERE sub = {SUB}",
    ),
    "the ranges are gone": ("two_versions", f"DELETE FROM range WHERE sub = {SUB}"),
    "an exception row is gone": ("two_versions", f"DELETE FROM exception WHERE seq = {EXCEPTED}"),
    "an exception row names the range's version": (
        "two_versions",
        f"UPDATE exception SET version = {OTHER} WHERE seq = {EXCEPTED}",
    ),
    "an exception row without an event": (
        "two_versions",
        f"INSERT INTO exception SELECT sub, tp, 999999, version FROM exception WHERE seq = {EXCEPTED}",
    ),
    "a child has a random id": (
        "two_versions",
        f"UPDATE event SET eid = randomblob(16) WHERE seq = {last('filed')}",
    ),
    "a child was made with other weights": (
        "two_versions",
        f"""UPDATE event SET body = CAST(json_set(body, '$.weights', 'other') AS BLOB)
        WHERE seq = {last("filed")}""",
    ),
    "a version has another model": ("two_versions", "UPDATE model SET epoch = epoch + 10"),
    "a dead letter names another version": ("two_versions", "UPDATE dead SET version = version - 1"),
    "children are not in order": ("disordered", SWAPPED),
}


def test_a_sound_journal_is_found_sound(sound: Path) -> None:
    """No fault is found where there is none, though retries ran under another version than their range's."""
    verdict = judge(sound)

    assert {fault: verdict[fault] for fault in FAULTS} == dict.fromkeys(FAULTS, 0), verdict["notes"]
    assert verdict["reruns"] > 9


@pytest.mark.parametrize(("fault", "sql"), TAMPERED.values(), ids=TAMPERED)
def test_a_fault_that_was_put_in_is_found(sound: Path, tmp_path: Path, fault: str, sql: str) -> None:
    """The judge blames the fault that was made, and exactly when something was changed."""
    folder = tmp_path / "tampered"
    shutil.copytree(sound, folder)
    with closing(sqlite3.connect(folder / "journal.db", isolation_level=None)) as db:
        before = db.total_changes
        db.executescript(sql)
        assert db.total_changes > before, "nothing was tampered with"

    verdict = judge(folder)

    assert verdict[fault] > 0, verdict


def test_a_commit_of_what_was_never_run_is_found(sound: Path, tmp_path: Path) -> None:
    """A version that has finished an event, but has not called its handler, is blamed."""
    folder = tmp_path / "tampered"
    shutil.copytree(sound, folder)
    calls = (folder / "calls.log").read_text("ascii").splitlines()
    (folder / "calls.log").write_text(
        "\n".join(line for line in calls if not line.startswith("kill.file 3 "))
    )

    assert judge(folder)["two_versions"] == 1


SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text() | st.binary()


@given(
    st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)
)
def test_the_judge_reads_msgpack(value: Any) -> None:
    """What another library has packed, the judge's own few lines unpack."""
    assert unpack(msgspec.msgpack.encode(value)) == value


@pytest.mark.parametrize("size", [15, 16, 31, 32, 255, 256, 65_535, 65_536])
def test_the_judge_reads_long_values(size: int) -> None:
    """Every form of a length is read: text, bytes, lists, mappings."""
    value = ["x" * size, b"x" * size, [1] * size, {str(n): n for n in range(size)}]

    assert unpack(msgspec.msgpack.encode(value)) == value
