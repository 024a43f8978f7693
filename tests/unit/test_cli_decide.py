"""Commands that decide: redrive, drop, activate; what they ask, what they count, what they refuse."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from tests.unit.shop import DEAD, change, made_journal
from tests.unit.terminal import here

from headrace.cli.output import Exit

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A journal of its own for each test, named by the environment."""
    monkeypatch.chdir(tmp_path)
    path = made_journal(tmp_path)
    monkeypatch.setenv("HEADRACE_JOURNAL", path)
    return path


def fates(journal: str) -> list[str | None]:
    """Return what was decided about each letter."""
    return [row[0] for row in change(journal, "SELECT fate FROM dead ORDER BY id")]


def test_a_redrive_counts_before_and_after(capsys: Capture, journal: str) -> None:
    """By number; those that were not named stay."""
    ran = here(capsys, "dlq", "redrive", 1, 2, "--yes")

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert ran.out == f"2 redriven, 0 refused; dead letters: {DEAD} before, {DEAD - 2} after\n"
    assert fates(journal) == ["redriven", "redriven", None, None]
    assert here(capsys, "status", "--verify").code == Exit.DONE


@pytest.mark.parametrize("command", ["show", "redrive"])
@pytest.mark.parametrize("name", ["abc", "99", "01a22a41-9f19-79cd"])
def test_a_letter_that_is_not_there_is_answered_with_how_letters_are_named(
    capsys: Capture, journal: str, command: str, name: str
) -> None:
    """Not with how events are found."""
    ran = here(capsys, "dlq", command, name)

    assert (ran.code, ran.out) == (Exit.NO, "")
    assert f"No event has the id {name}. There is no such dead letter." in ran.err
    assert ran.err.endswith("`headrace dlq ls` lists them\n")
    assert "UUID" not in ran.err


def test_letters_are_chosen_by_filters(capsys: Capture, journal: str) -> None:
    """Handler, reason and type together; nothing chosen is nothing done, and no failure."""
    none = here(capsys, "dlq", "redrive", "--reason", "crash", "--yes")
    everything = here(capsys, "dlq", "drop", "--handler", "pack", "--type", "Order", "--yes", "--json")

    assert none.out.startswith("0 redriven, 0 refused")
    assert everything.document == {
        "matched": DEAD,
        "dropped": DEAD,
        "refused": [],
        "before": DEAD,
        "after": 0,
        "dry_run": False,
    }
    assert fates(journal) == ["dropped"] * DEAD


def test_letters_are_named_by_their_event(capsys: Capture, journal: str) -> None:
    """The id of an event stands for its letter."""
    event_id = here(capsys, "dlq", "ls", "--jsonl").lines[1]["event_id"]

    assert here(capsys, "dlq", "redrive", event_id, "--yes").code == Exit.DONE

    assert fates(journal) == [None, "redriven", None, None]


@pytest.mark.parametrize("verb", ["redrive", "drop"])
def test_letters_and_filters_do_not_go_together(capsys: Capture, journal: str, verb: str) -> None:
    """A filter that was passed over would decide about a letter that was not meant."""
    ran = here(capsys, "dlq", verb, 1, "--type", "Other", "--yes")

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert "letters and filters do not go together" in ran.err
    assert fates(journal) == [None] * DEAD


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("pack", "Did you mean shop.pack?"),
        ("pakc", "Did you mean shop.pack?"),
        ("shop.sedn", "Did you mean shop.send?"),
        ("nobody-like-this", "It knows shop.pack, shop.send."),
    ],
)
def test_an_unknown_handler_is_a_no_with_names(capsys: Capture, journal: str, given: str, told: str) -> None:
    """Whatever the command: the nearest names, or all; a short name will do where nothing is activated."""
    commands = [("model", "activate", given, "1")]
    if given != "pack":
        commands += [("model", "history", given)]
        commands += [("dlq", verb, "--handler", given) for verb in ("ls", "redrive", "drop")]
    for command in commands:
        ran = here(capsys, *command)

        assert (ran.code, ran.out) == (Exit.NO, "")
        assert f"error[HR-E220]: The journal knows no handler {given}. {told}" in ran.err


@pytest.mark.parametrize("verb", ["redrive", "drop"])
def test_a_dry_run_does_nothing_and_asks_nothing(capsys: Capture, journal: str, verb: str) -> None:
    """It says what would be done, and what would be refused."""
    here(capsys, "dlq", "drop", 1, "--yes")

    ran = here(capsys, "dlq", verb, 1, 2, "--dry-run")

    assert ran.code == Exit.NO
    assert "1 would be " in ran.out
    assert "Dead letter 1 is left as it is: it was dropped before." in ran.err
    assert "hint: `headrace dlq show 1` tells its state." in ran.err
    assert fates(journal) == ["dropped", None, None, None]


def test_what_is_refused_is_a_no(capsys: Capture, journal: str) -> None:
    """Exit code 1 with the reason; the others are done all the same."""
    here(capsys, "dlq", "redrive", 1, "--yes")

    ran = here(capsys, "dlq", "redrive", 1, 2, "--yes", "--json")

    assert ran.code == Exit.NO
    assert ran.document["redriven"] == 1
    assert ran.document["refused"] == [{"id": 1, "problem": "it was redriven before"}]


def test_nothing_is_decided_about_everything_by_accident(capsys: Capture, journal: str) -> None:
    """Without a letter and without a filter the command is refused."""
    ran = here(capsys, "dlq", "drop", "--yes")

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert "it does not say which dead letters" in ran.err
    assert fates(journal) == [None] * DEAD


def test_without_a_terminal_nobody_is_asked(capsys: Capture, journal: str) -> None:
    """A script has to say --yes."""
    ran = here(capsys, "dlq", "drop", 1)

    assert ran.code == Exit.UNUSABLE
    assert ran.err.endswith("hint: add --yes\n")
    assert fates(journal) == [None] * DEAD


@pytest.mark.parametrize(
    ("answer", "fate"), [("y\n", "dropped"), ("yes\n", "dropped"), ("n\n", None), ("", None)]
)
def test_a_person_is_asked(
    capsys: Capture, journal: str, monkeypatch: pytest.MonkeyPatch, answer: str, fate: str | None
) -> None:
    """Only a clear yes is one; the question says how many."""
    stdin = io.StringIO(answer)
    monkeypatch.setattr(stdin, "isatty", lambda: True)
    monkeypatch.setattr("sys.stdin", stdin)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setenv("NO_COLOR", "1")

    ran = here(capsys, "dlq", "drop", 1)

    assert f"drop 1 of {DEAD} dead letters? [y/N]" in ran.err
    assert fates(journal)[0] == fate
    assert ran.code == (Exit.DONE if fate else Exit.NO)


def test_a_version_is_activated_by_a_part_of_its_name(capsys: Capture, journal: str) -> None:
    """The version takes events from now on; one that is not known is a no."""
    change(journal, "INSERT INTO version VALUES (9, 1, '2024-beta', 0, 0, 0)")

    ran = here(capsys, "model", "activate", "shop.pack", "2024", "--json")
    wrong = here(capsys, "model", "activate", "shop.pack", "3000")

    assert ran.document == {"handler": "shop.pack", "active_version": "2024-beta"}
    assert here(capsys, "status", "--json").document["subscriptions"][0]["active_version"] == "2024-beta"
    assert (wrong.code, wrong.out) == (Exit.NO, "")
    assert "Known: 1, 2024-beta." in wrong.err
