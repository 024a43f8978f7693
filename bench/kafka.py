"""Events a second through a real Kafka: consume, classify with an ONNX model, produce.

* ``bare``: a transactional loop on confluent-kafka, up to 500 records a transaction, ``retry.backoff.ms=1``.
* ``bare_with_index``: the same, with the first position of each event noted in PostgreSQL before.
* ``headrace``: exactly once per model version, index in PostgreSQL.
* ``faststream``: an ordinary handler of FastStream, at least once.
* ``faststream_batched``: one that is given up to 64 records at a time and publishes their results together.

Every side works in one process on a topic of its own with the same records, beside one broker; the sides take
turns.  The figure is that of the records in the sink, by the broker's own times, without the first tenth.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from _kafka_sides import SIDES, Where, app_of
from _measure import ROOT, median, options, ratio, report, say

sys.path.insert(0, str(ROOT))

import asyncio

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.services.kafka import Broker
from tests.services.postgres import Postgres
from tests.services.server_properties import LONG_RUNNING

from headrace import Event
from headrace.demo.messages import COUNT_MAX, messages

TARGETS = {"vs_bare": ">= 0.75", "vs_faststream": ">= 8", "vs_batched": ">= 1.3"}
PARTITIONS = 16
#: The ordinary handler of FastStream is so slow that a part of the events tells its rate.
PARTS = {"faststream": 8}
UNIT, WARM = 1_000, 0.1
PATIENCE_S = 120.0


def make_topic(where: Where, name: str) -> None:
    """Create a topic whose records have the broker's time."""
    config = {"message.timestamp.type": "LogAppendTime"}
    new = NewTopic(name, PARTITIONS, 1, config=config)
    admin = AdminClient({"bootstrap.servers": where.bootstrap})
    admin.create_topics([new])[name].result(30)


async def fill(where: Where, count: int) -> None:
    """Publish the events of a side."""

    class Asked(Event, topic=where.source, key="customer", type="Asked"):
        customer: str
        text: str

    told = list(messages(min(count, COUNT_MAX)))
    async with app_of(where, Asked) as app:
        for start in range(0, count, UNIT):
            some = [told[number % len(told)] for number in range(start, min(start + UNIT, count))]
            await app.publish([Asked(customer=customer, text=text) for customer, text in some])


@contextmanager
def running(side: str, where: Where) -> Iterator[subprocess.Popen[bytes]]:
    """Run a side while the block lasts."""
    command = [sys.executable, str(Path(__file__).with_name("_kafka_sides.py")), side, json.dumps(where)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def times_of(where: Where, count: int, process: subprocess.Popen[bytes]) -> list[int]:
    """Return the broker's times (ms) of the committed records of a sink, once all are there."""
    reader = Consumer(
        {
            "bootstrap.servers": where.bootstrap,
            "group.id": where.sink,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    try:
        reader.assign([TopicPartition(where.sink, partition, 0) for partition in range(PARTITIONS)])
        found: list[int] = []
        deadline = time.monotonic() + PATIENCE_S
        while len(found) < count:
            if time.monotonic() > deadline or process.poll() is not None:
                raise TimeoutError(f"{where.source}: {len(found)} of {count} after {PATIENCE_S:g} s")
            found += [one.timestamp()[1] for one in reader.consume(5_000, 0.2) if one.error() is None]
        return sorted(found)
    finally:
        reader.close()


def rate_of(side: str, where: Where, count: int) -> float:
    """Return the events a second of one turn."""
    for name in (where.source, where.sink):
        make_topic(where, name)
    asyncio.run(fill(where, count))
    with running(side, where) as process:
        times = times_of(where, count, process)
    assert len(times) == count, "every event once"
    first = int(count * WARM)
    return (count - first) / max(1, times[-1] - times[first]) * 1000


def measure(rounds: int, events: int, only: str) -> dict[str, object]:
    """Return the result."""
    sides = [side for side in SIDES if not only or side in only.split(",")]
    found: dict[str, list[float]] = {side: [] for side in sides}
    with ExitStack() as stack:
        broker, postgres = stack.enter_context(Broker(LONG_RUNNING)), stack.enter_context(Postgres())
        for turn in range(rounds + 1):
            for side in sides if turn % 2 == 0 else reversed(sides):
                name = f"{side.replace('_', '-')}-{turn}"
                where = Where(broker.bootstrap, f"in-{name}", f"out-{name}", postgres.url)
                found[side].append(rate_of(side, where, events // PARTS.get(side, 1)))
            told = ", ".join(f"{side} {found[side][-1]:,.0f}" for side in sides)
            say((f"round {turn} of {rounds}" if turn else "to warm up") + f": {told}")
    found = {side: rates[1:] for side, rates in found.items()}
    result: dict[str, object] = {side: median(rates) for side, rates in found.items()}
    for key, side in (
        ("vs_bare", "bare"),
        ("vs_faststream", "faststream"),
        ("vs_batched", "faststream_batched"),
    ):
        if side in found and "headrace" in found:
            result[key] = ratio(found["headrace"], found[side])
    if "bare" in found and "bare_with_index" in found:
        result["index_vs_bare"] = ratio(found["bare_with_index"], found["bare"])
    return result | {"events": events, "rounds": rounds, "partitions": PARTITIONS}


def main() -> None:
    """Measure and print."""
    given = options(__doc__, rounds=5, events=20_000, only="")
    report(measure(given.rounds, given.events, given.only), TARGETS, as_json=given.json)


if __name__ == "__main__":
    main()
