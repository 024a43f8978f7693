"""``new``, ``settings``, ``completion``, ``cheat``: what somebody types on the first day."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.unit.shop import made_journal
from tests.unit.terminal import apart, environment, here

from headrace import errors
from headrace.cli import new
from headrace.cli.cheat import RECIPES
from headrace.cli.completion import candidates
from headrace.cli.invoke import tree
from headrace.cli.output import Exit

Capture = pytest.CaptureFixture[str]

# --- new --------------------------------------------------------------------------------------


def test_a_new_project_runs_and_its_test_passes(tmp_path: Path) -> None:
    """What is made is fit by `check`, passes its own test, and publishes; nothing else is left."""
    made = apart("new", "shop/support", cwd=tmp_path)
    folder = tmp_path / "shop" / "support"

    assert made.code == Exit.DONE
    assert sorted(made.out.split()) == sorted(f"shop/support/{name}" for name in new.FILES)
    assert sorted(one.name for one in folder.parent.iterdir()) == ["support"]
    assert apart("check", "app:app", cwd=folder).code == Exit.DONE
    tried = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=folder, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert tried.returncode == 0, tried.stdout
    readme = (folder / "README.md").read_text()
    published = next(line.strip() for line in readme.splitlines() if "headrace publish" in line)
    assert apart(*shlex.split(published)[1:], cwd=folder).code == Exit.DONE


def test_the_comment_on_models_is_right(tmp_path: Path) -> None:
    """With the commented lines in the place of the handler, and the model of the demo, the app is fit."""
    apart("new", "support", cwd=tmp_path)
    folder = tmp_path / "support"
    text = (folder / "app.py").read_text()
    before, _, rest = text.partition("@app.handler\n")
    comment = rest[rest.index("#\n# from headrace") :]
    (folder / "app.py").write_text(before + re.sub(r"^# ?", "", comment, flags=re.MULTILINE))

    assert apart("demo", "--model-to", "intent.onnx", cwd=folder).code == Exit.DONE
    ran = apart("check", "app:app", cwd=folder)
    assert ran.code == Exit.DONE, ran.out + ran.err
    assert "model intent" in ran.out


@pytest.mark.parametrize("name", ["-x", "a b", ".hidden", "ä", "x" * 101])
def test_a_name_that_nobody_else_takes_is_refused(name: str, tmp_path: Path) -> None:
    """It would be the name of an app, a folder and a distribution."""
    ran = apart("new", "--", name, cwd=tmp_path)

    assert (ran.code, ran.out) == (Exit.UNUSABLE, "")
    assert "cannot be the name" in ran.err
    assert not list(tmp_path.iterdir())


def test_what_is_there_is_left_alone(tmp_path: Path) -> None:
    """A folder with something in it, a file, a link: refused; an empty folder is taken."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("full", "file", "link"):
        with pytest.raises(errors.CommandInvalid, match="is there already"):
            new.write_project(tmp_path / name, name)
    (tmp_path / "empty").mkdir()
    assert new.write_project(tmp_path / "empty", "empty") == list(new.FILES)
    assert [one.name for one in (tmp_path / "full").iterdir()] == ["mine"]


def test_an_interrupted_project_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All files or none: whatever goes wrong, no half is left, and no draft."""
    monkeypatch.setitem(new.FILES, "last", "missing.txt")
    with pytest.raises(errors.CommandInvalid, match="cannot be made"):
        new.write_project(tmp_path / "support", "support")
    assert not list(tmp_path.iterdir())


# --- settings ---------------------------------------------------------------------------------


def test_each_setting_says_who_has_set_it(tmp_path: Path) -> None:
    """A file, the environment, a flag, or nobody; JSON has the name of the variable besides."""
    (tmp_path / "headrace.toml").write_text("lease_ms = 2000\ndepth_max = 7\n")
    ran = apart("settings", "--index", "other.db", "--json", cwd=tmp_path, env={"HEADRACE_LEASE_MS": "3000"})

    found = {one["name"]: (one["value"], one["origin"]) for one in ran.document}
    assert found["lease_ms"] == (3000, "the environment")
    assert found["depth_max"] == (7, str(tmp_path / "headrace.toml"))
    assert found["index"] == ("other.db", "a flag")
    assert found["durability"] == ("full", "the default")
    assert ran.document[0]["variable"] == "HEADRACE_JOURNAL"


def test_settings_keep_passwords_to_themselves(tmp_path: Path) -> None:
    """Neither in the table nor in JSON; the rest of the address stays."""
    index = "postgresql://ada:hunter2%40x@db:5432/headrace?sslpassword=hunter3&sslmode=require"
    for form in ((), ("--json",)):
        ran = apart("settings", *form, cwd=tmp_path, env={"HEADRACE_INDEX": index})
        assert ran.code == Exit.DONE
        assert "hunter" not in ran.out + ran.err
        assert "postgresql://ada:***@db:5432/headrace?sslpassword=***&sslmode=require" in ran.out


# --- completion -------------------------------------------------------------------------------


def test_every_shell_gets_a_script(capsys: Capture) -> None:
    """It names the command, and what it calls is answered."""
    for shell in ("bash", "zsh", "fish"):
        ran = here(capsys, "completion", shell)
        assert ran.code == Exit.DONE
        assert f"headrace completion {shell} --" in ran.out
    checked = subprocess.run(
        ["bash", "-n"], input=here(capsys, "completion", "bash").out, text=True, check=False
    )
    assert checked.returncode == 0


def test_words_are_completed_by_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands, options, values of options and arguments: from the command line, the folder, the journal."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_JOURNAL", made_journal(tmp_path))
    (tmp_path / "work.py").write_text('shop: App = App("shop")\n')

    assert "tail" in candidates([""])
    assert candidates(["dlq", "re"]) == ["redrive"]
    assert "--from-offset" in candidates(["tail", "--f"])
    assert candidates(["tail", "--topic", ""]) == ["orders", "packed"]
    assert candidates(["tail", "--follow", "--type", "P"]) == ["Packed"]
    assert candidates(["model", "activate", "shop."]) == ["shop.pack", "shop.send"]
    assert candidates(["run", "wor"]) == ["work:shop"]
    assert candidates(["explain", "HR-E10"])[0] == "HR-E101"
    assert candidates(["completion", "z"]) == ["zsh"]
    assert len(candidates(["show", ""])) == 20
    assert candidates(["tail", "--limit", ""]) == []
    assert candidates(["no-such-command", ""]) == []


def test_bash_gets_what_lies_behind_a_colon(tmp_path: Path) -> None:
    """It parts words there, so the whole of MODULE:APP would be put in twice."""
    (tmp_path / "work.py").write_text('shop = App("shop")\n')

    assert apart("completion", "bash", "--", "headrace run work:", cwd=tmp_path).out == "shop\n"
    assert apart("completion", "fish", "--", "headrace", "run", "work:", cwd=tmp_path).out == "work:shop\n"


def test_bash_itself_completes(tmp_path: Path) -> None:
    """The script, loaded into a real bash, fills in what was begun."""
    script = apart("completion", "bash", cwd=tmp_path).out
    typed = "headrace explain HR-E50"
    asked = (
        f'headrace() {{ {shlex.quote(sys.executable)} -m headrace "$@"; }}\n{script}\n'
        f"COMP_LINE={shlex.quote(typed)}; COMP_POINT={len(typed)}\n_headrace\n"
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", asked], cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False
    )
    assert "HR-E501" in done.stdout.split()


def test_completion_is_silent_where_nothing_is(tmp_path: Path) -> None:
    """No journal, a setting that is wrong: no candidates, no words on the terminal, exit code 0."""
    for env in ({}, {"HEADRACE_LEASE_MS": "x"}):
        ran = apart("completion", "zsh", "--", "headrace", "tail", "--topic", "", cwd=tmp_path, env=env)
        assert ran == (Exit.DONE, "", "")


# --- cheat ------------------------------------------------------------------------------------


def test_the_cheat_sheet_fits_a_screen(capsys: Capture) -> None:
    """24 lines of 80 characters, and JSON for programs."""
    lines = here(capsys, "cheat").out.splitlines()

    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    assert len(here(capsys, "cheat", "--json").document) == len(lines)


@pytest.mark.parametrize("line", [part for _, line in RECIPES for part in line.split("; ")])
def test_every_recipe_can_be_followed(line: str) -> None:
    """Each names a command with options and arguments that it has."""
    _, *words = shlex.split(line)
    command: Any = typer.main.get_command(tree())
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("x", words)
