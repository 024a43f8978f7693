"""What goes wrong: a code, one sentence, a hint, on stderr; and an exit code that a script can rely on."""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.unit.shop import made_journal
from tests.unit.terminal import apart, command, environment, here

from headrace import errors
from headrace.cli import output
from headrace.cli.output import Exit, counted, exit_of, plain

Capture = pytest.CaptureFixture[str]

CODES = [
    (errors.EventNotFound, Exit.NO),
    (errors.HandlerUnknown, Exit.NO),
    (errors.RedriveRefused, Exit.NO),
    (errors.VersionUnknown, Exit.NO),
    (errors.PayloadInvalid, Exit.NO),
    (errors.EventConflict, Exit.NO),
    (errors.ParentMissing, Exit.NO),
    (errors.TargetInvalid, Exit.UNUSABLE),
    (errors.SettingInvalid, Exit.UNUSABLE),
    (errors.CommandInvalid, Exit.UNUSABLE),
    (errors.CodeUnknown, Exit.UNUSABLE),
    (errors.SignatureInvalid, Exit.UNUSABLE),
    (errors.HandlerTwice, Exit.UNUSABLE),
    (errors.TypeTwice, Exit.UNUSABLE),
    (errors.JournalUrlInvalid, Exit.UNUSABLE),
    (errors.JournalMissing, Exit.UNREACHABLE),
    (errors.JournalForeign, Exit.UNREACHABLE),
    (errors.JournalNewer, Exit.UNREACHABLE),
    (errors.DiskFull, Exit.UNREACHABLE),
    (errors.ModelMissing, Exit.UNREACHABLE),
    (errors.ModelCorrupt, Exit.UNREACHABLE),
]


@pytest.mark.parametrize(("kind", "code"), CODES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_errors_have_exit_codes(kind: type[errors.HeadraceError], code: Exit) -> None:
    """1 the answer is no, 2 it could not run, 3 journal or model are out of reach."""
    assert exit_of(kind()) == code


def test_every_error_ends_with_a_code_of_the_list() -> None:
    """No error is left without one, and none claims success."""
    assert {exit_of(kind()) for kind in errors.catalogue().values()} <= set(Exit) - {Exit.DONE}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("foo",), "no such command 'foo'."),
        (("tial",), "no such command 'tial'. Did you mean 'tail'?\n"),
        (("tail", "--limt", "3"), "no such option: --limt"),
        (("tail", "--limit", "many"), "invalid value for '--limit'"),
        (("tail", "--limit", "0"), "invalid value for '--limit'"),
        (("show",), "missing argument 'EVENT'"),
        (("dlq", "sow"), "no such command 'sow'"),
        (("tail", "--topic", "\udcff"), "'\\udcff' is not UTF-8"),
        (("tail", "--from", "9" * 20), "--from is an offset of at most 9,223,372,036,854,775,807"),
        (("explain", "HR-E999"), "No error has the code HR-E999"),
    ],
    ids=str,
)
def test_a_wrong_command_line_is_told(capsys: Capture, arguments: tuple[str, ...], said: str) -> None:
    """Exit code 2, the code of the error, what is wrong, and a hint; nothing on stdout."""
    ran = here(capsys, *arguments)

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert "error[HR-E50" in ran.err
    assert said in ran.err
    assert "\n\nhint: " in ran.err
    assert "Traceback" not in ran.err


def test_debug_shows_the_traceback(capsys: Capture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before or after the command; without it an error is a sentence."""
    monkeypatch.chdir(tmp_path)

    assert "Traceback" not in here(capsys, "status").err
    assert "Traceback" in here(capsys, "--debug", "status").err
    after = here(capsys, "status", "--debug")
    assert "Traceback" in after.err
    assert after.code == Exit.UNREACHABLE


def test_a_fault_of_ours_is_told_as_such(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody thought of has a code too, and says how to learn more."""

    def broken() -> dict[str, type[errors.HeadraceError]]:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(errors, "catalogue", broken)

    ran = here(capsys, "explain")

    assert ran.code == Exit.UNUSABLE
    assert "error[HR-E000]: Something went wrong in Headrace. ZeroDivisionError: by chance" in ran.err
    assert "hint: run it again with --debug" in ran.err


@pytest.mark.parametrize("given", ["HR-E103", "hr-e103", "E103", "103"])
def test_a_code_is_explained(capsys: Capture, given: str) -> None:
    """The docstring, whose fault it is, whether it is tried again; however the code is written."""
    ran = here(capsys, "explain", given)

    assert ran.out.startswith("HR-E103 PayloadInvalid\n")
    assert "Whose fault: yours" in ran.out
    assert here(capsys, "explain", given, "--json").document["retryable"] is False


def test_all_codes_are_listed(capsys: Capture) -> None:
    """One line each, in order."""
    lines = here(capsys, "explain").out.splitlines()

    assert [line.split()[0] for line in lines] == list(errors.catalogue())


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 dead letters"), (1, "1 dead letter"), (2, "2 dead letters"), (2_000, "2,000 dead letters")],
)
def test_a_number_agrees_with_its_noun(count: int, text: str) -> None:
    """One is one; everything else, nothing too, is several."""
    assert counted(count, "dead letter") == text


def test_no_command_counts_one_as_several() -> None:
    """A number and a noun in the plural stand in no text of a command: `counted` knows better."""
    wrong = re.compile(
        r"\{[^{}]+\} (?:dead )?(?:event|line|letter|partition|topic|worker|message|finding)s\b(?!/)"
    )
    files = (Path(output.__file__).parent).glob("*.py")
    found = [f"{file.name}: {one}" for file in files for one in wrong.findall(file.read_text("utf-8"))]
    assert found == []


def test_what_cannot_be_printed_is_spelled_out() -> None:
    """Nothing that steers a terminal or turns a line around passes; plain text does."""
    assert plain("größe ✓") == "größe ✓"
    assert plain("a\x1b[31mb\x07\x9b\u202e\ud800") == "a\\x1b[31mb\\x07\\x9b\\u202e\\ud800"
    assert plain("a\nb\tc") == "a\\nb\\tc"
    assert plain("a\nb\tc\r", lines=True) == "a\nb\tc\\r"


class Writes(io.BytesIO):
    """A stream that many processes write to: what counts is what goes out in one piece."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[bytes] = []

    def write(self, piece: Any) -> int:
        """Note a piece."""
        self.pieces.append(bytes(piece))
        return len(piece)


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_line_goes_out_in_one_piece(stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a buffer (PYTHONUNBUFFERED) too: lines of workers that share a stream do not run together."""
    raw = Writes()
    monkeypatch.setattr(sys, stream, io.TextIOWrapper(raw, "utf-8", write_through=True))

    if stream == "stderr":
        output.say("holds 8 partitions")
    else:
        output.put_json_line({"held": 8})

    assert [piece for piece in raw.pieces if piece] in ([b"holds 8 partitions\n"], [b'{"held": 8}\n'])


BROKEN = {
    "empty.py": "",
    "names.py": "x = 1\ndef route(): pass\n",
    "raises.py": "def deep():\n    raise ValueError('no luck')\ndeep()\n",
    "needs.py": "import surely_not_there\n",
    "syntax.py": "def (:\n",
    "signature.py": "from headrace import App\napp = App('x')\n@app.handler\ndef handle(x): pass\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with modules that are no good."""
    found = tmp_path_factory.mktemp("targets")
    for name, text in BROKEN.items():
        (found / name).write_text(text)
    return found


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("nowhere:app", "there is no module nowhere in"),
        ("nowhere.deeper:app", "there is no module nowhere.deeper in"),
        ("empty:app", "module empty has no 'app'. It is empty"),
        ("names:app", "module names has no 'app'. It holds no App, but: x, route"),
        ("names:route", "route is a function, not an App"),
        ("names", "it does not say which"),
        ("signature.py:app", "it names a file"),
        (":app", "that is no name of a module"),
        ("a b:app", "that is no name of a module"),
    ],
)
def test_a_wrong_target_says_what_was_found(folder: Path, target: str, said: str) -> None:
    """Exit code 2, and what the module holds instead."""
    ran = apart("run", target, cwd=folder)

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert f"error[HR-E501]: {target!r} does not lead to an app" in ran.err
    assert said in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("raises:app", "ValueError: no luck"),
        ("needs:app", "No module named 'surely_not_there'"),
        ("syntax:app", "SyntaxError"),
    ],
)
def test_code_of_the_user_that_fails_shows_its_own_frames(folder: Path, target: str, said: str) -> None:
    """The traceback begins in the user's file; ours are left out."""
    ran = apart("publish", target, "T", "{}", cwd=folder)

    assert ran.code == Exit.UNUSABLE
    assert "cannot be imported" in ran.err
    assert said in ran.err
    assert "importlib" not in ran.err.replace("importlib.", "")
    assert "headrace/cli" not in ran.err


def test_an_error_of_ours_in_a_module_is_shown_as_it_is(folder: Path) -> None:
    """A handler that cannot be wired has its own code and hint."""
    ran = apart("run", "signature:app", cwd=folder)

    assert ran.code == Exit.UNUSABLE
    assert "error[HR-E401]: Handler x.handle has a signature" in ran.err
    assert "hint: first parameter" in ran.err


def test_colours_are_for_terminals(tmp_path: Path) -> None:
    """None in a pipe; some when forced; none when NO_COLOR says so, even then."""
    ran = [apart("status", cwd=tmp_path, env=env) for env in ({}, {"FORCE_COLOR": "1"})]
    never = apart("status", cwd=tmp_path, env={"FORCE_COLOR": "1", "NO_COLOR": "1"})

    assert ["\x1b" in one.err for one in (*ran, never)] == [False, True, False]


def test_a_reader_that_has_had_enough_is_no_error(tmp_path: Path) -> None:
    """``headrace tail | head -1`` ends quietly."""
    journal = made_journal(tmp_path)
    process = subprocess.Popen(
        command("tail", "--journal", journal, "--from-offset", "1", "--jsonl"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    err = process.stderr.read()
    process.stderr.close()

    assert (process.wait(timeout=60), err) == (0, b"")


def test_an_output_that_cannot_say_everything_is_no_error(tmp_path: Path) -> None:
    """Characters that the terminal's encoding lacks are spelled out."""
    journal = made_journal(tmp_path)
    event = apart("tail", "--journal", journal, "--topic", "packed", "--limit", "1", "--jsonl", cwd=tmp_path)
    event_id = event.lines[0]["event_id"]

    ran = apart("show", event_id, "--journal", journal, cwd=tmp_path, env={"PYTHONIOENCODING": "ascii"})

    assert ran.code == Exit.DONE
    assert "\\u2514\\u2500 Packed" in ran.out
    assert os.linesep in ran.out


# --- a full disk behind stdout ----------------------------------------------------------------

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
@pytest.mark.parametrize("buffered", [True, False])
@pytest.mark.parametrize(
    "words",
    ["--version", "--help", "status --help", "status", "status --json", "tail --jsonl", "explain HR-E206"],
)
def test_output_that_cannot_be_written_is_told_so(tmp_path: Path, words: str, *, buffered: bool) -> None:
    """Once, with a code of its own and exit code 1, buffered or not."""
    journal = made_journal(tmp_path)
    with FULL.open("wb") as full:
        ran = subprocess.run(
            command(*words.split()),
            cwd=tmp_path,
            env=environment(PYTHONUNBUFFERED="" if buffered else "1", HEADRACE_JOURNAL=journal),
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    said = "error[HR-E508]: What the command prints could not be written: No space left on device.\n"
    assert ran.stderr.decode().startswith(said)
    assert (ran.stderr.count(b"error["), ran.returncode) == (1, Exit.NO)


@pytest.mark.skipif(not FULL.exists(), reason="there is no /dev/full here")
def test_a_full_stderr_changes_nothing(tmp_path: Path) -> None:
    """What cannot be said is not said; the exit code tells."""
    with FULL.open("wb") as full:
        ran = subprocess.run(
            command("status"),
            cwd=tmp_path,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
        )
    assert (ran.returncode, ran.stdout) == (Exit.UNREACHABLE, b"")
