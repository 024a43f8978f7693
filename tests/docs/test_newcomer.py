"""README and docs are followed block by block, with the Python of the tests; the following can fail."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.docs import _pages as pages
from tests.docs._follow import SHORT_ID, Account, Follower, fits, here, plain
from tests.docs._terminal import Terminal
from tests.docs.newcomer import INSTALLS

BLOCKS = {page.relative_to(pages.ROOT).as_posix(): pages.read(page) for page in pages.followed()}
#: More would be pages that nobody has tried; each has its reason beside it.
MARKED_MAX = 12


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal in an empty folder."""
    folder = tmp_path / "page"
    folder.mkdir()
    with Terminal(folder, here(dict(os.environ))) as made:
        yield made


def nothing_is_left_of_a_person(terminal: Terminal) -> None:
    """What followed without a key is gone as well; the other person's events are whole."""
    files = [one for one in terminal.folder.iterdir() if one.name.startswith("headrace.db")]
    held = b"".join(one.read_bytes() for one in files)
    assert b"I am Ada" not in held
    assert held.count(b"I am Bob") >= 2


def the_worker_ends_as_after_ctrl_c(terminal: Terminal) -> None:
    """It has run all the time, and hands back what it has."""
    assert terminal.interrupt() == [130]


#: What is looked at when a page was followed, beside what it shows itself.
AFTER: dict[str, Callable[[Terminal], None]] = {
    "docs/how-to/delete-a-person.md": nothing_is_left_of_a_person,
    "README.md": the_worker_ends_as_after_ctrl_c,
}


@pytest.mark.parametrize("page", [name for name, blocks in BLOCKS.items() if blocks])
@pytest.mark.timeout(600)
def test_a_page_can_be_followed(terminal: Terminal, page: str) -> None:
    """Each block, in the order of the page: commands end well, and print what the page shows."""
    account = Account()
    Follower(terminal, passed_over=INSTALLS).follow(BLOCKS[page], account)
    assert account.faults == []
    AFTER.get(page, lambda _: None)(terminal)


def test_few_blocks_are_not_run() -> None:
    """Those that are not run say what they need; no command stands in an indented block."""
    marked = [one for blocks in BLOCKS.values() for one in blocks if "not run" in one.marks]
    assert len(marked) <= MARKED_MAX
    for name in BLOCKS:
        lines = pages.FENCE.sub("", (pages.ROOT / name).read_text("utf-8")).splitlines()
        assert [line for line in lines if line.startswith(("    $ ", "    headrace ", "    make "))] == []


def test_every_page_of_docs_is_followed() -> None:
    """No page is forgotten, and the README is the first."""
    names = list(BLOCKS)
    assert names[0] == "README.md"
    assert {one.relative_to(pages.ROOT).as_posix() for one in pages.DOCS.rglob("*.md")} <= set(names)


# --- what follows pages can fail ----------------------------------------------------------------


def page_of(folder: Path, text: str) -> list[pages.Block]:
    """Return the blocks of a page that a test has written."""
    page = folder / "page.md"
    page.write_text(text, "utf-8")
    return pages.read(page, folder)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("```sh\nfalse\n```\n", "`false` ended with exit code 1"),
        ("```sh\ntrue\n(exit 7)\n```\n", "exit code 7"),
        ("```sh\nheadrace nothing\n```\n", "no such command"),
        ("```console\n$ echo one\ntwo\n```\n", "the page shows:\ntwo"),
        ("```console\n$ echo one\n```\n", "the page shows:"),
        ("```sh\nif true; then\n```\n", "waits for the rest"),
        ("```python app.py\ndef f(:\n```\n", "no Python"),
        ("```python\nraise ValueError('here')\n```\n", "ValueError: here"),
        ("```console\n$ echo 01a22df6-2ae4-7009\n01a22df6-2ae4-7009\n```\n", "was not shown"),
        ("<!-- exits: 1 -->\n```sh\ntrue\n```\n", "exit code 0"),
    ],
)
def test_a_block_that_fails_is_a_fault(terminal: Terminal, tmp_path: Path, text: str, told: str) -> None:
    """The fault says where it is and what happened; what comes after it on the page was not run."""
    account = Account()
    Follower(terminal).follow(page_of(tmp_path, f"# A\n\n{text}\n```sh\ntouch later\n```\n"), account)
    assert (account.blocks, account.failed) == (1, 2)
    assert re.match(r"page\.md:[34]: ", account.faults[0])
    assert told in account.faults[0]
    assert not (terminal.folder / "later").exists()


@pytest.mark.parametrize(
    "text",
    [
        "```\nls\n```\n",
        "```toml\na = 1\n```\n",
        "```console\nls\n```\n",
        "<!-- not run: later -->\n```sh\nls\n```\n",
    ],
)
def test_a_block_without_a_sense_is_refused(tmp_path: Path, text: str) -> None:
    """What a block is, and why it is not run, has to be said."""
    with pytest.raises(pages.PageUnclear):
        page_of(tmp_path, text)


SESSION = """
```sh
export NAME=ada
mkdir there
cd there
sleep 60 &
```

```python given.py
WHO = "bob"
```

<!-- continues: given.py -->
```python
print(WHO)
```

```console
$ echo $NAME && ls; jobs -r | wc -l
ada
...
1
$ echo x | sed 's/.*/01b22df6-2ae4-7009-9728-3a09e0f179fe/'
01a22df6-2ae4-7009-9728-3a09e0f179fe
$ echo 01a22df6-2ae4 after 4.5 ms
01b22df6-2ae4 after 17 ms
```

<!-- another terminal -->
```console
$ sleep 60 & echo beside; wait
beside
```

<!-- not run: needs a machine that nobody has -->
```sh
false
```
"""


def test_a_page_is_one_session(terminal: Terminal, tmp_path: Path) -> None:
    """Variables, folder, jobs and ids are those of earlier blocks; in the end nothing of it runs."""
    account = Account()
    Follower(terminal).follow(page_of(tmp_path, SESSION), account)
    assert account.faults == []
    assert (account.blocks, account.marked, account.failed) == (5, 1, 0)
    (job,) = terminal.jobs()
    terminal.interrupt()
    with pytest.raises(ProcessLookupError):
        os.kill(job, 0)


def test_what_varies_is_found() -> None:
    """Times and ids, whole and shortened, are recognised: else a comparison could never fail for them."""
    assert plain("after 5 ms; 01a22a53-3b70-7ac8-b8e3-ff3d1bbe5cb2") == "after <n>; <id>"
    assert SHORT_ID.findall("headrace show 01a22a53-3b70-7ac8 | tail") == ["01a22a53-3b70-7ac8"]
    assert fits("a  b\nc\nd\n", "a b\n...\nd".replace(" ", "   "))
    assert not fits("a\nc\n", "a\n...\nd")
    assert not fits("3 events", "2 events")
