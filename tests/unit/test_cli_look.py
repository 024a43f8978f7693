"""Commands that look: data on stdout, as text or JSON; a journal is neither made nor changed."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.shop import DEAD, HANDLED, WAITING, change, made_journal
from tests.unit.terminal import Ran, here

from headrace.cli.output import Exit

Capture = pytest.CaptureFixture[str]
DONE = HANDLED - DEAD


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A journal of its own for each test, in the working directory but not under the usual name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_JOURNAL", raising=False)
    return made_journal(tmp_path)


def first(capsys: Capture, journal: str, *options: str) -> dict[str, Any]:
    """Return the first event that `tail` shows."""
    return here(
        capsys, "tail", "--journal", journal, "--jsonl", "--from-offset", 1, "--limit", 1, *options
    ).lines[0]


LOOKS = (
    ("status",),
    ("tail",),
    ("show", "01234567"),
    ("why", "01234567"),
    ("dlq", "ls"),
    ("dlq", "show", "1"),
    ("dlq", "redrive", "1", "--yes"),
    ("dlq", "drop", "1", "--yes"),
    ("model", "history"),
    ("model", "activate", "a", "b"),
)


@pytest.mark.parametrize("arguments", LOOKS, ids=" ".join)
def test_no_command_makes_a_journal(
    capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    """Where there is none they say so, with exit code 3, and leave none behind."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE_JOURNAL", raising=False)

    ran = here(capsys, *arguments)

    assert (ran.code, ran.out) == (Exit.UNREACHABLE, "")
    assert ran.err.startswith("error[HR-E213]: There is no journal at headrace.db.\n\nhint: ")
    assert list(tmp_path.iterdir()) == []


def test_the_journal_comes_from_flag_environment_or_file(
    capsys: Capture, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A flag wins over the environment, which wins over the settings file."""
    Path("headrace.toml").write_text(f'journal = "{journal}"\n')

    assert here(capsys, "status").code == Exit.DONE
    monkeypatch.setenv("HEADRACE_JOURNAL", "elsewhere.db")
    assert "elsewhere.db" in here(capsys, "status").err
    assert here(capsys, "status", "--journal", journal).code == Exit.DONE
    assert here(capsys, "status", "--journal", f"sqlite:////{journal.lstrip('/')}").code == Exit.DONE
    assert here(capsys, "status", "--journal", "ftp://x").code == Exit.UNUSABLE


# --- status -----------------------------------------------------------------------------------


def test_status_shows_the_equation(capsys: Capture, journal: str) -> None:
    """Per handler each of its terms; whether it holds; what is in the way."""
    ran = here(capsys, "status", "--journal", journal, "--verify")

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert "published = waiting + running + parked + done + dead + expired: holds" in ran.out
    assert "verify: clean" in ran.out
    assert "shop.pack: no live worker (1)" in ran.out
    assert f"{DEAD} dead letters" in ran.out
    row = next(line for line in ran.out.splitlines() if line.startswith("shop.pack"))
    assert row.split()[1:8] == [str(one) for one in (HANDLED + WAITING, WAITING, 0, 0, DONE, DEAD, 0)]


def test_status_as_json_adds_up(capsys: Capture, journal: str) -> None:
    """One document with stable keys, in which each equation can be checked."""
    found = here(capsys, "status", "--journal", journal, "--json").document

    assert found["sound"] is True
    assert "violations" not in found
    for one in found["subscriptions"]:
        terms = [one[name] for name in ("waiting", "running", "parked", "done", "dead", "expired")]
        assert one["published"] == sum(terms)
    assert found["subscriptions"][0]["trouble"] == "no live worker"
    assert found["subscriptions"][0]["oldest_waiting_s"] > 0
    unbounded = {"age_us": None, "bytes_max": None, "bytes": None}
    assert found["topics"][0] == {
        "name": "orders",
        "partitions": 16,
        "events": HANDLED + WAITING,
        **unbounded,
    }


def test_status_verify_fails_for_a_broken_journal(capsys: Capture, journal: str) -> None:
    """Exit code 1, and each rule that is broken is named, with where."""
    change(journal, "UPDATE event SET body = x'7b7d' WHERE seq = 1")

    ran = here(capsys, "status", "--journal", journal, "--verify")
    as_json = here(capsys, "status", "--journal", journal, "--verify", "--json")

    assert ran.code == as_json.code == Exit.NO
    assert "verify: checksum: offset 1: event" in ran.err
    assert [one["rule"] for one in as_json.document["violations"]] == ["checksum"]
    assert here(capsys, "status", "--journal", journal).code == Exit.DONE  # without --verify it only looks


# --- tail -------------------------------------------------------------------------------------


def test_tail_shows_the_newest_events(capsys: Capture, journal: str) -> None:
    """Ten without a word, fewer or more on demand; text has a line per event."""
    ten = here(capsys, "tail", "--journal", journal)
    all_of_them = here(capsys, "tail", "--journal", journal, "--limit", 1000, "--jsonl").lines

    assert len(ten.out.splitlines()) == 10
    assert len(all_of_them) == HANDLED + DONE + WAITING
    assert [one["offset"] for one in all_of_them] == sorted(one["offset"] for one in all_of_them)
    assert str(all_of_them[-1]["event_id"]) in ten.out.splitlines()[-1]


def test_tail_filters_and_begins_where_told(capsys: Capture, journal: str) -> None:
    """By topic, by type, from an offset on, which counts itself."""

    def shown(*options: object) -> list[Any]:
        return here(capsys, "tail", "--journal", journal, "--jsonl", *options).lines

    assert {one["topic"] for one in shown("--topic", "packed", "--from-offset", 0)} == {"packed"}
    assert len(shown("--type", "Packed", "--limit", 1000)) == DONE
    assert [one["offset"] for one in shown("--from-offset", 5, "--limit", 2)] == [5, 6]
    assert shown("--from-offset", 10_000) == []
    nothing = here(capsys, "tail", "--journal", journal, "--topic", "ordres")
    assert (nothing.code, nothing.out) == (Exit.DONE, "")
    assert "no topic ordres; it has orders, packed" in nothing.err


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--type", "nope"), "no event of type nope was found\n"),
        (("--type", "nope", "--from", "1"), "no event of type nope was found\n"),
        (("--type", "nope", "--limit", "3"), "no event of type nope was found\n"),
        (("--side", "nope"), "the journal has no side nope; it has none\n"),
    ],
)
def test_tail_tells_of_a_name_that_leads_to_nothing(
    capsys: Capture, journal: str, options: tuple[str, ...], said: str
) -> None:
    """A slip of the pen looks like an empty journal otherwise; it is no failure."""
    ran = here(capsys, "tail", "--journal", journal, *options)

    assert (ran.code, ran.out) == (Exit.DONE, "")
    assert f"warning: {said}" in ran.err
    assert "warning" not in here(capsys, "tail", "--journal", journal, "--type", "Packed").err


def test_an_id_that_is_empty_is_refused(capsys: Capture, journal: str) -> None:
    """A script has left it blank; nobody's id is empty."""
    for command in (("why", ""), ("show", ""), ("tail", "--chain", ""), ("dlq", "show", "")):
        ran = here(capsys, *command, "--journal", journal)
        assert (ran.code, ran.out) == (Exit.UNUSABLE, ""), command
        assert "error[HR-E505]" in ran.err
        assert "is empty" in ran.err


def test_tail_filters_by_key_and_content(capsys: Capture, journal: str) -> None:
    """Only what fits counts for the newest; several conditions hold together; text is compared as it is."""

    def shown(*options: object) -> list[Any]:
        return here(capsys, "tail", "--journal", journal, "--jsonl", *options).lines

    mine = shown("--key", "customer-1", "--limit", 1000)
    assert {one["key"] for one in mine} == {"customer-1"}
    assert len(shown("--key", "customer-1", "--limit", 2)) == 2
    found = shown("--where", "number=7", "--where", "customer=customer-3", "--from", 0)
    assert {one["type"] for one in found} == {"Order", "Packed"}
    assert {one["payload"]["number"] for one in found} == {7}
    assert shown("--where", "number.deep=7", "--where", "nothing=x") == []


def test_tail_shows_a_stretch_of_time(capsys: Capture, journal: str) -> None:
    """From a time, which counts itself, to before another; or to an offset, which counts itself."""

    def shown(*options: object) -> list[Any]:
        return here(capsys, "tail", "--journal", journal, "--jsonl", *options).lines

    everything = shown("--from", 0)
    first, last = everything[5]["time"], everything[-2]["time"]
    expected = [one for one in everything if first <= one["time"] < last]
    assert shown("--from", first, "--to", last) == expected
    assert shown("--from", first.removesuffix("Z") + "+00:00", "--to", last) == expected
    assert shown("--from", 3, "--to", 6) == [one for one in everything if 3 <= one["offset"] <= 6]
    assert shown("--from", "2000-01-01", "--to", "2001-01-01") == []
    assert shown("--from", "2100-01-01") == []
    assert len(shown("--from", "1d", "--limit", 1000)) == len(everything)


def test_tail_shows_a_chain(capsys: Capture, journal: str) -> None:
    """All that belongs to one event, by any of its members; other filters hold besides."""
    packed = first(capsys, journal, "--type", "Packed")

    def shown(*options: object) -> list[Any]:
        return here(capsys, "tail", "--journal", journal, "--jsonl", "--chain", *options).lines

    for member in (packed["event_id"], packed["causality_id"]):
        assert [one["type"] for one in shown(member)] == ["Order", "Packed"]
    assert [one["type"] for one in shown(packed["event_id"], "--topic", "packed")] == ["Packed"]
    missing = here(capsys, "tail", "--journal", journal, "--chain", "ffffffffffffffff")
    assert (missing.code, missing.out) == (Exit.NO, "")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--from", "yesterday"), "--from 'yesterday' is neither an offset nor a time"),
        (("--to", "2026-13-01"), "--to '2026-13-01' is neither an offset nor a time"),
        (("--where", "x"), "--where 'x' has no field, or no value"),
        (("--where", "=x"), "--where '=x' has no field, or no value"),
        (("--to", "5", "--follow"), "--to ends, and --follow does not"),
    ],
)
def test_tail_says_what_it_cannot_follow(
    capsys: Capture, journal: str, options: tuple[str, ...], said: str
) -> None:
    """Exit code 2 and a hint, before anything is shown."""
    ran = here(capsys, "tail", "--journal", journal, *options)

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert said in ran.err
    assert "\n\nhint: " in ran.err


def test_tail_gives_the_whole_envelope(capsys: Capture, journal: str) -> None:
    """Stable keys, RFC 3339 times, the payload as JSON."""
    found = first(capsys, journal, "--type", "Packed")

    assert found["type"] == "Packed"
    assert found["handler"] == "shop.pack@1"
    assert found["parent_ids"] == [found["causality_id"]]
    assert found["payload"].keys() == {"customer", "number"}
    assert found["time"].endswith("Z")
    assert datetime.fromisoformat(found["time"]).utcoffset() is not None


def test_bytes_from_the_journal_cannot_steer_a_terminal(capsys: Capture, journal: str) -> None:
    """Escape sequences in payloads, keys and errors are spelled out; JSON keeps them, as JSON does."""
    change(
        journal, "UPDATE event SET body = CAST(? AS BLOB) WHERE seq = 1", '{"customer":"\x1b[2J\x9b2J\u202e"}'
    )

    text = here(capsys, "tail", "--journal", journal, "--from-offset", 1, "--limit", 1)
    letter = here(capsys, "dlq", "show", "1", "--journal", journal)
    as_json = here(capsys, "dlq", "show", "1", "--journal", journal, "--json")

    for ran in (text, letter):
        assert "\x1b" not in ran.out
        assert "\x9b" not in ran.out
        assert "\u202e" not in ran.out
    assert "\\x1b[2J" in text.out
    assert "no box for \\x1b[31m" in letter.out
    assert "no box for \x1b[31m" in as_json.document["error"]


def test_a_payload_that_is_not_json_is_kept(capsys: Capture, journal: str) -> None:
    """Its bytes are shown, in base64 where the document is JSON."""
    change(journal, "UPDATE event SET body = x'80ff' WHERE seq = 1")

    assert first(capsys, journal)["payload_base64"] == "gP8="
    assert "\\x80\\xff" in here(capsys, "tail", "--journal", journal, "--from-offset", 1, "--limit", 1).out


# --- show and why -----------------------------------------------------------------------------


def test_show_tells_of_the_whole_chain(capsys: Capture, journal: str) -> None:
    """Payload, envelope, and the tree of causes with handlers and timings, from either end."""
    packed = first(capsys, journal, "--type", "Packed")
    text = here(capsys, "show", packed["event_id"], "--journal", journal)
    cause = here(capsys, "show", packed["causality_id"], "--journal", journal, "--json").document

    assert text.code == Exit.DONE
    tree = text.out[text.out.index("chain of 2 events") :].splitlines()
    assert tree[1].strip().startswith(f"Order {packed['causality_id']}  published by service:shop")
    assert tree[2].strip().startswith(f"└─ Packed {packed['event_id']}  shop.pack@1, after ")
    assert tree[2].endswith("<- this one")
    assert [one["event_id"] for one in cause["chain"]] == [packed["causality_id"], packed["event_id"]]
    assert cause["chain"][0]["after_ms"] is None
    assert cause["chain"][1]["after_ms"] >= 0
    assert cause["chain_whole"] is True


@pytest.mark.parametrize("noun", ["show", "why"])
def test_an_unknown_event_is_a_no(capsys: Capture, journal: str, noun: str) -> None:
    """Exit code 1: the command ran, and there is no such event."""
    ran = here(capsys, noun, "01234567", "--journal", journal)

    assert (ran.code, ran.out) == (Exit.NO, "")
    assert ran.err.startswith("error[HR-E215]: No event has the id 01234567.")


def test_why_tells_what_an_event_waits_for(capsys: Capture, journal: str) -> None:
    """Waiting: its place, and that nobody is there to take it; done: by which version."""
    newest = here(capsys, "tail", "--journal", journal, "--limit", 1, "--jsonl").lines[0]
    packed = first(capsys, journal, "--type", "Packed")

    waiting = here(capsys, "why", newest["event_id"], "--journal", journal)
    done = here(capsys, "why", packed["event_id"], "--journal", journal, "--json").document

    assert "shop.pack: waiting" in waiting.out
    assert "No worker is alive: start one with `headrace run`." in waiting.out
    assert done["handlers"][0]["state"] == "done"
    assert done["handlers"][0]["because"] == ["Handled by version 1."]


def test_why_tells_how_an_event_died(capsys: Capture, journal: str) -> None:
    """Reason, code, error, and where the traceback is."""
    letter = here(capsys, "dlq", "ls", "--journal", journal, "--jsonl").lines[0]

    ran = here(capsys, "why", letter["event_id"], "--journal", journal)

    assert "shop.pack: dead" in ran.out
    assert "Dead letter 1: failed [HR-E407], tried 2 times under version 1." in ran.out
    assert "`headrace dlq show 1` has the traceback." in ran.out


OPEN = {
    "running": "A worker has it in hand, attempt 2.",
    "retry": "Attempt 3 is due now.",
    "blocked": "Its key is free again: it is next.",
    "parked": "It waits for something else than time.",
    "returned": "A worker that stopped has handed it back; it is next.",
    "redriven": "Redriven (once); it is next.",
}


@pytest.mark.parametrize("state", OPEN)
def test_why_has_a_sentence_for_every_state(capsys: Capture, journal: str, state: str) -> None:
    """No state of an open event is left unexplained."""
    change(
        journal,
        "INSERT INTO open (sub, tp, seq, state, attempts, crashes, generation, due_us, noted_us, errors)"
        ' SELECT 1, tp, seq, ?, 2, 0, 1, 1700000000000000, 0, \'["one", "two"]\' FROM event WHERE seq = 1',
        state,
    )
    event = first(capsys, journal)

    ran = here(capsys, "why", event["event_id"], "--journal", journal)

    assert f"shop.pack: {state}" in ran.out
    assert OPEN[state] in ran.out


def test_why_names_the_event_in_the_way(capsys: Capture, journal: str) -> None:
    """Blocked by its key: by which event."""
    ones = [
        one
        for one in here(capsys, "tail", "--journal", journal, "--from-offset", 1, "--jsonl").lines
        if one["key"] == "customer-1" and one["topic"] == "orders"
    ]
    for one in ones[:2]:
        change(
            journal,
            "INSERT INTO open (sub, tp, seq, state, attempts, crashes, generation, due_us, noted_us, errors)"
            " SELECT 1, tp, seq, 'blocked', 0, 0, 0, 0, 0, '[]' FROM event WHERE seq = ?",
            one["offset"],
        )

    ran = here(capsys, "why", ones[1]["event_id"], "--journal", journal)

    assert f"An earlier event of its key comes first: {ones[0]['event_id']}." in ran.out


# --- dead letters and versions ------------------------------------------------------------------


def test_dead_letters_are_listed(capsys: Capture, journal: str) -> None:
    """A table for people, a line each for programs; filters; an empty list is no data."""
    table = here(capsys, "dlq", "ls", "--journal", journal)
    lines = here(capsys, "dlq", "ls", "--journal", journal, "--handler", "pack", "--jsonl").lines
    none = here(capsys, "dlq", "ls", "--journal", journal, "--reason", "crash")

    assert len(table.out.splitlines()) == DEAD + 1
    assert [one["id"] for one in lines] == list(range(1, DEAD + 1))
    assert lines[0].keys() >= {"handler", "reason", "code", "error", "attempts", "event_id", "fate", "again"}
    assert (none.code, none.out, none.err) == (Exit.DONE, "", "no dead letters\n")


def test_a_dead_letter_is_shown_whole(capsys: Capture, journal: str) -> None:
    """Error, attempts, traceback, the event with its original payload; by number or by event."""
    found = here(capsys, "dlq", "show", "2", "--journal", journal, "--json").document
    text = here(capsys, "dlq", "show", found["event_id"], "--journal", journal)

    assert found["errors"]
    assert "ValueError" in found["traceback"]
    assert found["event"]["payload"]["number"] % 5 == 0
    head, first, *_ = found["traceback"].splitlines()
    assert head == "Traceback (most recent call last):"
    assert "shop.py" in first  # the user's own handler, not what has called it
    assert f"{head}\n{first}\n" in text.out
    assert '"customer"' in text.out
    assert here(capsys, "dlq", "show", "77", "--journal", journal).code == Exit.NO


def test_history_counts_by_version_and_partition(capsys: Capture, journal: str) -> None:
    """Every event taken is handled by exactly one version or unfinished."""
    (found,) = here(capsys, "model", "history", "pack", "--journal", journal, "--json").document
    text = here(capsys, "model", "history", "--journal", journal)

    assert found["versions"] == [{"version": "1", "handled": HANDLED, "replayed": 0}]
    assert sum(one["handled"] for one in found["ranges"]) == HANDLED
    assert (found["neither"], found["both"]) == (0, 0)
    assert f"taken {HANDLED}, unfinished 0, by neither 0, by both 0: sound" in text.out


def test_history_says_no_when_something_is_missing(capsys: Capture, journal: str) -> None:
    """Exit code 1 where events were taken that no version answers for, and for a handler nobody knows."""
    assert here(capsys, "model", "history", "nobody", "--journal", journal).code == Exit.NO
    change(journal, "DELETE FROM range WHERE sub = 1")

    ran = here(capsys, "model", "history", "--journal", journal)

    assert ran.code == Exit.NO
    assert "NOT SOUND" in ran.out


@pytest.mark.parametrize(
    "arguments",
    [("status",), ("show", "1"), ("why", "1"), ("dlq", "show", "1"), ("model", "history"), ("explain",)],
    ids=" ".join,
)
def test_json_is_one_document_and_nothing_else(
    capsys: Capture, journal: str, arguments: tuple[str, ...]
) -> None:
    """No word for people mixes with data, and nothing depends on colour."""
    given = list(arguments)
    if arguments[0] in ("show", "why"):
        given[1] = first(capsys, journal)["event_id"]
    where = [] if arguments == ("explain",) else ["--journal", journal]

    ran: Ran = here(capsys, *given, *where, "--json")

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert json.loads(ran.out)
    assert "\x1b" not in ran.out
