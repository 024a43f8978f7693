"""The pages agree with the code: links lead somewhere, names exist, no table of the journal is left out."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import apsw
import pytest

from headrace.journal.file import JOURNAL
from headrace.ports import CARE_FAILPOINTS, FAILPOINTS, OpenState

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "headrace"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "bench").glob("*.md"),
        *PACKAGE.rglob("*.md"),
    ]
)
DECISIONS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text("utf-8")

LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """Return a page without its blocks of code."""
    return FENCE.sub("", page.read_text("utf-8"))


def anchors(page: Path) -> set[str]:
    """Return the names under which the headings of a page can be linked to."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def dead_links(page: Path, root: Path = ROOT) -> list[str]:
    """Return the relative links of a page that lead nowhere."""
    dead: list[str] = []
    for link in LINK.findall(prose(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        inside = target.is_relative_to(root) and target.exists()
        if not inside or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """Each relative link of a page leads to a file of the repository, and to a heading that is there."""
    assert dead_links(page) == []


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    """A missing file, one outside of the repository, and a heading that is not there are dead links."""
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](none.md) [b](/etc) [c](#two) [d](#one) [e](https://example.org)\n", "utf-8")
    assert dead_links(page, tmp_path) == ["none.md", "/etc", "#two"]


def test_every_page_is_reached() -> None:
    """Each page of docs can be reached from the README by links."""
    seen: set[Path] = set()
    queue = [ROOT / "README.md"]
    while queue:
        page = queue.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = [link.partition("#")[0] for link in LINK.findall(prose(page))]
        queue += [(page.parent / link).resolve() for link in links if link and "://" not in link]
    assert [page for page in PAGES if page not in seen] == []


# --- ARCHITECTURE.md ----------------------------------------------------------------------------


def below(heading: str) -> str:
    """Return the text below a heading of ARCHITECTURE.md."""
    return ARCHITECTURE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]


def test_paths_exist() -> None:
    """Each path in ARCHITECTURE.md is one of the package or of the repository."""
    named = set(re.findall(r"`([\w/]+\.(?:py|sql)|\w+/)`", ARCHITECTURE))
    assert len(named) > 15
    missing = [path for path in named if not (PACKAGE / path).exists() and not (ROOT / path).exists()]
    assert missing == []


def members() -> set[str]:
    """Return every `Class.name` that the package defines."""
    found: set[str] = set()
    for file in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                for one in node.body:
                    name = getattr(one, "name", None) or getattr(getattr(one, "target", None), "id", None)
                    found.add(f"{node.name}.{name}")
    return found


def test_names_exist() -> None:
    """Each `Class.name` in ARCHITECTURE.md is defined in the package."""
    named = set(re.findall(r"`([A-Z]\w+\.\w+)`", ARCHITECTURE))
    assert len(named) > 10
    assert named <= members()


def test_the_layers_are_those_that_are_enforced() -> None:
    """ARCHITECTURE.md shows the layers of the import rule in their order, less those without code yet."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(one["layers"] for one in contracts if one["type"] == "layers")
    there = [
        [name for name in re.findall(r"\w+", layer) if list(PACKAGE.glob(f"{name}*"))] for layer in layers
    ]
    block = FENCE.findall(below("Layers"))[0].splitlines()[1:-1]
    shown = [re.findall(r"\w+", re.split(r" {3,}", line)[0]) for line in block]
    assert [sorted(names) for names in shown] == [sorted(names) for names in there if names]


def test_every_column_is_told() -> None:
    """The tables of ARCHITECTURE.md name each table and column of the journal, and no other."""
    db = apsw.Connection(":memory:")
    for script in JOURNAL.scripts:
        db.execute((PACKAGE / "journal" / script).read_text("utf-8"))
    sql = "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_info(m.name) c WHERE m.type = 'table'"
    found = db.execute(sql).fetchall()
    columns = {f"{table}.{column}" for table, column in found if not str(table).startswith("sqlite_")}
    cells = re.findall(r"^\| (`[a-z]+\.[a-z_]+`[^|]*) \|", below("The tables of the journal"), re.MULTILINE)
    told = [name for cell in cells for name in re.findall(r"`([a-z_.]+)`", cell)]
    assert sorted(told) == sorted(columns)


def test_every_failpoint_is_told() -> None:
    """ARCHITECTURE.md says of each failpoint what a kill there leaves behind."""
    rows = re.findall(r"^\| (`[a-z]+\.[^|]*) \|", below("When a process dies"), re.MULTILINE)
    told = [name for row in rows for name in re.findall(r"`([a-z.]+)`", row)]
    assert told == [*FAILPOINTS, *CARE_FAILPOINTS]


def test_every_state_is_told() -> None:
    """ARCHITECTURE.md tells of each state of an open offset."""
    told = re.findall(r"^\| `(\w+)` \|", below("An open offset"), re.MULTILINE)
    assert sorted(told) == sorted(OpenState)


# --- decisions and form -------------------------------------------------------------------------


@pytest.mark.parametrize("page", DECISIONS, ids=lambda page: page.stem)
def test_a_decision_is_whole(page: Path) -> None:
    """A decision has its number, context, decision, consequences and figures, and is listed."""
    text = page.read_text("utf-8")
    assert text.startswith(f"# {int(page.stem[:4])}. ")
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert heads == ["Context", "Decision", "Consequences", "Figures"]
    listed = (page.parent / "README.md").read_text("utf-8")
    title = text.splitlines()[0].partition(". ")[2]
    assert f"[{page.stem[:4]}]({page.name}) | {title}" in listed


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_nothing_was_left_to_be_filled_in(page: Path) -> None:
    """No page holds a mark of something that is still to be written."""
    assert not re.search(r"\b(TODO|FIXME|TBD|XXX|PLACEHOLDER|PICTURE|NUMBERS)\b", page.read_text("utf-8"))
