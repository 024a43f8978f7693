"""The how-to on Kafka is followed line by line, against a real broker and a real PostgreSQL."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tests.services.kafka import Broker
from tests.services.ports import free_ports
from tests.services.postgres import Postgres
from tests.services.reading import committed

from headrace.errors import catalogue

PAGE = (Path(__file__).parents[2] / "docs" / "how-to" / "kafka.md").read_text("utf-8")
BLOCK = re.compile(r"^```(\w+)(?: (\S+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PATIENCE_S = 60.0


class Reader:
    """Somebody who types what the page says, in one folder, with servers in other places."""

    def __init__(self, folder: Path, places: dict[str, str]) -> None:
        self._folder, self._places = folder, places
        own = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        bin_ = str(Path(sys.executable).parent)
        self._environment = own | {"PATH": f"{bin_}{os.pathsep}{own.get('PATH', '')}", "NO_COLOR": "1"}
        self._worker: subprocess.Popen[bytes] | None = None
        self.printed = ""

    def type(self, line: str) -> None:
        """Do what a line says."""
        for there, here in self._places.items():
            line = line.replace(there, here)
        if line.startswith("export "):
            name, _, value = line.removeprefix("export ").partition("=")
            self._environment[name] = value
        elif line.endswith("&"):
            self._worker = subprocess.Popen(
                line.removesuffix("&").split(), cwd=self._folder, env=self._environment
            )
        elif line.startswith("kill "):
            self.stop()
        else:
            ran = subprocess.run(
                ["bash", "-c", line], cwd=self._folder, env=self._environment, capture_output=True,
                check=False, timeout=PATIENCE_S,
            )  # fmt: skip
            assert ran.returncode == 0, f"{line}\n{ran.stderr.decode()}"
            self.printed = ran.stdout.decode() + ran.stderr.decode()

    def stop(self) -> None:
        """End the worker."""
        if self._worker is not None:
            self._worker.send_signal(signal.SIGTERM)
            assert self._worker.wait(PATIENCE_S) == 0
            self._worker = None

    def until(self, line: str, fits: Callable[[str], bool]) -> None:
        """Type a line again and again, until it prints what it should."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.type(line)
            if fits(self.printed):
                return
            assert time.monotonic() < deadline, self.printed

    def give_up(self) -> None:
        """Leave nothing behind."""
        if self._worker is not None:
            self._worker.kill()
            self._worker.wait()


def routed(bootstrap: str) -> Counter[str]:
    """Return the customers of what was routed, as any committed reader sees it."""
    return Counter(one.body()["customer"] for one in committed(bootstrap, "routed"))


def test_the_page_is_followed(tmp_path: Path) -> None:
    """Three tickets on SQLite, the copy, two more on Kafka: each is routed once, the dead one is listed."""
    blocks = [(found[1], found[2], found[3]) for found in BLOCK.finditer(PAGE)]
    for _, name, text in blocks:
        if name:
            (tmp_path / name).write_text(text, "utf-8")
    before, move, copy, after = [text.splitlines() for kind, _, text in blocks if kind == "sh"]
    with Broker() as broker, Postgres() as postgres:
        ours = "postgresql://postgres:headrace@127.0.0.1:5432/postgres"
        port = str(free_ports(1)[0])
        reader = Reader(tmp_path, {"127.0.0.1:9092": broker.bootstrap, ours: postgres.url, "9464": port})
        try:
            for line in before:
                reader.type(line)
            reader.until("headrace status --json", lambda text: '"done": 2' in text and '"dead": 1' in text)
            for line in move:
                reader.type(line)
            for line in copy:
                reader.type(line)
                assert "6 events in 2 topics" in reader.printed or "the same" in reader.printed
            assert routed(broker.bootstrap) == Counter({"ada": 1, "bob": 1})
            for line in after:
                reader.type(line)
            wanted = Counter({"ada": 1, "bob": 1, "cyd": 1, "dan": 1})
            deadline = time.monotonic() + PATIENCE_S
            while routed(broker.bootstrap) != wanted:
                assert time.monotonic() < deadline
            (letter,) = committed(broker.bootstrap, "tickets.dlq")
            assert letter.body()["customer"] == "eve"
            reader.stop()
        finally:
            reader.give_up()


def test_the_errors_of_the_page_are_there() -> None:
    """Each code that the page names is one of the catalogue."""
    named = set(re.findall(r"HR-E\d+", PAGE))
    assert len(named) > 3
    assert named <= set(catalogue())
