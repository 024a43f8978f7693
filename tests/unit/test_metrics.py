"""Metrics and health of a worker: what is counted, what the page lists, what shows when it goes wrong."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.unit.terminal import Running, apart

from headrace import errors
from headrace.cli.output import Exit
from headrace.lens.counts import AGE_S, HANDLER_S, Counts, Histogram
from headrace.lens.endpoint import Endpoint, Numbers
from headrace.lens.health import Health, Look
from headrace.ports import BatchReport, ServerState, Survey
from headrace.testing import ManualClock

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text("utf-8")
PATIENCE_S = 30.0
APP = """
import time
from headrace import App, Event, RetryPolicy

class Job(Event, topic="jobs", key="name"):
    name: str

class Did(Event, topic="did", key="name"):
    name: str

app = App("factory")

@app.handler(retry=RetryPolicy(attempts_max=2, backoff_first_ms=1, backoff_max_ms=2))
async def work(job: Job) -> Did:
    if job.name == "bad":
        raise ValueError("no")
    if job.name == "blocks":
        time.sleep(600)
    return Did(name=job.name)
"""
STATE = ServerState("a.work", "jobs", "1", 0, 16, 1, "")
URL = re.compile(r"metrics on (http://[^/]+)/metrics")


def asked(url: str, path: str) -> tuple[int, str]:
    """Return the status and the text of a page."""
    try:
        with urlopen(url + path, timeout=PATIENCE_S) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as fault:
        return fault.code, fault.read().decode()


def samples(url: str) -> dict[tuple[str, ...], float]:
    """Return the values of /metrics by name and labels, as a reader of Prometheus has them."""
    status, text = asked(url, "/metrics")
    assert status == 200
    return {
        (sample.name, *(f"{name}={value}" for name, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def eventually(look: Callable[[], bool]) -> None:
    """Look again and again until it is so."""
    deadline = time.monotonic() + PATIENCE_S
    while not look():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with an app."""
    (tmp_path / "factory.py").write_text(APP)
    return tmp_path


def publish(folder: Path, *names: str) -> None:
    """Publish jobs."""
    lines = "\n".join(json.dumps({"name": name}) for name in names).encode()
    assert apart("publish", "factory:app", "Job", "-", cwd=folder, stdin=lines).code == Exit.DONE


def url_of(running: Running) -> str:
    """Return where a worker says that it answers."""
    found = URL.search(running.until("metrics on"))
    assert found is not None
    return found[1]


def test_a_worker_tells_what_it_has_done(folder: Path) -> None:
    """Done, retried, dead and emitted events, times, lag and partitions, as Prometheus reads them."""
    publish(folder, *(f"job{n}" for n in range(20)), "bad")
    with Running("run", "factory:app", "--metrics-port", 0, cwd=folder) as running:
        url = url_of(running)
        dead = ("headrace_events_handled_total", "handler=factory.work", "outcome=dead", "version=1")
        eventually(lambda: dead in samples(url))
        eventually(lambda: asked(url, "/ready")[0] == 200)
        found = samples(url)
        handled = {key[2]: value for key, value in found.items() if key[0] == dead[0]}
        assert handled == {"outcome=done": 20, "outcome=retried": 1, "outcome=dead": 1}
        assert found["headrace_events_emitted_total", "handler=factory.work"] == 20
        assert found["headrace_dead_letters_total", "handler=factory.work", "reason=failed"] == 1
        assert found["headrace_handler_seconds_count", "handler=factory.work"] == 22
        assert found["headrace_event_age_seconds_count", "handler=factory.work"] == 20
        assert found["headrace_journal_commit_seconds_count", "handler=factory.work"] >= 2
        assert found["headrace_partitions_held", "handler=factory.work"] == 16
        assert found["headrace_rebalances_total", "handler=factory.work"] == 1
        lag = "headrace_partition_lag_events"
        eventually(lambda: [value for key, value in samples(url).items() if key[0] == lag] == [0] * 16)
        assert asked(url, "/health") == (200, '{"live": true, "reasons": []}\n')
        assert asked(url, "/nothing")[0] == 404


def test_a_blocked_loop_shows(folder: Path) -> None:
    """A handler that blocks the loop: the endpoint goes on to answer, and says so."""
    with Running("run", "factory:app", "--metrics-port", 0, "--lease-ms", 500, cwd=folder) as running:
        url = url_of(running)
        eventually(lambda: asked(url, "/ready")[0] == 200)
        publish(folder, "blocks")
        eventually(lambda: asked(url, "/health")[0] == 503)
        (reason,) = json.loads(asked(url, "/health")[1])["reasons"]
        assert "blocks it" in reason
        assert json.loads(asked(url, "/ready")[1])["ready"] is False
        assert samples(url)["headrace_loop_silence_seconds",] > 0.5
        running.process.kill()


def test_each_of_several_workers_has_a_port(folder: Path) -> None:
    """With two workers there are two pages; together they hold all partitions."""
    with Running("run", "factory:app", "--metrics-port", 0, "--workers", 2, cwd=folder) as running:
        urls = {url_of(running), url_of(running)}
        assert len(urls) == 2
        held = ("headrace_partitions_held", "handler=factory.work")
        eventually(lambda: sum(samples(url).get(held, 0) for url in urls) == 16)


def test_a_port_that_is_taken_is_told(folder: Path) -> None:
    """No worker starts whose metrics nobody could read."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        ran = apart("run", "factory:app", "--metrics-port", port, cwd=folder)
    assert ran.code == Exit.UNUSABLE
    assert f"port {port} of 127.0.0.1 cannot be opened" in ran.err
    ran = apart("run", "factory:app", "--metrics-port", 65_535, "--workers", 2, cwd=folder)
    assert (ran.code, "there is no port 65536" in ran.err) == (Exit.UNUSABLE, True)


def filled() -> tuple[Counts, Health]:
    """Return counts and health that have seen something of everything."""
    clock = ManualClock()
    counts, health = Counts(clock), Health(clock, 1_000)
    counts.committed(BatchReport("a.work", "1", [5_000], 1, 1, 1, 1, ("failed",), 0.01))

    async def call() -> None:
        clock.advance(0.5)

    async def once() -> None:
        await counts.timed("a.work", call)()

    asyncio.run(once())
    health.looks = (Look(STATE, Survey({0: 3}, 0)),)
    return counts, health


def test_the_page_lists_what_is_told() -> None:
    """Names, kinds and labels of docs/reference/metrics.md are those of the code."""
    rows = re.findall(r"^\| `(headrace_\w+)` \| (\w+) \| ([\w, ]*)\|", PAGE, re.MULTILINE)
    told = {(name, kind, tuple(labels.replace(",", " ").split())) for name, kind, labels in rows}
    found = {
        (f"{one.name}_total" if one.type == "counter" else one.name, one.type, one._labelnames)
        for one in Numbers(*filled()).collect()
        if one.samples
    }
    assert told == found
    assert len(rows) == len(told) > 10


def test_what_a_handler_took_is_counted_where_it_belongs() -> None:
    """Half a second is above a quarter, and at most a half."""
    counted = filled()[0].counted()
    at = HANDLER_S.index(0.5)
    assert counted.handler_s["a.work"].counts[at] == sum(counted.handler_s["a.work"].counts) == 1
    assert counted.age_s["a.work"].counts[AGE_S.index(0.005)] == 1


def test_bounds_are_upper_bounds() -> None:
    """A value counts in the first bucket that is not below it; what is beyond all counts in the last."""
    one = Histogram((1.0, 2.0))
    one.add((0.5, 1.0, 1.5, 3.0))
    assert one.counts == [2, 1, 1]
    assert one.sum_s == 6.0


@pytest.mark.parametrize(
    ("look", "reason"),
    [
        (Look(STATE, Survey({}, 0)), ""),
        (Look(STATE._replace(held=0), Survey({}, 0)), ""),  # stands by: others have them
        (Look(STATE._replace(held=0), Survey({}, 4)), "4 partitions have no owner, and none of them"),
        (Look(STATE._replace(held=0, version=""), Survey({}, 4)), "lacks the active version"),
        (Look(STATE._replace(outage="gone"), Survey({}, 0)), "a.work: gone"),
        (Look(STATE, Survey({}, 0), "no broker"), "a.work: no broker"),
    ],
)
def test_ready_says_why_not(look: Look, reason: str) -> None:
    """Without a journal, or without partitions that nobody else has, a worker is not ready."""
    health = Health(ManualClock(), 1_000)
    assert health.ready().reasons == ["the worker has not started yet"]
    health.looks = (look,)
    assert health.ready().good is (reason == "")
    assert reason in "".join(health.ready().reasons)


def test_a_loop_that_does_not_turn_is_not_live() -> None:
    """After the time of a lease without a turn the process does not live; a turn mends it."""
    clock = ManualClock()
    health = Health(clock, 1_000)
    clock.advance(0.9)
    assert health.live().good
    clock.advance(0.2)
    assert not health.live().good
    assert not health.ready().good


def test_a_port_in_use_is_a_coded_error() -> None:
    """Two endpoints on one port: the second says so."""
    with Endpoint("127.0.0.1", 0, *filled()) as first:
        port = int(first.url.rpartition(":")[2])
        with pytest.raises(errors.CommandInvalid, match=f"port {port}"):
            Endpoint("127.0.0.1", port, *filled())
