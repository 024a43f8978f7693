"""``headrace publish``: foreign bytes are checked whole; each line gets a receipt, or an error."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.unit.terminal import PATIENCE_S, Ran, Running, apart, command, environment

from headrace.cli.output import Exit
from headrace.cli.publish import Line, Splitter
from headrace.runtime.publish import UNIT_EVENTS_MAX

APP = """
from headrace import App, Event

class Note(Event, topic="notes", key="owner"):
    owner: str
    text: str = ""

class Bare(Event, topic="bare"):
    pass

app = App("memo", events=[Note, Bare])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an app in it."""
    (tmp_path / "memo.py").write_text(APP)
    return tmp_path


def publish(folder: Path, *arguments: object, stdin: bytes | None = None, **env: str) -> Ran:
    """Publish notes."""
    return apart("publish", "memo:app", "Note", *arguments, cwd=folder, stdin=stdin, env=env)


def stored(folder: Path) -> list[Any]:
    """Return the payloads of all events."""
    ran = apart("tail", "--from-offset", 1, "--jsonl", cwd=folder)
    return [one["payload"] for one in ran.lines]


def test_one_event_from_the_command_line(folder: Path) -> None:
    """A receipt on stdout, nothing else; the journal is made."""
    ran = publish(folder, '{"owner": "ada", "text": "größe"}')

    assert (ran.code, ran.err) == (Exit.DONE, "")
    (receipt,) = ran.lines
    assert receipt["duplicate"] is False
    assert stored(folder) == [{"owner": "ada", "text": "größe"}]
    assert apart("show", receipt["event_id"], cwd=folder).code == Exit.DONE


def test_an_id_makes_a_repeat_harmless(folder: Path) -> None:
    """Same id and content: no effect; other content: refused, nothing written."""
    first = publish(folder, '{"owner": "ada"}', "--id", "order-1")
    again = publish(folder, '{"owner": "ada"}', "--id", "order-1")
    other = publish(folder, '{"owner": "eve"}', "--id", "order-1")

    assert again.lines[0] == {"event_id": first.lines[0]["event_id"], "duplicate": True}
    assert (other.code, other.out) == (Exit.NO, "")
    assert "error[HR-E110]" in other.err
    assert stored(folder) == [{"owner": "ada", "text": ""}]


def test_an_empty_id_is_not_taken_for_none(folder: Path) -> None:
    """A script whose variable is empty would publish the same twice without knowing."""
    ran = publish(folder, '{"owner": "ada"}', "--id", "")

    assert (ran.code, ran.out) == (Exit.NO, "")
    assert "error[HR-E115]" in ran.err


def test_parents_are_named_and_checked(folder: Path) -> None:
    """The event joins the chain of its cause; a cause that is not there is refused."""
    cause = publish(folder, '{"owner": "ada"}').lines[0]["event_id"]

    effect = publish(folder, '{"owner": "bob"}', "--parent", cause)
    orphan = publish(folder, '{"owner": "bob"}', "--parent", "01234567-89ab-7def-8123-456789abcdef")

    assert effect.code == Exit.DONE
    shown = apart("show", effect.lines[0]["event_id"], "--json", cwd=folder).document
    assert shown["parent_ids"] == [cause]
    assert (orphan.code, orphan.out) == (Exit.NO, "")
    assert "error[HR-E111]" in orphan.err


BAD_LINES = {
    b"not json": "HR-E104",
    b'{"owner": "a", "owner": "b"}': "HR-E104",
    b'{"owner": NaN}': "HR-E104",
    b'{"owner": "\\ud800"}': "HR-E104",
    b'{"owner": "\xff"}': "HR-E104",
    b'{"owner": "x", "text": ' + b"[" * 70 + b"]" * 70 + b"}": "HR-E104",
    b'{"text": "no owner"}': "HR-E103",
    b'{"owner": ""}': "HR-E113",
    b'{"owner": "x", "text": "' + b"y" * 2_000 + b'"}': "HR-E105",
}


def test_each_line_is_published_or_named(folder: Path) -> None:
    """A line that is refused does not stop the others; receipts and errors tell which line they are about."""
    good = [b'{"owner": "a%d"}' % number for number in range(len(BAD_LINES) + 1)]
    lines = [one for pair in zip(good, BAD_LINES, strict=False) for one in pair] + good[-1:]

    ran = publish(folder, "-", stdin=b"\n".join(lines), HEADRACE_PAYLOAD_BYTES_MAX="1000")

    assert ran.code == Exit.NO
    assert [one["line"] for one in ran.lines] == list(range(1, len(lines) + 1, 2))
    told = [line for line in ran.err.splitlines() if line.startswith("error[")]
    assert sorted(told) == sorted(
        f"error[{code}]: line {2 * number + 2}: " + line.split(": ", 2)[2]
        for (number, code), line in zip(enumerate(BAD_LINES.values()), _by_line(told), strict=True)
    )
    assert any(line.endswith(" Expecting value: column 1") for line in told), "of the line no second number"
    assert f"not published: {len(BAD_LINES)} lines" in ran.err
    assert [one["owner"] for one in stored(folder)] == [f"a{number}" for number in range(len(good))]


def _by_line(told: list[str]) -> list[str]:
    return sorted(told, key=lambda line: int(line.split("line ", 1)[1].split(":", 1)[0]))


def test_a_file_holds_one_event_per_line(folder: Path) -> None:
    """In order; blank lines count as lines and are no events; a .json file is one event."""
    (folder / "notes.jsonl").write_bytes(b'{"owner": "a"}\n\n{"owner": "b"}\r\n{"owner": "c"}')
    (folder / "note.json").write_text('{\n  "owner": "d"\n}\n', encoding="utf-8-sig")  # as some editors write

    lines = publish(folder, "@notes.jsonl").lines
    whole = publish(folder, "@note.json")

    assert [one["line"] for one in lines] == [1, 3, 4]
    assert whole.code == Exit.DONE
    assert [one["owner"] for one in stored(folder)] == ["a", "b", "c", "d"]


def test_many_short_lines_are_several_units(folder: Path) -> None:
    """One read holds more of them than one publish may have; each is published all the same."""
    app = APP.replace('key="owner"', "").replace("owner: str", "")
    (folder / "memo.py").write_text(app)

    ran = publish(folder, "-", stdin=b"{}\n" * (UNIT_EVENTS_MAX + 500))

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert [one["line"] for one in ran.lines] == list(range(1, UNIT_EVENTS_MAX + 501))


def test_ids_from_the_input_make_a_repeat_harmless(folder: Path) -> None:
    """A second run of the same file adds nothing and says so; a line that has changed is refused."""
    lines = [b'{"n": %d, "owner": "a%d"}' % (n, n) for n in range(3)]
    (folder / "notes.jsonl").write_bytes(b"\n".join(lines[:2]))
    first = publish(folder, "@notes.jsonl", "--id-field", "n")
    (folder / "notes.jsonl").write_bytes(b"\n".join([*lines, b'{"n": 1, "owner": "other"}']))
    again = publish(folder, "@notes.jsonl", "--id-field", "n")

    assert (first.code, first.err) == (Exit.DONE, "")
    assert [one["duplicate"] for one in again.lines] == [True, True, False]
    assert [one["event_id"] for one in again.lines[:2]] == [one["event_id"] for one in first.lines]
    assert again.code == Exit.NO
    assert "error[HR-E110]: line 4: " in again.err
    assert "published before: 2 lines" in again.err
    assert [one["owner"] for one in stored(folder)] == ["a0", "a1", "a2"]
    assert apart("show", "2", cwd=folder).code == Exit.DONE, "the id of the input finds the event"


def test_an_id_field_of_the_type_stays(folder: Path) -> None:
    """One that the type has is a field like any other; one that it has not is taken out."""
    ran = publish(folder, "-", "--id-field", "text", stdin=b'{"owner": "a", "text": "one"}\n')

    assert ran.code == Exit.DONE
    assert stored(folder) == [{"owner": "a", "text": "one"}]


@pytest.mark.parametrize("value", [b"null", b"1.5", b"true", b'""', b"[1]", b""])
def test_a_line_without_an_id_is_refused(folder: Path, value: bytes) -> None:
    """With --id-field a payload that names none would be published twice by a second run."""
    field = b', "n": ' + value if value else b""
    ran = publish(folder, "-", "--id-field", "n", stdin=b'{"owner": "a"' + field + b"}\n")

    assert (ran.code, ran.out) == (Exit.NO, "")
    assert "line 1" in ran.err
    assert "'n'" in ran.err


def test_a_key_is_given_to_payloads_without(folder: Path) -> None:
    """It fills the field of the key; a payload that says otherwise is refused, and so is no object."""
    lines = b'{"text": "x"}\n{"owner": "ada"}\n{"owner": "bob"}\n[1]\n'
    ran = publish(folder, "-", "--key", "ada", stdin=lines)

    assert [one["line"] for one in ran.lines] == [1, 2]
    assert "error[HR-E113]: line 3" in ran.err
    assert "error[HR-E104]: line 4" in ran.err
    assert [one["owner"] for one in stored(folder)] == ["ada", "ada"]


def test_numbers_keep_their_digits(folder: Path) -> None:
    """What is put in or taken out beside them does not go through a float."""
    (folder / "memo.py").write_text(APP.replace('text: str = ""', "amount: int"))
    amount = 12345678901234567890123456789
    line = b'{"n": 1, "amount": %d}\n' % amount
    ran = publish(folder, "-", "--key", "a", "--id-field", "n", stdin=line)

    assert ran.code == Exit.DONE, ran.err
    assert stored(folder)[0]["amount"] == amount


@pytest.mark.parametrize(
    ("options", "said", "hint"),
    [
        (("--id-field", "nope"), "no field 'nope', which --id-field names", "it has owner, n"),
        (("--id-field", "n"), "the field 'n' of the payload holds neither text nor", "see `help(headrace"),
        (("--parent", "x" * 513), "attribute parents[0] is not usable: it has 513", "see `help(headrace"),
    ],
)
def test_an_id_that_cannot_be_is_told_by_its_name(
    folder: Path, options: tuple[str, ...], said: str, hint: str
) -> None:
    """A field that is not there, or holds something else; an id of a parent is not that of the event."""
    payload = '{"owner": "ada", "n": [1]}' if "--id-field" in options else '{"owner": "ada"}'
    ran = publish(folder, payload, *options)

    assert (ran.code, ran.out) == (Exit.NO, "")
    assert said in ran.err
    assert f"hint: {hint}" in ran.err


def test_a_pipe_with_a_name_is_read_to_its_end(folder: Path) -> None:
    """As a shell makes one of `@<(zcat old.jsonl.gz)`."""
    ran = publish(folder, "@/dev/stdin", stdin=b'{"owner": "ada"}\n{"owner": "bob"}\n')

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert [one["owner"] for one in stored(folder)] == ["ada", "bob"]


def test_a_file_shows_how_far_it_is(tmp_path: Path) -> None:
    """Bytes of bytes with rate and time left; without a known end the bytes alone."""
    from headrace.cli.publish import _size_of

    (tmp_path / "file").write_bytes(b"12345")
    source = os.open(tmp_path / "file", os.O_RDONLY)
    reading, writing = os.pipe()
    try:
        assert _size_of(source) == 5
        assert _size_of(reading) is None
    finally:
        for one in (source, reading, writing):
            os.close(one)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("publish", "memo:app", "Note", "{}", "--id", "x", "--id-field", "n"), "both name the id"),
        (("publish", "memo:app", "Bare", "{}", "--key", "x"), "events of type Bare have no key"),
        (("publish", "memo:app", "Nte", "{}"), "knows no event type 'Nte'; it knows Note"),
        (("publish", "memo:app", "Note", "@nothing.jsonl"), "there is no file nothing.jsonl"),
        (("publish", "memo:app", "Note", "@."), ". is a folder"),
        (("publish", "memo:app", "Note", "@"), "@ names no file"),
        (("publish", "memo:app", "Note", f"@{'x' * 5_000}"), "cannot be read (File name too long)"),
        (("publish", "memo:app", "Note", "{}", "--journal", ":memory:"), "nothing would remain"),
        (("publish", "memo:app", "Note", "-", "--id", "x"), "--id names one event"),
    ],
)
def test_what_cannot_be_followed_is_refused(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    """Exit code 2, before anything is written; no journal is made."""
    ran = apart(*arguments, cwd=folder)

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert said in ran.err
    assert "\n\nhint: " in ran.err
    assert not (folder / "headrace.db").exists()


def test_a_slow_source_gets_its_receipts_at_once(folder: Path) -> None:
    """A line is published when it comes, not when the source ends."""
    process = subprocess.Popen(
        command("publish", "memo:app", "Note", "-"),
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        for number in (1, 2):
            os.write(process.stdin.fileno(), b'{"owner": "ada"}\n')
            assert json.loads(process.stdout.readline())["line"] == number
        process.stdin.close()
        assert process.wait(timeout=PATIENCE_S) == Exit.DONE
    finally:
        process.kill()
        process.stdout.close()
        process.wait()


def test_the_splitter_cuts_where_the_lines_end() -> None:
    """However the bytes arrive, the lines are the same; the last one needs no end."""
    text = b"a\n\nbb\r\nccc"
    expected = [Line(1, b"a", 1), Line(3, b"bb\r", 3), Line(4, b"ccc", 3)]

    for size in range(1, len(text) + 1):
        splitter = Splitter(100)
        parts = [text[at : at + size] for at in range(0, len(text), size)]
        assert [line for part in [*parts, b""] for line in splitter.feed(part)] == expected


def test_the_mark_that_some_editors_begin_a_file_with_is_no_payload() -> None:
    """Of the first line only: elsewhere it is a fault of the line."""
    splitter = Splitter(100)
    assert [one.text for one in splitter.feed(b'\xef\xbb\xbf{"a": 1}\n\xef\xbb\xbf{}\n')] == [
        b'{"a": 1}',
        b"\xef\xbb\xbf{}",
    ]


def test_the_splitter_keeps_no_line_without_end() -> None:
    """A line over the limit costs no memory, is told with its size, and the next one is read."""
    splitter = Splitter(10)

    found = [
        line for part in (b"x" * 11, b"y" * 1_000, b"z\nok\n", b"w" * 50, b"") for line in splitter.feed(part)
    ]

    assert found == [Line(1, None, 1_012), Line(2, b"ok", 2), Line(3, None, 50)]


def test_tail_follows_what_others_publish(folder: Path) -> None:
    """Each event once, as soon as it is there; filters hold; Ctrl-C ends it quietly, a limit by itself."""
    publish(folder, '{"owner": "old"}')
    with Running("tail", "--follow", "--jsonl", "--type", "Note", cwd=folder) as running:
        assert running.process.stdout is not None
        owners = []
        for owner in ("old", "new", "newer"):
            if owner != "old":
                publish(folder, f'{{"owner": "{owner}"}}')
            owners.append(json.loads(running.process.stdout.readline())["payload"]["owner"])
        ran = running.ended(signal.SIGINT)
    with Running("tail", "--follow", "--limit", 4, "--jsonl", cwd=folder) as limited:
        publish(folder, '{"owner": "last"}')
        end = limited.ended()

    assert owners == ["old", "new", "newer"]
    assert (ran.code, ran.out, ran.err) == (Exit.INTERRUPTED, "", "interrupted\n")
    assert (end.code, len(end.lines)) == (Exit.DONE, 4)


def test_tail_follows_a_chain(folder: Path) -> None:
    """What is there of it, each event once, then what joins it; events of other chains are passed over."""
    root = publish(folder, '{"owner": "root"}').lines[0]["event_id"]
    publish(folder, '{"owner": "child"}', "--parent", root)
    with Running("tail", "--chain", root, "--follow", "--jsonl", cwd=folder) as running:
        assert running.process.stdout is not None
        owners = [json.loads(running.process.stdout.readline())["payload"]["owner"] for _ in range(2)]
        publish(folder, '{"owner": "stranger"}')
        publish(folder, '{"owner": "late"}', "--parent", root)
        owners.append(json.loads(running.process.stdout.readline())["payload"]["owner"])
        running.ended(signal.SIGINT)

    assert owners == ["root", "child", "late"]


def test_who_stops_reading_receipts_does_not_stop_the_publishing(folder: Path) -> None:
    """All lines are published, and the exit code says so."""
    lines = b"".join(b'{"owner": "o%d"}\n' % number for number in range(3_000))
    process = subprocess.Popen(
        command("publish", "memo:app", "Note", "-"),
        cwd=folder, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    process.stdout.close()
    _, told = process.communicate(lines, PATIENCE_S)

    assert (process.returncode, told) == (Exit.DONE, b"")
    assert len(stored(folder)) == 3_000


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_do_no_harm(folder: Path, closed: str) -> None:
    """A command does what it is told, and no file gets the number of a stream."""
    words = command("publish", "memo:app", "Note", '{"owner": "ada"}')
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh", *words]
    ran = subprocess.run(
        shell, cwd=folder, env=environment(), capture_output=True, timeout=PATIENCE_S, check=False
    )

    assert (ran.returncode, ran.stderr) == (Exit.DONE, b"")
    assert [one["owner"] for one in stored(folder)] == ["ada"]
