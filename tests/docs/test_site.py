"""The pages become a site, as `make docs` makes it: without a warning, and a dead link is an error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The options of `make docs`.
STRICT = ("--fail-on-warning", "--keep-going", "--nitpicky", "--quiet")


def built(source: Path, out: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a folder."""
    sphinx = [sys.executable, "-m", "sphinx", "--builder", "html", "--conf-dir", ROOT / "docs", *STRICT]
    return subprocess.run([*sphinx, source, out], text=True, capture_output=True, check=False, cwd=ROOT)


@pytest.mark.timeout(300)
def test_the_site_is_built(tmp_path: Path) -> None:
    """Every page is part of it, and no link of any of them is dead."""
    ran = built(ROOT, tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    for page in (ROOT / "docs").rglob("*.md"):
        assert (tmp_path / page.relative_to(ROOT).with_suffix(".html")).is_file()


def test_make_docs_builds_the_same() -> None:
    """The options of the Makefile are those that are tested here."""
    makefile = (ROOT / "Makefile").read_text("utf-8")
    line = next(line for line in makefile.splitlines() if "-m sphinx" in line)
    assert [word for word in line.split() if word in STRICT] == list(STRICT)


@pytest.mark.parametrize(
    ("text", "told"),
    [("[a](nowhere.md)", "nowhere.md"), ("[a](#no-such-heading)", "no-such-heading")],
)
def test_a_dead_link_is_an_error(tmp_path: Path, text: str, told: str) -> None:
    """A file, or a heading, that is not there."""
    source = tmp_path / "source"
    source.mkdir()
    (source / "README.md").write_text(f"# A\n\n{text}\n", "utf-8")
    ran = built(source, tmp_path / "site")
    assert ran.returncode == 1
    assert told in ran.stderr
