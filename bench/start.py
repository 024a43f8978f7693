"""What a small app costs before it does anything: its import, and the first event after `headrace run`.

`import_ms`: the import of the README's twelve-line app, less that of its two events as plain pydantic models;
each in a fresh interpreter, byte code written before, in turns.  `first_event_ms`: from the start of the
command `headrace run` to the first result in a journal that holds one event, model loaded.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from _measure import ROOT, Side, in_turns, median, options, report, scratch

from headrace.journal.reader import Reader

TARGETS = {"import_ms": "<= 60", "first_event_ms": "< 1000"}
MODEL = ROOT / "src" / "headrace" / "demo" / "intent.onnx"
LOOK_S = 0.001
PATIENCE_S = 60.0
#: What a user types; the command lies beside the interpreter.
COMMAND = (str(Path(sys.executable).with_name("headrace")), "run", "app:app")

PLAIN = """
from pydantic import BaseModel

class Ticket(BaseModel):
    customer: str
    text: str

class Routed(BaseModel):
    customer: str
    intent: str
"""

PUBLISH = """
import asyncio
from app import Ticket, app

async def main():
    async with app:
        await app.publish(Ticket(customer="ada", text="how would you say fly in italian"))

asyncio.run(main())
"""


def readme_app() -> str:
    """Return the program of the README that is to be saved as app.py."""
    found = re.search(r"```python app\.py\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found is not None, "the README shows no app.py"
    return found[1]


def in_folder(folder: Path) -> dict[str, str]:
    """Return the environment of the measured interpreters: nothing that changes what an import costs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HEADRACE"))}
    return kept | {"PYTHONPATH": str(folder)}


def importing(folder: Path, module: str) -> Side:
    """Return a side that tells the milliseconds of an import in a fresh interpreter."""
    program = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"

    async def side() -> float:
        done = subprocess.run(  # noqa: ASYNC221 - nothing else runs meanwhile
            [sys.executable, "-c", program],
            env=in_folder(folder),
            cwd=folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return float(done.stdout) * 1000

    return side


def first_event(folder: Path) -> float:
    """Return the milliseconds from the command to the first result, with a journal that holds one event."""
    for old in folder.glob("headrace.db*"):
        old.unlink()
    quiet = {"env": in_folder(folder), "cwd": folder, "stdout": subprocess.DEVNULL}
    subprocess.run([sys.executable, "-c", PUBLISH], check=True, **quiet)
    reader = Reader(str(folder / "headrace.db"))
    begin = time.perf_counter()
    running = subprocess.Popen(COMMAND, stderr=subprocess.DEVNULL, **quiet)
    try:
        while len(reader.events()) < 2:
            if running.poll() is not None or time.perf_counter() - begin > PATIENCE_S:
                raise RuntimeError(f"{' '.join(COMMAND)} ended, or handled nothing")
            time.sleep(LOOK_S)
        return (time.perf_counter() - begin) * 1000
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(20)
        reader.close()


def measure(folder: Path, rounds: int, starts: int) -> dict[str, object]:
    """Return the result."""
    (folder / "app.py").write_text(readme_app(), encoding="utf-8")
    (folder / "plain.py").write_text(PLAIN, encoding="utf-8")
    shutil.copy(MODEL, folder / "intent.onnx")
    sides = {"plain": importing(folder, "plain"), "app": importing(folder, "app")}
    asyncio.run(in_turns(sides, 2))  # writes the byte code, and warms the disk's cache
    found = asyncio.run(in_turns(sides, rounds))
    first_event(folder)
    firsts = [first_event(folder) for _ in range(starts)]
    return {
        "import_ms": median([one - other for one, other in zip(found["app"], found["plain"], strict=True)]),
        "first_event_ms": median(firsts),
        "app_import_ms": median(found["app"]),
        "plain_import_ms": median(found["plain"]),
        "first_event_max_ms": max(firsts),
        "rounds": rounds,
        "starts": starts,
    }


def main() -> None:
    """Measure and print."""
    given = options(__doc__, rounds=21, starts=7)
    with scratch(given.folder) as folder:
        result = measure(folder, given.rounds, given.starts)
    report(result, TARGETS, as_json=given.json)


if __name__ == "__main__":
    main()
