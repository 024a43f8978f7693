#!/usr/bin/env python3
"""A newcomer: builds a wheel, installs it into a new environment, and follows README and docs block by block.

``python tests/docs/newcomer.py --json`` prints {"pages", "blocks", "marked", "failed", "seconds"}; blocks
that need what a bare machine does not have are marked in the page, with the reason, and are counted apart.
With ``--here`` the Python that runs this is used, and nothing is built or installed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.docs import _pages as pages
from tests.docs._follow import Account, Follower, here, reader
from tests.docs._terminal import Terminal

#: The packages that a wheel needs are fetched in less.
INSTALL_S_MAX = 600
#: What a reader who has everything need not do.
INSTALLS = r"(python -m )?pip install "


def wheel_into(folder: Path) -> Path:
    """Build the wheel with what the repository builds it with; return it."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=pages.ROOT, check=True, stdout=sys.stderr, timeout=INSTALL_S_MAX)
    (found,) = folder.glob("*.whl")
    return found


def environment_of(folder: Path) -> dict[str, str]:
    """Make a new environment that holds the wheel alone; return the variables of who uses it."""
    place = folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True, timeout=INSTALL_S_MAX)
    install = [place / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", wheel_into(folder)]
    subprocess.run(install, cwd=folder, check=True, stdout=sys.stderr, timeout=INSTALL_S_MAX)
    own = reader(dict(os.environ), place / "bin")
    # Or the source would stand in for the wheel.
    return {name: value for name, value in own.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}


def cloned(folder: Path) -> Path:
    """Copy what the repository holds, as a clone has it."""
    clone = folder / "clone"
    clone.mkdir()
    kept = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=pages.ROOT, check=True, capture_output=True,
    ).stdout  # fmt: skip
    archive = ["tar", "--create", "--null", "--files-from=-"]
    packed = subprocess.run(archive, cwd=pages.ROOT, input=kept, check=True, capture_output=True).stdout
    subprocess.run(["tar", "--extract"], cwd=clone, input=packed, check=True)
    return clone


def followed(options: argparse.Namespace, folder: Path) -> Account:
    """Follow the pages, each in a folder of its own."""
    account = Account()
    environment = here(dict(os.environ)) if options.here else environment_of(folder)
    clone = None if options.here else cloned(folder)
    for page in pages.followed():
        name = page.relative_to(pages.ROOT).as_posix()
        if options.only and name not in options.only:
            continue
        blocks = pages.read(page)
        place = folder / name.replace("/", "-").removesuffix(".md")
        place.mkdir()
        began, before = time.monotonic(), account.blocks
        if blocks:
            with Terminal(place, environment) as terminal:
                passed_over = INSTALLS if options.here else ""
                Follower(terminal, passed_over=passed_over, clone=clone).follow(blocks, account)
        else:
            account.pages += 1
        took = time.monotonic() - began
        print(f"{name}: {account.blocks - before} blocks, {took:.0f} s", file=sys.stderr)
    return account


def main() -> int:
    """Follow the pages and say what came of it; exit code 1 when a block has failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--here", action="store_true", help="use this Python, build and install nothing")
    parser.add_argument("--only", nargs="+", metavar="PAGE", help="such as README.md, docs/tutorial.md")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="newcomer-") as folder:
        account = followed(options, Path(folder))
    for fault in account.faults:
        print(f"\nfailed: {fault}", file=sys.stderr)
    found = {
        "pages": account.pages,
        "blocks": account.blocks,
        "marked": account.marked,
        "failed": account.failed,
        "seconds": round(time.monotonic() - began, 1),
    }
    if options.json:
        print(json.dumps(found))
    else:
        print(", ".join(f"{name} {count}" for name, count in found.items()))
    return 1 if account.failed else 0


if __name__ == "__main__":
    sys.exit(main())
