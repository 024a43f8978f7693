"""The pages that a reader follows, and their blocks: typed in, files, or not run and why."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

#: What is typed in, and what is shown without being code.
SHELL, SHOWN = ("sh", "console"), ("text",)

FENCE = re.compile(r"^```(\w*)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Comments that no reader sees, between the text and a block.
_MARK = re.compile(r"<!-- (not run|continues|exits|another terminal|in a clone)(?:: (.+?))? -->\s*\Z")
#: A reason is a sentence, not a word.
_REASON_MIN = 12


class PageUnclear(Exception):
    """A block of which nobody can say what is to be done with it."""


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block of a page."""

    page: str
    line: int
    kind: str
    #: The file that it is, or an empty string.
    name: str
    text: str
    marks: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def where(self) -> str:
        """Where a person finds it."""
        return f"{self.page}:{self.line}"

    @property
    def is_shown_only(self) -> bool:
        """Is it a picture or an output, no code?"""
        return self.kind in SHOWN and not self.name


def followed() -> list[Path]:
    """Return the README and the pages of docs, in the order in which they are listed there."""
    listed = re.findall(r"\]\(([\w/-]+\.md)\)", (DOCS / "README.md").read_text("utf-8"))
    first = [ROOT / "README.md", *(DOCS / name for name in listed)]
    rest = sorted(DOCS.rglob("*.md"))
    return list(dict.fromkeys(page for page in [*first, *rest] if page.is_relative_to(ROOT)))


def read(page: Path, root: Path = ROOT) -> list[Block]:
    """Return the blocks of a page."""
    return list(_blocks(page.relative_to(root).as_posix(), page.read_text("utf-8")))


def _blocks(page: str, text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        before = text[: found.start()]
        block = Block(page, before.count("\n") + 1, found[1], found[2] or "", found[3], dict(_marks(before)))
        _check(block)
        yield block


def _marks(before: str) -> Iterator[tuple[str, str]]:
    while found := _MARK.search(before):
        yield found[1], found[2] or ""
        before = before[: found.start()]


def _check(block: Block) -> None:
    """Raise `PageUnclear` for a block that could be passed over by mistake."""
    problem = ""
    if not block.kind:
        problem = "it does not say of which kind it is (text, sh, console, python, ...)"
    elif "not run" in block.marks:
        if len(block.marks["not run"]) < _REASON_MIN:
            problem = "it is not run, and does not say why"
    elif block.kind not in (*SHELL, *SHOWN, "python") and not block.name:
        problem = f"a block of {block.kind} is a file, and has no name"
    elif block.kind == "console" and not block.text.startswith("$ "):
        problem = "a session begins with `$ `"
    if problem:
        raise PageUnclear(f"{block.where}: {problem}")
