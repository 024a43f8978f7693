"""``headrace replay``: what it refuses, what it prints, how it ends, and that it goes on."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.terminal import Ran, Running, apart

from headrace.cli.output import Exit
from headrace.cli.replay import IDLE_LOOKS, _Run
from headrace.ports.replay import ReplayState
from headrace.settings import Settings

APP = """
import os, time
from headrace import App, Event, RetryPolicy

class Ticket(Event, topic="tickets", key="customer"):
    customer: str
    n: int

class Routed(Event, topic="routed", key="customer"):
    customer: str
    n: int
    by: str

app = App("support")
VERSION = os.environ.get("VERSION", "1")

@app.handler(version=VERSION, retry=RetryPolicy(attempts_max=1))
def route(ticket: Ticket) -> Routed:
    time.sleep(float(os.environ.get("PAUSE_S", 0)))
    if ticket.n == int(os.environ.get("DIES", -1)):
        raise ValueError("on purpose")
    return Routed(customer=ticket.customer, n=ticket.n, by=VERSION)
"""
EVENTS = 12


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A journal whose events the first version has handled."""
    folder = tmp_path_factory.mktemp("lived")
    (folder / "app.py").write_text(APP)
    lines = "".join(json.dumps({"customer": f"c{n % 3}", "n": n}) + "\n" for n in range(EVENTS))
    ran = apart("publish", "app:app", "Ticket", "-", cwd=folder, stdin=lines.encode())
    assert ran.code == Exit.DONE, ran.err
    with Running("run", "app:app", cwd=folder) as worker:
        worker.until("holds 16 partitions")
        while status(folder)["done"] < EVENTS:
            pass
        assert worker.ended(signal.SIGTERM).code == Exit.DONE
    return (folder / "headrace.db").read_bytes()


@pytest.fixture
def folder(lived: bytes, tmp_path: Path) -> Path:
    """A folder of its own for each test."""
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "headrace.db").write_bytes(lived)
    return tmp_path


def status(folder: Path) -> dict[str, int]:
    """Return what is said of the live handler."""
    found = apart("status", "--json", cwd=folder).document["subscriptions"]
    return found[0] if found else {"done": 0}


def replay(folder: Path, *options: object, version: str = "2", **env: str) -> Ran:
    """Run the command with the second version of the app."""
    return apart("replay", "app:app", "route", *options, cwd=folder, env={"VERSION": version, **env})


def test_a_dry_run_says_how_much_there_is_and_writes_nothing(folder: Path) -> None:
    """Neither a topic nor a version is made; what is passed over is told with the reason."""
    before = (folder / "headrace.db").read_bytes()

    ran = replay(folder, "--dry-run", "--json", "--from", 3)

    assert ran.code == Exit.DONE
    assert ran.document == {
        "handler": "support.route", "topic": "tickets", "version": "2", "side": "replay", "again": None,
        "follow": False, "allotted": EVENTS - 2, "skipped": {}, "dry_run": True,
    }  # fmt: skip
    assert (folder / "headrace.db").read_bytes() == before
    ran = replay(folder, "--dry-run", version="1")
    assert "passed over  12 handled by this version live" in ran.out


def test_results_lie_beside_the_live_ones(folder: Path) -> None:
    """In topics of their own; every command tells them from live ones."""
    ran = replay(folder, "--side", "trial", "--json")

    assert ran.code == Exit.DONE
    told = ran.document
    assert (told["allotted"], told["handled"], told["emitted"], told["dead"], told["left"]) == (
        12,
        12,
        12,
        0,
        0,
    )
    assert (told["complete"], told["resumed"], told["skipped"]) == (True, False, {})
    plain = apart("tail", "--jsonl", "--from-offset", 1, cwd=folder).lines
    beside = apart("tail", "--jsonl", "--from-offset", 1, "--side", "trial", cwd=folder).lines
    newest = apart("tail", "--jsonl", "--limit", 5, cwd=folder).lines
    whole = apart("tail", "--jsonl", "--from-offset", 1, "--topic", "routed.side.trial", cwd=folder).lines
    assert {one["side"] for one in plain} == {one["side"] for one in newest} == {None}
    assert len(plain) == 2 * EVENTS
    assert len(newest) == 5
    assert {(one["side"], one["payload"]["by"]) for one in beside} == {("trial", "2")}
    assert len(beside) == EVENTS
    assert whole == beside
    shown = apart("show", plain[0]["event_id"], "--json", cwd=folder).document
    assert [one["side"] for one in shown["chain"]] == [None, None, "trial"]
    assert "side trial" in apart("show", plain[0]["event_id"], cwd=folder).out
    (entry,) = apart("status", "--json", cwd=folder).document["replays"]
    assert (entry["side"], entry["done"], entry["complete"]) == ("trial", EVENTS, True)
    assert "side trial" in apart("status", cwd=folder).out
    why = apart("why", plain[0]["event_id"], "--json", cwd=folder).document["handlers"]
    assert [(one["replay"], one["version"]) for one in why] == [(None, "1"), ("side trial", "2")]
    assert apart("status", "--verify", cwd=folder).code == Exit.DONE


def test_results_go_into_the_live_topics_when_that_is_said(folder: Path) -> None:
    """Once: a repeat has nothing to do."""
    assert replay(folder, "--live", "--json").document["emitted"] == EVENTS
    found = apart("tail", "--jsonl", "--topic", "routed", "--from-offset", 1, cwd=folder).lines
    assert sorted(one["payload"]["by"] for one in found) == ["1"] * EVENTS + ["2"] * EVENTS

    again = replay(folder, "--live")

    assert again.code == Exit.DONE
    assert "nothing to replay into the live topics: 0 events\n" in again.out
    told = replay(folder, "--live", "--json").document
    assert (told["handled"], told["left"], told["complete"]) == (0, 0, True), "for scripts it is as the first"
    assert "12 with another replay of this version" in again.out


def test_again_runs_what_was_handled_once_more(folder: Path) -> None:
    """Under each name once."""
    for name, count in (("one", EVENTS), ("one", 0), ("two", EVENTS)):
        found = replay(folder, "--again", name, "--json", version="1").document
        assert found.get("handled", 0) == count


def test_dead_letters_are_told_and_redriven(folder: Path) -> None:
    """Exit code 1 while there are some; once redriven, the same command goes on with them."""
    ran = replay(folder, DIES="4")
    assert ran.code == Exit.NO
    assert "11 of 12 events handled, 11 emitted, 1 dead, 0 left" in ran.out
    (letter,) = apart("dlq", "ls", "--jsonl", cwd=folder).lines
    assert (letter["replay"], letter["version"]) == ("side replay", "2")
    assert "support.route (side replay)" in apart("dlq", "ls", cwd=folder).out

    assert apart("dlq", "redrive", letter["id"], "--yes", cwd=folder).code == Exit.DONE
    ran = replay(folder, "--json")

    assert (ran.code, ran.document["resumed"], ran.document["handled"]) == (Exit.DONE, True, EVENTS)
    assert apart("status", "--verify", cwd=folder).code == Exit.DONE


def test_an_interrupted_replay_goes_on(folder: Path) -> None:
    """Ctrl-C hands back what is in hand; SIGKILL leaves it to whoever comes next, once the lease is over."""
    slow = {"VERSION": "2", "PAUSE_S": "0.2", "HEADRACE_LEASE_MS": "1000"}
    options = ("replay", "app:app", "route", "--rate", "10/s")
    with Running(*options, cwd=folder, **slow) as first:
        first.until("12 events of history")
        ran = first.ended(signal.SIGINT)
    assert ran.code == Exit.INTERRUPTED
    assert "the same command goes on" in ran.err
    with Running(*options, cwd=folder, **slow) as second:
        second.until("goes on")
        second.ended(signal.SIGKILL)

    ran = replay(folder, "--json", HEADRACE_LEASE_MS="1000")

    assert (ran.code, ran.document["resumed"], ran.document["handled"]) == (Exit.DONE, True, EVENTS)
    assert ran.document["emitted"] == EVENTS
    assert apart("status", "--verify", cwd=folder).code == Exit.DONE


def test_a_replay_without_partitions_says_what_it_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    """Once, after a second, where it goes on: what was killed holds them until its lease is over."""
    app: Any = SimpleNamespace(settings=Settings(lease_ms=2_500))
    under_way = ReplayState(12, 0, 3, 0, 3, complete=False)

    def told(held: int, *, resumed: bool, now: ReplayState = under_way) -> str:
        run = _Run(app, None, None, dry_run=False, as_json=False)
        worker: Any = SimpleNamespace(servers=[SimpleNamespace(consumer=SimpleNamespace(held=lambda: held))])
        begun: Any = SimpleNamespace(resumed=resumed)
        for _ in range(3 * IDLE_LOOKS):
            run._tell_wait(worker, begun, now)
        return capsys.readouterr().err

    said = "no partition is free yet; those of a process that has died come free within 2.5 s\n"
    assert told(0, resumed=True) == said
    assert told(1, resumed=True) == ""
    assert told(0, resumed=False) == ""
    assert told(0, resumed=True, now=under_way._replace(complete=True)) == ""


def test_the_version_that_is_meant_can_be_named(folder: Path) -> None:
    """Another one in the app is a no; nothing is written."""
    ran = replay(folder, "--model-version", "1")
    assert (ran.code, ran.out) == (Exit.NO, "")
    assert "the app holds version 2 of it, not 1" in ran.err
    assert replay(folder, "--model-version", "2", "--dry-run").code == Exit.DONE


@pytest.mark.parametrize(
    ("options", "code", "said"),
    [
        (("--live", "--side", "a"), Exit.UNUSABLE, "--live and --side do not go together"),
        (("--live", "--again", "a"), Exit.UNUSABLE, "handled again only beside the live results"),
        (("--follow", "--to", "9"), Exit.UNUSABLE, "--follow and --to do not go together"),
        (("--follow", "--chain", "a"), Exit.UNUSABLE, "--follow and --chain do not go together"),
        (("--live", "--side", ""), Exit.UNUSABLE, "--live and --side do not go together"),
        (("--side", ""), Exit.UNUSABLE, "--side is empty"),
        (("--again", ""), Exit.UNUSABLE, "--again is empty"),
        (("--model-version", ""), Exit.UNUSABLE, "--model-version is empty"),
        (("--chain", ""), Exit.UNUSABLE, "the id of the event is empty"),
        (("--side", "a b"), Exit.UNUSABLE, "--side 'a b' has characters that are not allowed in a name"),
        (("--again", "../x"), Exit.UNUSABLE, "--again '../x' has characters that are not allowed in a name"),
        (("--side", "ü"), Exit.UNUSABLE, "letters A to Z or a to z, digits, and any of . _ -"),
        (("--side", "a" * 300), Exit.UNUSABLE, "--side is too long: 300 characters, and at most 200"),
        (("--side", "a" * 189), Exit.UNUSABLE, "beside topic routed: 189 characters, and at most 188"),
        (("--from", "10", "--to", "5"), Exit.UNUSABLE, "--from 10 is beyond --to 5"),
        (("--from", "1h", "--to", "2h"), Exit.UNUSABLE, "--from names the beginning: --from 2h --to 1h"),
        (("--from", "yesterday"), Exit.UNUSABLE, "--from 'yesterday' is neither an offset nor a time"),
        (("--rate", "fast"), Exit.UNUSABLE, "--rate 'fast' is no number of events a second"),
        (("--rate", "0"), Exit.UNUSABLE, "--rate '0' is no number of events a second"),
        (("--chain", "01234567"), Exit.NO, "HR-E215"),
        (("--journal", "none.db"), Exit.UNREACHABLE, "There is no journal at none.db"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, options: tuple[str, ...], code: int, said: str) -> None:
    """With a code, before anything is written or made."""
    ran = replay(folder, *options)
    assert (ran.code, ran.out) == (code, "")
    assert said in ran.err
    assert ("error[HR-E505]" in ran.err) == (code == Exit.UNUSABLE)
    beside = ("__", "headrace.db-", ".headrace.db-")
    there = {path.name for path in folder.iterdir() if not path.name.startswith(beside)}
    assert there == {"app.py", "headrace.db"}


def test_times_and_a_chain_bound_it(folder: Path) -> None:
    """A time without a zone is UTC; a chain is named by any of its events."""
    first = apart("tail", "--jsonl", "--from-offset", 1, "--limit", 1, cwd=folder).lines[0]
    assert replay(folder, "--dry-run", "--json", "--to", first["time"]).document["allotted"] == 0
    assert replay(folder, "--dry-run", "--json", "--from", "2020-01-01").document["allotted"] == EVENTS
    found = replay(folder, "--json", "--chain", first["event_id"][:20]).document
    assert found["handled"] == 1


def test_an_unknown_handler_is_answered_with_those_that_are_near(folder: Path) -> None:
    """As by every command."""
    ran = apart("replay", "app:app", "rote", cwd=folder)
    assert ran.code == Exit.NO
    assert "Did you mean support.route?" in ran.err
