"""Sphinx: the pages of the repository as a site. `make docs` builds it; a dead link is an error."""

from __future__ import annotations

from typing import Any

project = "Headrace"
author = "the authors of Headrace"
html_title = "Headrace"
html_theme = "furo"
html_show_copyright = False
html_show_sphinx = False
html_copy_source = False
extensions = ["myst_parser"]
#: GitHub's names of headings, so that a link which works there works here.
myst_heading_anchors = 4
root_doc = "README"
#: The source is the whole repository, for its pages link to files of it; these of them are pages.
include_patterns = ["*.md", "docs/**.md", "bench/*.md", "src/headrace/demo/*.md"]
exclude_patterns = [".*", "build", "dist", "tests"]
#: The side bar: headings and their pages.
CONTENTS = {
    "Begin": ["docs/README", "docs/tutorial", "docs/why"],
    "How to": [f"docs/how-to/{name}" for name in (
        "test", "deploy", "watch", "upgrade-a-model", "care", "delete-a-person", "kafka",
    )],
    "Reference": [f"docs/reference/{name}" for name in ("api", "cli", "errors", "settings", "metrics")],
    "Project": [
        "ARCHITECTURE", "docs/adr/README", "bench/README", "src/headrace/demo/MODEL_CARD",
        "CHANGELOG", "CONTRIBUTING", "SECURITY",
    ],
}  # fmt: skip
DECISIONS = "```{toctree}\n:hidden:\n:glob:\n\n/docs/adr/0*\n```\n"


def contents(_: Any, page: str, source: list[str]) -> None:
    """Add to two pages what belongs to the site alone: they are read as they are elsewhere."""
    if page == root_doc:
        for heading, names in CONTENTS.items():
            listed = "\n".join(f"/{name}" for name in names)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{listed}\n```\n"
    elif page == "docs/adr/README":
        source[0] += f"\n{DECISIONS}"


def setup(app: Any) -> None:
    """Tell Sphinx."""
    app.connect("source-read", contents)
