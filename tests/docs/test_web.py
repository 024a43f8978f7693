"""The web application of the README: FastAPI, served by a real uvicorn, stopped while it is called."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest
from tests.docs import _pages as pages
from tests.unit.terminal import PATIENCE_S, Running, apart, environment

from headrace import demo
from headrace.journal.reader import Reader

FILES = {one.name: one.text for one in pages.read(pages.ROOT / "README.md") if one.kind == "python"}
#: Callers at once, and answers after which the server is told to end.
CALLERS, ANSWERS_MIN = 8, 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the app of the README, its model and its web application."""
    for name in ("app.py", "web.py"):
        (tmp_path / name).write_text(FILES[name], "utf-8")
    shutil.copy(Path(demo.__file__).with_name("intent.onnx"), tmp_path / "intent.onnx")
    return tmp_path


class Served:
    """A web server, and those who call it until it is gone."""

    def __init__(self, folder: Path) -> None:
        self.said = folder / "uvicorn.log"
        with self.said.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "uvicorn", "web:api", "--port", "0"],
                cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        self.answered: list[str] = []
        self._many = threading.Event()
        self._port = 0

    def up(self) -> Self:
        """Wait until it listens."""
        for _ in range(PATIENCE_S * 20):
            found = re.search(r"running on http://127\.0\.0\.1:(\d+)", self.said.read_text("utf-8"))
            if found:
                self._port = int(found[1])
                return self
            assert self.process.poll() is None, self.said.read_text("utf-8")
            time.sleep(0.05)
        raise AssertionError(self.said.read_text("utf-8"))

    def post(self, path: str, payload: object) -> tuple[int, dict[str, str]]:
        """Send one event; the status and the document."""
        line = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE_S)
        try:
            line.request("POST", path, json.dumps(payload), {"content-type": "application/json"})
            answer = line.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            line.close()

    def called(self, caller: int) -> None:
        """Call it through the route and the mount in turns, until it is gone."""
        for n in range(10_000):
            path = "/tickets" if n % 2 else "/events/Ticket"
            try:
                status, told = self.post(path, {"customer": f"c{caller}", "text": f"Hello {n}"})
            except (OSError, http.client.HTTPException):
                return
            assert status in (200, 201), told
            self.answered.append(told["event_id"])
            if len(self.answered) >= ANSWERS_MIN:
                self._many.set()

    def stopped_while_called(self) -> None:
        """Send it SIGTERM between two answers; it ends by itself, and without a word of a fault."""
        with ThreadPoolExecutor(CALLERS) as pool:
            calls = [pool.submit(self.called, caller) for caller in range(CALLERS)]
            assert self._many.wait(PATIENCE_S)
            self.process.send_signal(signal.SIGTERM)
            code = self.process.wait(PATIENCE_S)
        for one in calls:
            one.result()
        said = self.said.read_text("utf-8")
        assert "Application shutdown complete" in said
        assert "Traceback" not in said, said
        assert code in (0, -signal.SIGTERM)  # uvicorn passes the signal on when all is closed


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """The web application as a process of its own, which does not outlive the test."""
    found = Served(folder)
    try:
        yield found.up()
    finally:
        found.process.kill()
        found.process.wait()


def results(folder: Path) -> Counter[str]:
    """Return how many results each event has."""
    reader = Reader(str(folder / "headrace.db"))
    try:
        found = [one for one in reader.events() if one.envelope.type == "Routed"]
        return Counter(str(one.envelope.parent_ids[0]) for one in found)
    finally:
        reader.close()


def handled(folder: Path, worker: Running) -> None:
    """Wait until the worker has nothing left to do, and end it."""
    end = time.monotonic() + PATIENCE_S
    while True:
        (found,) = apart("status", "--json", cwd=folder).document["subscriptions"]
        assert (found["sound"], found["dead"]) == (True, 0)
        if found["published"] == found["done"]:
            break
        assert time.monotonic() < end, found
    assert worker.ended(signal.SIGTERM).code == 0


def test_what_was_answered_is_handled_once(folder: Path) -> None:
    """Published by a route and by the mount, stopped under load: what was told 2xx has one result."""
    with serving(folder) as served, Running("run", "app:app", cwd=folder) as worker:
        worker.until("support.route")
        status, told = served.post("/tickets", {"customer": "ada", "text": "Hi", "more": 1})
        assert (status, "more" in json.dumps(told)) == (422, True)  # the contract is the body's
        served.stopped_while_called()
        handled(folder, worker)
    found = results(folder)
    assert set(served.answered) <= found.keys()
    assert set(found.values()) == {1}


def test_a_web_server_that_is_a_worker_hands_back_what_is_left(folder: Path) -> None:
    """With ``handlers=True``: what it has not finished when it is stopped is handled by the next, once."""
    web = folder / "web.py"
    web.write_text(web.read_text("utf-8").replace("lifespan(app)", "lifespan(app, handlers=True)"), "utf-8")
    with serving(folder) as served:
        served.stopped_while_called()
    assert results(folder)  # it did handle some
    with Running("run", "app:app", cwd=folder) as worker:
        worker.until("support.route")
        handled(folder, worker)
    found = results(folder)
    assert set(served.answered) <= found.keys()
    assert set(found.values()) == {1}
