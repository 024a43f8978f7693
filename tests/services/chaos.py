"""Kills and stops workers of an app on a real Kafka at random; judged by a plain committed reader.

``python -m tests.services.chaos --events 3000 --kills 6 --json``: two workers handle events in two steps,
every fifth event is published twice, workers are killed (SIGKILL) or stopped beyond their session (SIGSTOP).
Nothing may be lost, doubled or out of the order of its key.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

from tests.services.kafka import Broker
from tests.services.reading import Found, committed

from headrace import App, Event, RetryPolicy
from headrace.settings import Settings

PATIENCE_S = 180.0
LEASE_MS = 6_000
STOP_S = 9.0
KEYS = 40


class Step1(Event, topic="step1", key="who"):
    """What is published."""

    who: str
    number: int
    place: int


class Step2(Event, topic="step2", key="who"):
    """What follows."""

    who: str
    number: int
    place: int


class Step3(Event, topic="step3", key="who"):
    """What follows from that."""

    who: str
    number: int
    place: int


def app_of(journal: str, index: str) -> App:
    """Return the app of all processes."""
    settings = Settings(journal=journal, index=index, lease_ms=LEASE_MS)
    app = App("chaos", settings=settings, events=[Step1, Step2, Step3])

    @app.handler(
        retry=RetryPolicy(attempts_max=9, backoff_first_ms=5, backoff_max_ms=50, crash_attempts_max=99)
    )
    async def first(event: Step1) -> Step2:
        await asyncio.sleep(random.uniform(0, 0.01))
        if random.random() < 0.02:
            raise ValueError("now and then")
        return Step2(who=event.who, number=event.number, place=event.place)

    @app.handler
    async def second(event: Step2) -> Step3:
        return Step3(who=event.who, number=event.number, place=event.place)

    return app


async def work(journal: str, index: str) -> None:
    """Run a worker until it is terminated."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await app_of(journal, index).run(stop)


def faults(found: list[Found], events: int) -> dict[str, int]:
    """Return what a topic shows of lost, doubled and disordered events; records of a key are in order."""
    bodies = [one.body() for one in found]
    numbers = Counter(body["number"] for body in bodies)
    places: dict[str, list[int]] = defaultdict(list)
    for body in bodies:
        places[body["who"]].append(body["place"])
    return {
        "lost": events - len(numbers),
        "doubled": sum(count - 1 for count in numbers.values()),
        "reordered": sum(line != sorted(line) for line in places.values()),
    }


class Chaos:
    """One run."""

    def __init__(self, url: str, folder: Path, events: int, kills: int, seed: int) -> None:
        self._bootstrap, self._events, self._left = urlsplit(url).netloc, events, kills
        self._where = (url, str(folder / "index.db"))
        self._random = random.Random(seed)
        self._workers: list[subprocess.Popen[bytes]] = []
        self._log = (folder / "workers.log").open("wb")
        self.kills = self.stops = 0

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.services.chaos", "--worker", *self._where]
        return subprocess.Popen(command, stdout=self._log, stderr=self._log)

    async def _publish(self) -> None:
        places: Counter[str] = Counter()
        async with app_of(*self._where) as app:
            for number in range(self._events):
                who = f"c{self._random.randrange(KEYS)}"
                event, event_id = Step1(who=who, number=number, place=places[who]), uuid4()
                places[who] += 1
                for _ in range(2 if number % 5 == 0 else 1):
                    await app.publish(event, event_id=event_id)
                if number % 20 == 0:
                    await asyncio.sleep(0.05)

    async def _disturb(self) -> None:
        while self._left:
            self._left -= 1
            await asyncio.sleep(self._random.uniform(1, 3))
            at = self._random.randrange(len(self._workers))
            worker = self._workers[at]
            if self._random.random() < 0.8:
                worker.kill()
                worker.wait()
                self._workers[at] = self._start()
                self.kills += 1
            else:
                worker.send_signal(signal.SIGSTOP)
                await asyncio.sleep(STOP_S)
                worker.send_signal(signal.SIGCONT)
                self.stops += 1

    async def run(self) -> dict[str, int]:
        """Publish and disturb, wait for the end, and return what is wrong."""
        self._workers = [self._start(), self._start()]
        try:
            await asyncio.gather(self._publish(), self._disturb())
            found: list[Found] = []
            for _ in range(int(PATIENCE_S)):
                await asyncio.sleep(1)
                found = await asyncio.to_thread(committed, self._bootstrap, "step3")
                if len(found) >= self._events:
                    break
            middle = await asyncio.to_thread(committed, self._bootstrap, "step2")
            return dict(Counter(faults(found, self._events)) + Counter(faults(middle, self._events)))
        finally:
            for worker in self._workers:
                worker.kill()
                worker.wait()
            self._log.close()


def main() -> None:
    """Run, and print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worker", nargs=2, metavar=("JOURNAL", "INDEX"), help=argparse.SUPPRESS)
    parser.add_argument("--events", type=int, default=3_000)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--protocol", choices=("classic", "consumer"), default="classic")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="as all of these scripts; it prints nothing else")
    given = parser.parse_args()
    if given.worker:
        asyncio.run(work(*given.worker))
        return
    begin = time.monotonic()
    with Broker() as node, tempfile.TemporaryDirectory() as folder:
        url = f"kafka://{node.bootstrap}?group.protocol={given.protocol}"
        chaos = Chaos(url, Path(folder), given.events, given.kills, given.seed)
        found = asyncio.run(chaos.run())
    result = {name: found.get(name, 0) for name in ("lost", "doubled", "reordered")}
    told = {
        "kills": chaos.kills,
        "stops": chaos.stops,
        **result,
        "seconds": round(time.monotonic() - begin, 1),
    }
    sys.stdout.write(json.dumps(told) + "\n")
    sys.exit(any(result.values()))


if __name__ == "__main__":
    main()
