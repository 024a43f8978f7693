"""``headrace new``: a project that runs, with a test that passes."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from headrace import __version__, errors
from headrace.cli.options import Json, examples
from headrace.cli.output import Exit, put, put_json, say

#: The files of a project, and the templates beside this module that they are made from.
FILES = {
    "app.py": "app.txt",
    "test_app.py": "test_app.txt",
    "pyproject.toml": "pyproject.txt",
    "README.md": "README.txt",
    ".gitignore": "gitignore.txt",
}
#: A name that an app, a folder and a Python distribution may have.
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")
#: What a new folder may be done with, as `mkdir` has it.
_FOLDER_MODE = 0o755


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    epilog = examples("headrace new support", "headrace new apps/support --json")
    top.command("new", epilog=epilog)(_new)


def _new(
    place: Annotated[
        str,
        typer.Argument(metavar="NAME", help="The folder to make; its name is the app's.", show_default=False),
    ],
    as_json: Json = False,
) -> int:
    """Make a project: an app that runs without a model, its test, and how to add a model."""
    folder = Path(place)
    name = folder.name
    if not _NAME.fullmatch(name):
        raise errors.CommandInvalid(
            problem=f"{name!r} cannot be the name of a project",
            hint="letters, digits, '.', '_' and '-', with a letter or a digit at both ends",
        )
    made = write_project(folder, name)
    if as_json:
        put_json({"folder": str(folder), "files": made})
    else:
        for one in made:
            put(str(folder / one))
        say()
        say(f"next: cd {folder} && headrace dev app:app")
    return Exit.DONE


def write_project(folder: Path, name: str) -> list[str]:
    """Write the files of a project, all or none, into a folder that is new or empty."""
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise errors.CommandInvalid(
            problem=f"{folder} is there already", hint="name a folder that is new, or empty"
        )
    templates = Path(__file__).with_name("starter")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Beside its place, then renamed: an interruption leaves no half of a project.
        draft = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=folder.parent))
        try:
            for file, template in FILES.items():
                text = Template((templates / template).read_text("utf-8"))
                (draft / file).write_text(text.substitute(name=name, version=__version__), "utf-8")
            draft.chmod(_FOLDER_MODE)
            draft.rename(folder)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    except OSError as fault:
        raise errors.CommandInvalid(problem=f"{folder} cannot be made: {fault.strerror}") from fault
    return list(FILES)
