"""Commands that look after a journal: compact, backup, erase, handler; what they ask, count and refuse."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest
from tests.unit.shop import DEAD, HANDLED, WAITING, change, made_app, made_journal, settle
from tests.unit.terminal import here

from headrace.app import World
from headrace.cli.output import Exit
from headrace.journal.file import JOURNAL
from headrace.journal.queries import read
from headrace.journal.source import Source
from headrace.journal.sqlite import SqliteJournal
from headrace.ports import Keep

Capture = pytest.CaptureFixture[str]
KAFKA = "kafka://nowhere:9092"


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A journal of its own for each test, named by the environment."""
    monkeypatch.chdir(tmp_path)
    path = made_journal(tmp_path)
    monkeypatch.setenv("HEADRACE_JOURNAL", path)
    monkeypatch.setenv("NO_COLOR", "1")
    return path


@pytest.fixture
def reader(journal: str) -> Iterator[apsw.Connection]:
    """Somebody who reads, and does not end."""
    db = apsw.Connection(journal, flags=apsw.SQLITE_OPEN_READONLY)
    db.execute("BEGIN").fetchall()
    db.execute("SELECT count(*) FROM event").fetchall()
    yield db
    db.close()


def traces(folder: Path, secret: bytes) -> list[str]:
    """Return the files in which some bytes stand."""
    return [one.name for one in folder.rglob("*") if one.is_file() and secret in one.read_bytes()]


# --- compact ----------------------------------------------------------------------------------


def test_compact_gives_back_what_is_free(capsys: Capture, journal: str) -> None:
    """In steps; the journal is the same, and smaller."""
    blown_up = "seq + 1000, tp, randomblob(16), cid, depth, head, zeroblob(99999), 0"
    change(journal, f"INSERT INTO event SELECT {blown_up} FROM event")
    change(journal, "DELETE FROM event WHERE seq > 1000")
    size = Path(journal).stat().st_size

    ran = here(capsys, "compact", "--json")

    assert (ran.code, ran.document["before"]["file_bytes"]) == (Exit.DONE, size)
    after = ran.document["after"]
    assert (after["free_bytes"], after["wal_bytes"]) == (0, 0)
    assert after["file_bytes"] == Path(journal).stat().st_size < size / 5
    assert here(capsys, "status", "--verify").code == Exit.DONE


def test_compact_says_who_is_in_the_way(
    capsys: Capture, journal: str, reader: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While somebody reads, what was written stays in the WAL: exit code 1, and which process it is."""
    monkeypatch.setattr("headrace.journal.care.EMPTY_TRIES_MAX", 2)
    change(journal, "INSERT INTO meta VALUES ('something', 1)")

    ran = here(capsys, "compact")

    assert ran.code == Exit.NO
    assert (
        f"error[HR-E247]: The WAL of {journal} could not be emptied: process {os.getpid()} reads it"
        in ran.err
    )


def test_an_older_file_is_rewritten_once(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that cannot give back in steps is told so; rewritten it can."""
    path = str(tmp_path / "old.db")
    monkeypatch.setenv("HEADRACE_JOURNAL", path)
    change(path, "PRAGMA journal_mode=WAL")
    change(path, read(JOURNAL.scripts[0]))
    change(path, f"PRAGMA application_id={JOURNAL.application_id}")
    change(path, "PRAGMA user_version=1")
    old = here(capsys, "status")
    assert (old.code, "error[HR-E240]" in old.err) == (Exit.UNREACHABLE, True)

    steps = here(capsys, "compact")
    whole = here(capsys, "compact", "--whole", "--yes")
    again = here(capsys, "compact")

    assert (steps.code, "--whole" in steps.err) == (Exit.UNUSABLE, True)
    assert (whole.code, again.code) == (Exit.DONE, Exit.DONE)
    assert here(capsys, "status", "--verify").code == Exit.DONE


# --- backup -----------------------------------------------------------------------------------


def test_a_backup_is_a_journal(capsys: Capture, journal: str, tmp_path: Path) -> None:
    """It verifies, holds the same, is readable to the same, and leaves nothing beside it."""
    Path(journal).chmod(0o640)
    ran = here(capsys, "backup", "copy.db", "--json")

    assert (ran.code, ran.document["path"]) == (Exit.DONE, "copy.db")
    assert ran.document["size_bytes"] == Path("copy.db").stat().st_size
    assert Path("copy.db").stat().st_mode & 0o777 == 0o640
    mine, theirs = (
        here(capsys, "status", "--verify", "--json", "--journal", one) for one in (journal, "copy.db")
    )
    counts = ("handler", "published", "waiting", "done", "dead", "expired", "sound")
    pairs = zip(mine.document["subscriptions"], theirs.document["subscriptions"], strict=True)
    assert all(one[name] == other[name] for one, other in pairs for name in counts)
    assert not [one.name for one in tmp_path.iterdir() if "part" in one.name]


def test_a_backup_goes_on_where_the_journal_was(capsys: Capture, journal: str) -> None:
    """Restored, what was waiting is handled, and what was done is not handled again."""
    here(capsys, "backup", "copy.db")

    async def restored() -> None:
        app = made_app("copy.db")
        async with app:
            await settle(app, "copy.db")

    asyncio.run(restored())

    found = here(capsys, "status", "--verify", "--json", "--journal", "copy.db")
    pack = found.document["subscriptions"][0]
    assert (pack["done"], pack["dead"]) == (HANDLED + WAITING - DEAD, DEAD)
    assert found.code == Exit.DONE


@pytest.mark.parametrize(
    ("target", "problem"), [("there.db", "it exists"), ("no/where.db", "does not exist")]
)
def test_a_backup_replaces_nothing(capsys: Capture, journal: str, target: str, problem: str) -> None:
    """A file that is there stays, whatever it is; a folder is not made."""
    Path("there.db").write_bytes(b"mine")

    ran = here(capsys, "backup", target)

    assert (ran.code, ran.out) == (Exit.NO, "")
    assert f"error[HR-E242]: No backup was made at {target}: " in ran.err
    assert problem in ran.err
    assert Path("there.db").read_bytes() == b"mine"


def test_a_damaged_journal_is_not_backed_up(capsys: Capture, journal: str, tmp_path: Path) -> None:
    """A copy that does not verify does not get the name: nobody should rely on it."""
    change(journal, "UPDATE event SET body = x'7b7d' WHERE seq = 1")
    before = {one.name for one in tmp_path.iterdir()}

    ran = here(capsys, "backup", "copy.db")

    assert (ran.code, "checksum" in ran.err) == (Exit.NO, True)
    assert {one.name for one in tmp_path.iterdir()} - {
        "shop.db-wal",
        "shop.db-shm",
        ".shop.db-notify",
    } <= before


def test_what_a_killed_backup_left_is_removed(capsys: Capture, journal: str) -> None:
    """Parts of processes that are gone; not those of one that lives, nor other files."""
    gone, lives = Path(".copy.db.999999999.part"), Path(f".copy.db.{os.getppid()}.part")
    other = Path(".other.db.999999999.part")
    for one in (gone, lives, other):
        one.write_bytes(b"x")

    here(capsys, "backup", "copy.db")

    assert [one.exists() for one in (gone, lives, other)] == [False, True, True]


def test_what_is_left_can_be_copied(journal: str) -> None:
    """A journal that moves to Kafka counts what there is: what is gone stays behind."""

    async def sweep() -> None:
        world = World()
        one = SqliteJournal(journal, clock=world.clock, chance=world.chance, faults=world.faults)
        await one.open()
        sweeper = one.sweeper("shop", (Keep("orders", 1, None),), 10**15)
        while await sweeper.step():
            pass
        await one.close()

    asyncio.run(sweep())
    source = Source(journal, World().clock)
    pack = next(one for one in source.subscriptions() if one.handler == "shop.pack")
    source.close()

    assert sum(part.taken for part in pack.parts) == sum(part.dead for part in pack.parts) == DEAD
    assert sum(part.done for part in pack.parts) == 0


# --- erase ------------------------------------------------------------------------------------


def test_erase_leaves_no_byte(capsys: Capture, journal: str, tmp_path: Path) -> None:
    """Not in the file, its WAL, the files beside it, nor in a backup made after."""
    secret = b'"customer-1"'
    assert traces(tmp_path, secret) == ["shop.db"]

    ran = here(capsys, "erase", "--key", "customer-1", "--yes", "--json")
    here(capsys, "backup", "copy.db")

    assert ran.code == Exit.DONE
    assert ran.document["topics"]["orders"] == HANDLED / 4 + 1
    assert (ran.document["dead_letters"], ran.document["expired"]) == (1, 1)
    assert traces(tmp_path, secret) == []
    assert here(capsys, "status", "--verify").code == Exit.DONE


def test_erase_of_an_empty_key_is_refused(capsys: Capture, journal: str) -> None:
    """A script has left it blank; nothing would be erased, and that would look done."""
    ran = here(capsys, "erase", "--key", "customer-1", "--key", "", "--yes")

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert "error[HR-E505]: The command line cannot be followed: --key is empty" in ran.err


def test_an_erased_event_is_told_as_such(capsys: Capture, journal: str) -> None:
    """`show` draws its chain, `why` says what became of it, `dlq` lists the reason."""
    event_id = here(capsys, "tail", "--jsonl", "--topic", "orders", "--limit", 1).lines[0]["event_id"]
    key = here(capsys, "show", event_id, "--json").document["key"]
    here(capsys, "erase", "--key", key, "--yes")

    shown, why = here(capsys, "show", event_id), here(capsys, "why", event_id)

    assert "payload erased" in shown.out
    assert here(capsys, "show", event_id, "--json").document["removed"] == "erased"
    assert "shop.pack: expired" in why.out
    assert "erased [HR-E245]" in why.out
    assert here(capsys, "dlq", "ls", "--all", "--reason", "erased", "--jsonl").lines[0]["fate"] == "expired"


def test_erase_says_what_it_leaves(capsys: Capture, journal: str) -> None:
    """Effects under other keys, and all that no command reaches."""
    here(capsys, "erase", "--key", "customer-1", "--topic", "orders", "--dry-run")
    ran = here(capsys, "erase", "--key", "customer-1", "--topic", "orders", "--dry-run")

    assert ran.code == Exit.DONE
    assert "would be erased" in ran.out
    assert "keep their payload; --effects takes them too" in ran.err
    assert "not reached: backups made before" in ran.err


def test_erase_says_when_a_reader_keeps_old_pages(
    capsys: Capture, journal: str, reader: apsw.Connection, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit code 1 and who it is; once the reader has ended `compact` empties the WAL."""
    monkeypatch.setattr("headrace.journal.care.EMPTY_TRIES_MAX", 2)

    ran = here(capsys, "erase", "--key", "customer-1", "--yes", "--json")
    assert (ran.code, ran.document["holder"]) == (Exit.NO, f"process {os.getpid()} reads it")
    assert "error[HR-E247]" in ran.err

    reader.close()
    assert here(capsys, "compact").code == Exit.DONE
    assert traces(tmp_path, b'"customer-1"') == []


def test_an_erasure_that_was_cut_short_is_finished(
    capsys: Capture, journal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is found any more, but pages are not rewritten yet: the same command sees to it."""

    async def killed(_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("headrace.journal.care.SqliteCare._rewrite", killed)
        with pytest.raises(KeyboardInterrupt):
            here(capsys, "erase", "--key", "customer-1", "--yes")
    here(capsys, "compact")

    ran = here(capsys, "erase", "--key", "customer-1", "--yes")

    assert (ran.code, "0 events" in ran.out) == (Exit.DONE, True)
    assert traces(tmp_path, b'"customer-1"') == []


# --- handlers ---------------------------------------------------------------------------------


def test_handlers_are_listed_and_retired(capsys: Capture, journal: str) -> None:
    """A retired one stands in the list as such, and no longer in `status`."""
    dry = here(capsys, "handler", "retire", "pack", "--dry-run", "--json")
    ran = here(capsys, "handler", "retire", "pack", "--yes")
    listed = here(capsys, "handler", "ls", "--json").document["handlers"]

    assert dry.document == {
        "handler": "shop.pack", "closed": 0, "untaken": WAITING, "replays": 0, "replayed_closed": 0,
        "dry_run": True,
    }  # fmt: skip
    assert ran.out == f"shop.pack is retired: 0 open events closed, {WAITING} not taken\n"
    none = here(capsys, "handler", "retire", "send", "--replays", "--yes")
    assert (none.code, "no unfinished replay" in none.err) == (Exit.NO, True)
    assert {one["handler"]: one["state"] for one in listed} == {"shop.pack": "retired", "shop.send": "live"}
    told = here(capsys, "status", "--json").document["subscriptions"]
    assert [one["handler"] for one in told] == ["shop.send"]
    assert here(capsys, "handler", "retire", "pack", "--yes").code == Exit.NO
    head, *rows = (line.split() for line in here(capsys, "handler", "ls").out.splitlines())
    assert list(dict(zip(head, rows[-1], strict=True)).items()) == [
        ("HANDLER", "shop.pack"), ("TOPIC", "orders"), ("STATE", "retired"), ("VERSION", "-"),
        ("WAITING", "0"), ("DONE", f"{HANDLED - DEAD}"), ("DEAD", f"{DEAD}"), ("EXPIRED", "0"),
        ("WORKERS", "0"),
    ]  # fmt: skip
    (gone,) = (one for one in listed if one["state"] == "retired")
    assert gone["active_version"] is None
    assert (gone["done"], gone["dead"], gone["running"]) == (HANDLED - DEAD, DEAD, 0)


@pytest.mark.parametrize(
    "command", [("erase", "--key", "customer-1"), ("handler", "retire", "pack"), ("compact", "--whole")]
)
def test_a_person_is_asked(capsys: Capture, journal: str, command: tuple[str, ...]) -> None:
    """Without a terminal a script has to say --yes, and nothing is done."""
    before = change(journal, "SELECT * FROM event ORDER BY seq")

    ran = here(capsys, *command)

    assert (ran.code, ran.err.endswith("hint: add --yes\n")) == (Exit.UNUSABLE, True)
    assert change(journal, "SELECT * FROM event ORDER BY seq") == before


# --- on Kafka ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (("compact",), "retention.ms"),
        (("backup", "copy.db"), "headrace index rebuild"),
        (("erase", "--key", "a", "--yes"), "Kafka deletes no single record"),
        (("handler", "retire", "pack", "--yes"), "kafka-consumer-groups.sh"),
    ],
)
def test_on_kafka_each_says_what_to_do_instead(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], instead: str
) -> None:
    """A coded error with a hint, without asking any broker."""
    monkeypatch.setenv("HEADRACE_JOURNAL", KAFKA)

    ran = here(capsys, *command)

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert "error[HR-E241]: A journal on Kafka has no `headrace " in ran.err
    assert instead in ran.err


@pytest.mark.parametrize("command", [("compact",), ("backup", "x"), ("erase", "--key", "a", "--yes")])
def test_what_is_not_there_is_not_made(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    """A journal that nobody has made is an error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_JOURNAL", "nothing.db")

    assert (here(capsys, *command).code, list(tmp_path.iterdir())) == (Exit.UNREACHABLE, [])
