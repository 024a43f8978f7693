"""How soon `headrace dev` takes up a change: from a saved file to the first result of the new code or model.

`code_ms`, `model_ms`: an event is published every few milliseconds all the while; measured until the journal
holds a result that the new code, or the new epoch of the model, has made.  Nothing may be lost: `lost` counts
published events without a result.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from _measure import ROOT, median, options, report, scratch

from headrace import App, Event
from headrace.journal.reader import Reader
from headrace.ports.look import StoredEvent

TARGETS = {"code_ms": "< 1000", "model_ms": "< 1000", "lost": "0"}
MODEL = ROOT / "src" / "headrace" / "demo" / "intent.onnx"
PAUSE_S = 0.005
PATIENCE_S = 60.0

APP = """
from headrace import App, Event, Model

class Ask(Event, topic="asks"):
    text: str

class Answer(Event, topic="answers"):
    code: int

app = App("reload")

@app.handler(model=Model.onnx("intent.onnx"))
async def answer(ask: Ask, model) -> Answer:
    await model(ask.text)
    return Answer(code={code})
"""


class Ask(Event, topic="asks"):
    """What the measured app takes."""

    text: str


class Ground:
    """A folder with the app, and a publisher beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.code, self.epoch, self.asked = folder, 1, 1, 0
        self.app = App("asker", journal=str(folder / "headrace.db"), events=[Ask])
        self._save_code()
        shutil.copy(MODEL, folder / "intent.onnx")

    def _save_code(self) -> None:
        draft = self.folder / "draft"
        draft.write_text(APP.replace("{code}", str(self.code)), encoding="utf-8")
        draft.replace(self.folder / "app.py")

    async def until(self, fits: Callable[[StoredEvent], bool]) -> float:
        """Publish until a result fits; return the milliseconds."""
        begin, reader = time.perf_counter(), Reader(str(self.folder / "headrace.db"))
        try:
            while not any(map(fits, reader.newest(10, topic="answers"))):
                if time.perf_counter() - begin > PATIENCE_S:
                    raise RuntimeError("the change was never taken up")
                await self.app.publish(Ask(text="how would you say fly in italian"))
                self.asked += 1
                await asyncio.sleep(PAUSE_S)
            return (time.perf_counter() - begin) * 1000
        finally:
            reader.close()

    async def change_code(self) -> float:
        """Save other code and wait for a result of it."""
        self.code += 1
        self._save_code()
        wanted = b'{"code":%d}' % self.code
        return await self.until(lambda one: one.payload == wanted)

    async def change_model(self) -> float:
        """Put another model in place and wait for a result of it."""
        self.epoch += 1
        draft = self.folder / "draft.onnx"
        # A field of protobuf that nobody reads: other bytes, the same answers.
        draft.write_bytes(MODEL.read_bytes() + b"\x1a\x02%02d" % self.epoch)
        draft.replace(self.folder / "intent.onnx")
        wanted = f"intent@{self.epoch}:"
        return await self.until(lambda one: (one.envelope.model or "").startswith(wanted))

    async def lost(self) -> int:
        """Return how many published events have no result, once there is time for one."""
        reader = Reader(str(self.folder / "headrace.db"))
        try:
            begin = time.perf_counter()
            while time.perf_counter() - begin < PATIENCE_S:
                if _count(reader) == self.asked:
                    return 0
                await asyncio.sleep(PAUSE_S)
            return self.asked - _count(reader)
        finally:
            reader.close()


def _count(reader: Reader) -> int:
    found = after = 0
    while page := reader.events(after=after, topic="answers"):
        found, after = found + len(page), page[-1].envelope.offset
    return found


async def measure(folder: Path, rounds: int) -> dict[str, object]:
    """Return the result."""
    ground = Ground(folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE")}
    command = [sys.executable, "-m", "headrace", "dev", "app:app"]
    running = subprocess.Popen(  # noqa: ASYNC220 - it runs beside
        command, cwd=folder, env=kept, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        async with ground.app:
            await ground.until(lambda one: True)  # noqa: ARG005 - any result will do
            codes, models = list[float](), list[float]()
            for _ in range(rounds):
                codes.append(await ground.change_code())
                await asyncio.sleep(1)  # for who saves next is no machine
                models.append(await ground.change_model())
                await asyncio.sleep(1)
            lost = await ground.lost()
    finally:
        running.send_signal(signal.SIGINT)
        running.wait(20)
    return {
        "code_ms": median(codes),
        "model_ms": median(models),
        "code_max_ms": max(codes),
        "model_max_ms": max(models),
        "lost": lost,
        "published": ground.asked,
        "rounds": rounds,
    }


def main() -> None:
    """Measure and print."""
    given = options(__doc__, rounds=7)
    with scratch(given.folder) as folder:
        result = asyncio.run(measure(folder, given.rounds))
    report(result, TARGETS, as_json=given.json)


if __name__ == "__main__":
    main()
