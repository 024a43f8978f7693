"""``headrace check``: findings of an app before it runs, with exit code 1; nothing is run or written."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest
from tests.unit.terminal import Ran, apart

from headrace.cli.check import circles
from headrace.cli.output import Exit

START = """
from headrace import App, Event, Model

class Ask(Event, topic="asks"):
    text: str

class Answer(Event, topic="answers"):
    text: str

app = App("helpdesk")
"""
APPS = {
    "sound": """
@app.handler(version=3)
def answer(ask: Ask) -> Answer | None: ...
""",
    "empty": "",
    "model": """
@app.handler(model=Model.onnx("nowhere.onnx"))
async def answer(ask: Ask, model) -> Answer: ...
""",
    "cycle": """
@app.handler
def answer(ask: Ask) -> Answer: ...

@app.handler
def doubt(answer: Answer) -> Ask: ...
""",
    "renamed": """
@app.handler
def reply(ask: Ask) -> Answer | None: ...
""",
    "was": """
@app.handler(was="answer")
def reply(ask: Ask) -> Answer | None: ...
""",
    "taken": """
class Dead(Event, topic="asks.dlq"):
    text: str
""",
    "twice": """
@app.handler
def answer(ask: Ask) -> Answer: ...

@app.handler(name="answer")
def other(ask: Ask) -> Answer: ...
""",
}


def check(folder: Path, name: str, *options: str, **env: str) -> Ran:
    """Check one of the apps."""
    (folder / f"{name}.py").write_text(START + APPS[name])
    return apart("check", f"{name}:app", *options, cwd=folder, env=env)


def test_a_sound_app_has_no_findings(tmp_path: Path) -> None:
    """What consumes and emits what is shown; no journal is made."""
    ran = check(tmp_path, "sound")

    assert (ran.code, ran.err) == (Exit.DONE, "")
    assert "helpdesk.answer version 3: Ask -> Answer" in ran.out
    assert "no findings" in ran.out
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == ["sound.py"]


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("empty", "", "the app has no handlers"),
        ("model", "HR-E301", "nowhere.onnx"),
        ("cycle", "HR-E408", "helpdesk.answer -> helpdesk.doubt -> helpdesk.answer"),
        ("taken", "HR-E101", "asks.dlq"),
        ("twice", "HR-E402", "helpdesk.answer"),
    ],
)
def test_what_is_wrong_is_found(tmp_path: Path, name: str, code: str, said: str) -> None:
    """Exit code 1, with code, place, problem and hint."""
    ran = check(tmp_path, name, "--json")

    assert ran.code == Exit.NO
    (finding,) = ran.document["findings"]
    assert finding["code"] == code
    assert said in finding["problem"]
    assert finding["hint"]


def test_a_mistyped_variable_is_told(tmp_path: Path) -> None:
    """On stderr, once, with the name that was meant; it is no finding, for it is no fault of the app."""
    ran = check(tmp_path, "sound", "--json", HEADRACE_JOURNL="elsewhere.db")

    assert (ran.code, ran.document["findings"]) == (Exit.DONE, [])
    assert ran.err == (
        "warning: HEADRACE_JOURNL in the environment means nothing; did you mean HEADRACE_JOURNAL?\n"
    )


def test_a_cycle_that_is_meant_is_allowed(tmp_path: Path) -> None:
    """A flag says so; other findings are not silenced by it."""
    assert check(tmp_path, "cycle", "--allow-cycles").code == Exit.DONE
    assert check(tmp_path, "empty", "--allow-cycles").code == Exit.NO


@pytest.mark.parametrize(
    ("feeds", "expected"),
    [
        ({}, []),
        ({"a": ["b"], "b": ["c"], "c": []}, []),
        ({"a": ["a"]}, [["a"]]),
        ({"a": ["b"], "b": ["a"]}, [["a", "b"]]),
        ({"a": ["b", "c"], "b": ["d"], "c": ["d"], "d": ["a"]}, [["a", "b", "d"], ["c", "d", "a", "b"]]),
        ({"x": ["a"], "a": ["b"], "b": ["a"], "c": ["c"]}, [["a", "b"], ["c"]]),
    ],
)
def test_ways_round_are_found(feeds: dict[str, list[str]], expected: list[list[str]]) -> None:
    """Every handler on a way round is in one of those that are told; none that is not on one is."""
    found = circles(feeds)

    assert {name for way in found for name in way} == {name for way in expected for name in way}
    for way in found:
        assert all(after in feeds[before] for before, after in zip(way, [*way[1:], way[0]], strict=True))


@pytest.mark.parametrize(("name", "warned"), [("renamed", True), ("was", False), ("sound", False)])
def test_a_rename_without_a_word_is_warned_of(tmp_path: Path, name: str, warned: bool) -> None:
    """What would be handled again is counted; with `was=` nothing is."""
    (tmp_path / "sound.py").write_text(START + APPS["sound"])
    apart("publish", "sound:app", "Ask", '{"text": "why"}', cwd=tmp_path)
    db = apsw.Connection(str(tmp_path / "headrace.db"))
    db.execute("INSERT INTO handler (name) VALUES ('helpdesk.answer')")
    db.execute(
        "INSERT INTO subscription VALUES (1, 1, (SELECT id FROM topic WHERE name = 'asks'), 'live', 0)"
    )
    db.execute("INSERT INTO position (sub, tp, start, high, claimed_after) VALUES (1, 1024, 0, 0, 0)")
    db.close()

    ran = check(tmp_path, name, "--json")

    told = (
        "helpdesk.reply is new to headrace.db: it would handle 1 event of asks again;"
        " if it is helpdesk.answer renamed, say was='answer'"
    )
    assert (ran.code, ran.document["warnings"]) == (Exit.DONE, [told] if warned else [])
