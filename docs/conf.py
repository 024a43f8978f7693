"""Sphinx: every page of the repository as a site. `make docs` builds it; a broken link is an error."""

project = "Headrace"
author = "the authors of Headrace"
html_title = "Headrace"
extensions = ["myst_parser"]
root_doc = "README"
#: The source is the whole repository, for pages link to files of it; these of it are pages.
include_patterns = [
    "README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**.md", "bench/**.md",
    "src/headrace/demo/MODEL_CARD.md",
]
myst_heading_anchors = 4
html_theme = "furo"
html_show_copyright = False
html_copy_source = False
