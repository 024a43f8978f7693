"""Follows a page as a reader does: writes its files, types its commands, compares what they print."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.docs._pages import SHELL, Block
from tests.docs._terminal import LOOK_S, PATIENCE_S, Stuck, Terminal

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SHORT_ID = re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}(?:-[0-9a-f]{4}){0,2}(?![0-9a-f-])")
#: What differs from run to run, and what stands for it in both texts.
VARIES = (
    (ID, "<id>"),
    (re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?Z?"), "<time>"),
    (re.compile(r"\b[\d,.]+ ?(?:ms|s|[KMG]iB|bytes)\b"), "<n>"),
    (re.compile(r"(?<=:)[0-9a-f]{12}\b"), "<digest>"),
    (re.compile(r"\bpid \d+"), "pid <n>"),
    (re.compile(r"(?<=127\.0\.0\.1:)\d+"), "<port>"),
    (re.compile(r" {2,}"), "  "),
)
#: Of what a command has printed, as much is told of a fault, in characters.
PRINTED_MAX = 4_000
#: A line of three dots stands for any lines.
ANY = "..."
#: Commands that only look: typed again until they print what the page shows.
LOOKS = re.compile(
    r"(headrace (show|status|tail|why|check|model history|dlq (ls|show)|handler ls)|cat|curl|grep|tail)\b"
)


@dataclass(slots=True)
class Account:
    """What following pages came to."""

    pages: int = 0
    #: Blocks that were run, or written and then used.
    blocks: int = 0
    #: Blocks that a page marks as not to be run.
    marked: int = 0
    failed: int = 0
    faults: list[str] = field(default_factory=list[str])


class Wrong(Exception):
    """A block that does not do what the page says."""


def plain(text: str) -> str:
    """Return a text with all that differs from run to run replaced."""
    for pattern, name in VARIES:
        text = pattern.sub(name, text)
    return "\n".join(line.strip() for line in text.strip().splitlines())


def fits(printed: str, shown: str) -> bool:
    """Tell whether a command has printed what the page shows."""
    parts = plain(shown).split("\n")
    pattern = "\n".join(r"(?:.*\n)*?.*" if part == ANY else re.escape(part) for part in parts)
    return re.fullmatch(pattern, plain(printed)) is not None


def commands(block: Block) -> Iterator[tuple[str, str | None]]:
    """Yield each command of a block with what the page shows of its output, if it shows any."""
    if block.kind == "console":
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, shown = part.partition("\n")
            while command.endswith("\\"):
                more, _, shown = shown.partition("\n")
                command = f"{command}\n{more}"
            yield command, shown
        return
    typed = ""
    for line in block.text.splitlines():
        typed = f"{typed}\n{line}" if typed else line
        if is_whole(typed):
            if typed.strip() and not typed.lstrip().startswith("#"):
                yield typed, None
            typed = ""
    if typed:
        raise Wrong(f"the shell waits for the rest of: {typed}")


def is_whole(typed: str) -> bool:
    """Tell whether the shell would run what was typed so far, and not wait for more."""
    if typed.endswith("\\"):
        return False
    asked = subprocess.run(["bash", "-n", "-c", typed], capture_output=True, check=False)
    return asked.returncode == 0 and not asked.stderr


class Follower:
    """Somebody who follows one page in one terminal."""

    def __init__(self, terminal: Terminal, *, passed_over: str = "", clone: Path | None = None) -> None:
        self._terminal, self._clone = terminal, clone
        #: Commands that this reader leaves out, for they have been done.
        self._passed_over = re.compile(passed_over) if passed_over else None
        #: The ids that the page shows, and those that came in their place.
        self._ids: dict[str, str] = {}
        #: May the last command have given workers something to do?
        self._stirred = False

    def follow(self, blocks: list[Block], account: Account) -> None:
        """Go through the blocks of a page; the first that fails ends it, and what is left has failed too."""
        account.pages += 1
        todo = [one for one in blocks if not one.is_shown_only]
        for number, block in enumerate(todo):
            if "not run" in block.marks or ("in a clone" in block.marks and self._clone is None):
                account.marked += 1
                continue
            account.blocks += 1
            try:
                self.do(block)
            except (Wrong, Stuck) as fault:
                left = sum("not run" not in one.marks for one in todo[number + 1 :])
                account.failed += 1 + left
                account.faults.append(f"{block.where}: {fault}\n{left} more blocks of the page were not run")
                return

    def do(self, block: Block) -> None:
        """Do what a block says."""
        if block.kind in SHELL:
            for command, shown in commands(block):
                self.type(command, shown, block)
            return
        folder = Path(self._terminal.run("pwd")[1].strip())  # the page may have gone into another
        if block.name:
            (folder / block.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.name).write_text(block.text, "utf-8")
            if block.name.endswith(".py"):
                _parsed(block.text)
        else:
            before = block.marks.get("continues")
            text = (folder / before).read_text("utf-8") + "\n" if before else ""
            (folder / "_block.py").write_text(text + block.text, "utf-8")
            self._ran("python _block.py")

    def type(self, command: str, shown: str | None, block: Block) -> None:
        """Type a command, and compare what it prints with what the page shows."""
        if self._passed_over is not None and self._passed_over.match(command):
            return
        for told in SHORT_ID.findall(command):
            real = next((mine for theirs, mine in self._ids.items() if theirs.startswith(told)), None)
            if real is None:
                raise Wrong(f"`{command}`: {told} was not shown by an earlier command")
            command = command.replace(told, real[: len(told)])
        if "in a clone" in block.marks:
            command = f"(cd '{self._clone}' && {command}\n)"
        if "another terminal" in block.marks:
            self._beside(command, shown)
            return
        if self._stirred and not command.rstrip().endswith("&"):
            self._terminal.until_idle()
        self._stirred = LOOKS.match(command) is None
        printed = self._ran(command, shown, int(block.marks.get("exits", "0")))
        if shown:
            self._ids |= dict(zip(ID.findall(shown), ID.findall(printed), strict=False))

    def _ran(self, command: str, shown: str | None = None, code: int = 0) -> str:
        end = time.monotonic() + PATIENCE_S
        before = self._terminal.jobs() if command.startswith("kill ") else []
        while True:
            found, printed = self._terminal.run(command)
            good = found == code and (shown is None or fits(printed, shown))
            if good or not LOOKS.match(command) or time.monotonic() > end:
                break
            time.sleep(LOOK_S)
        if not good:
            raise Wrong(_told(command, found, printed, shown, self._terminal.folder))
        if before:
            self._terminal.until_gone(before)
        return printed

    def _beside(self, command: str, shown: str | None) -> None:
        """Leave a command at work; it has some time to print what the page shows."""
        prints = self._terminal.beside(command)
        end = time.monotonic() + PATIENCE_S
        while shown and not fits(printed := prints.read_text("utf-8"), shown):
            if time.monotonic() > end:
                raise Wrong(_told(command, None, printed, shown, self._terminal.folder))
            time.sleep(LOOK_S)


def _parsed(text: str) -> None:
    try:
        ast.parse(text)
    except SyntaxError as fault:
        raise Wrong(f"this is no Python: {fault}") from fault


def _told(command: str, code: int | None, printed: str, shown: str | None, folder: Path) -> str:
    ended = "still runs" if code is None else f"ended with exit code {code}"
    parts = [f"`{command}` {ended}, and has printed:", printed.rstrip()[-PRINTED_MAX:]]
    if shown is not None:
        parts += ["-- the page shows:", shown.rstrip()]
    for log in sorted(folder.rglob("*.log")):
        parts += [f"-- {log.name}:", log.read_text("utf-8")[-PRINTED_MAX:].rstrip()]
    return "\n".join(parts)


def here(environment: dict[str, str]) -> dict[str, str]:
    """Return the environment of a reader who uses the Python that runs this."""
    return reader(environment, Path(sys.executable).parent)


def reader(environment: dict[str, str], commands_in: Path) -> dict[str, str]:
    """Return the environment of a reader: one ``bin`` first, no settings of somebody else."""
    own = {
        name: value for name, value in environment.items() if not name.startswith(("HEADRACE_", "PYTEST_"))
    }
    path = f"{commands_in}:{own.get('PATH', '')}"
    return own | {"PATH": path, "NO_COLOR": "1", "COLUMNS": "120", "PYTHONDONTWRITEBYTECODE": "1"}
