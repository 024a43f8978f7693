"""What the how-tos of a journal in a file show is typed in, block after block, in a folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = ("care.md", "delete-a-person.md")
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: A page is a session of one shell; one that hangs is a failure.
PATIENCE_S = 120
#: Whatever a page has started is ended by its own number when the session ends.
BEGIN = "set -e\nset -m\ntrap 'kill $(jobs -p) 2>/dev/null || true' EXIT\n"
#: A person who types gives a worker time to do what it has to: until nothing waits.
IDLE = (
    "for _ in $(seq 200); do headrace status --json 2>/dev/null"
    ' | grep -q \'"waiting": 0, "running": 0\' && break; sleep 0.1; done\n'
)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Return the blocks of a page: language, file, text."""
    text = (ROOT / "docs" / "how-to" / page).read_text("utf-8")
    return [(found[1], found[2] or "", found[3]) for found in BLOCK.finditer(text)]


def typed(folder: Path, page: str) -> subprocess.CompletedProcess[str]:
    """Type in all commands of a page, one after the other, in one shell."""
    for kind, name, text in blocks(page):
        if kind == "python" and name:
            (folder / name).write_text(text, "utf-8")
    script = BEGIN
    for kind, _, text in blocks(page):
        if kind == "sh":
            script += text + (IDLE if text.rstrip().endswith("&") or "run app:app &" in text else "")
    own = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    path = f"{Path(sys.executable).parent}{os.pathsep}{own.get('PATH', '')}"
    return subprocess.run(
        ["bash", "-c", script], cwd=folder, env=own | {"PATH": path, "NO_COLOR": "1"}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.timeout(2 * PATIENCE_S)
def test_the_commands_of_a_page_work(tmp_path: Path, page: str) -> None:
    """Each ends with exit code 0, in the order in which a reader meets them."""
    ran = typed(tmp_path, page)

    assert ran.returncode == 0, ran.stdout
    assert "warning:" not in ran.stdout
    assert "verify: clean" in ran.stdout


def test_care_does_what_it_says(tmp_path: Path) -> None:
    """The restored journal goes on, and the handler ends as retired."""
    said = typed(tmp_path, "care.md").stdout

    assert "monday.db: 2 events" in said
    assert "topic tickets: 1 event, kept for 30 d" in said
    assert "support.route is retired: 0 open events closed, 0 not taken" in said


def test_nothing_is_left_of_a_person(tmp_path: Path) -> None:
    """What followed without a key is gone as well; the other person's events are whole."""
    said = typed(tmp_path, "delete-a-person.md").stdout

    held = b"".join(one.read_bytes() for one in tmp_path.iterdir() if one.name.startswith("headrace.db"))
    assert b"I am Ada" not in held, said
    assert held.count(b"I am Bob") >= 2
    assert "2 events and 0 dead letters are erased" in said


def test_code_that_is_not_a_file_fits_the_app(tmp_path: Path) -> None:
    """The renaming that the page shows is declared without a fault."""
    app = next(text for kind, name, text in blocks("care.md") if name == "app.py")
    piece = next(text for kind, name, text in blocks("care.md") if kind == "python" and not name)
    (tmp_path / "app.py").write_text(
        app.replace("@app.handler\nasync def route", "async def route") + piece, "utf-8"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "headrace", "check", "app:app"],
        cwd=tmp_path, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert (ran.returncode, "no findings" in ran.stdout) == (0, True), ran.stdout + ran.stderr
