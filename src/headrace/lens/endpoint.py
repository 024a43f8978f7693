"""``/metrics``, ``/health`` and ``/ready`` over HTTP, in a thread of their own: a blocked loop must show."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import accumulate
from typing import Any, Self

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from headrace import errors
from headrace.lens.counts import Counts, Histogram
from headrace.lens.health import Health, Verdict

#: A client that says nothing for so long is let go.
REQUEST_S_MAX = 5

Family = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily


class Numbers(Collector):
    """What Prometheus is told; docs/reference/metrics.md lists the same."""

    def __init__(self, counts: Counts, health: Health) -> None:
        self._counts, self._health = counts, health

    def collect(self) -> Iterator[Family]:
        """Yield every metric with its values of this moment."""
        yield from self._counters()
        yield from self._gauges()

    def _counters(self) -> Iterator[Family]:
        counted = self._counts.counted()
        yield _counter(
            "headrace_events_handled",
            "Attempts that were committed: done, retried (failed, and waits for another attempt) or dead.",
            ("handler", "version", "outcome"), counted.handled,
        )  # fmt: skip
        yield _counter(
            "headrace_events_emitted",
            "Events emitted, committed with their causes.",
            ("handler",),
            counted.emitted,
        )
        yield _counter(
            "headrace_dead_letters", "Events put aside, by the reason that `headrace dlq ls` shows.",
            ("handler", "reason"), counted.dead,
        )  # fmt: skip
        yield _histogram(
            "headrace_handler",
            "One call of the handler's function, from call to return, what it waited for included.",
            counted.handler_s,
        )
        yield _histogram(
            "headrace_event_age",
            "Publishing of an event (the time in its envelope) to the commit of what followed from it.",
            counted.age_s,
        )
        yield _histogram(
            "headrace_journal_commit",
            "One transaction: outcomes of a batch or of several, and the claim of the next.",
            counted.commit_s,
        )
        rebalances = {(state.handler,): state.rebalances for state, *_ in self._health.looks}
        told = "Times that the partitions held were others than before."
        yield _counter("headrace_rebalances", told, ("handler",), rebalances)

    def _gauges(self) -> Iterator[Family]:
        looks = self._health.looks
        one = ("handler",)
        states = [look.state for look in looks]
        yield _gauge(
            "headrace_events_in_flight",
            "Events that were taken and have no outcome yet.",
            one,
            {(s.handler,): s.in_flight for s in states},
        )
        yield _gauge(
            "headrace_partitions_held",
            "Partitions of the topic that this worker has.",
            one,
            {(s.handler,): s.held for s in states},
        )
        yield _gauge(
            "headrace_version_served",
            "1 for the version in use; missing while the worker lacks the active version.",
            ("handler", "version"),
            {(s.handler, s.version): 1 for s in states if s.version},
        )  # fmt: skip
        lags = {
            (look.state.handler, look.state.topic, str(partition)): lag
            for look in looks
            for partition, lag in look.survey.lag.items()
        }
        told = (
            "Events that are not taken yet, looked at every 5 s. SQLite: of more than 100,000 the first"
            " 100,000 are counted. Kafka: markers of transactions count too."
        )
        yield _gauge("headrace_partition_lag_events", told, ("handler", "topic", "partition"), lags)
        up = {(look.state.handler,): int(not (look.state.outage or look.problem)) for look in looks}
        yield _gauge("headrace_journal_up", "1 while the journal answers, 0 during an outage.", one, up)
        silence = {(): self._health.silence_s()}
        yield _gauge("headrace_loop_silence_seconds", "Since the event loop has turned last.", (), silence)
        yield _gauge(
            "headrace_ready", "1 when /ready is 200, else 0.", (), {(): int(self._health.ready().good)}
        )


def _counter(
    name: str, told: str, labels: tuple[str, ...], values: Mapping[Any, float]
) -> CounterMetricFamily:
    found = CounterMetricFamily(name, told, labels=labels)
    for at, value in sorted(values.items()):
        found.add_metric(at, value)
    return found


def _gauge(name: str, told: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> GaugeMetricFamily:
    found = GaugeMetricFamily(name, told, labels=labels)
    for at, value in sorted(values.items()):
        found.add_metric(at, value)
    return found


def _histogram(name: str, told: str, values: Mapping[str, Histogram]) -> HistogramMetricFamily:
    found = HistogramMetricFamily(name, told, labels=("handler",), unit="seconds")
    for handler, one in sorted(values.items()):
        bounds = [*map(str, one.bounds_s), "+Inf"]
        found.add_metric([handler], list(zip(bounds, accumulate(one.counts), strict=True)), one.sum_s)
    return found


class Endpoint:
    """Answers on a port until it is left."""

    def __init__(self, host: str, port: int, counts: Counts, health: Health) -> None:
        registry = CollectorRegistry()
        registry.register(Numbers(counts, health))
        ProcessCollector(registry=registry)
        pages: dict[str, Callable[[str], tuple[HTTPStatus, str, bytes]]] = {
            "/metrics": lambda accept: _metrics(registry, accept),
            "/health": lambda _: _verdict("live", health.live()),
            "/ready": lambda _: _verdict("ready", health.ready()),
        }

        class Answer(_Answer):
            known = pages

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            address_family = socket.AF_INET6 if ":" in host else socket.AF_INET

        try:
            self._server = Server((host, port), Answer)
        except (OSError, OverflowError) as fault:
            problem = f"port {port} of {host} cannot be opened: {getattr(fault, 'strerror', None) or fault}"
            hint = "choose another with --metrics-port; 0 takes one that is free"
            raise errors.CommandInvalid(problem=problem, hint=hint) from fault
        shown = f"[{host}]" if ":" in host else host
        #: Where it answers.
        self.url = f"http://{shown}:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="headrace-metrics", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()


class _Answer(BaseHTTPRequestHandler):
    """One request."""

    known: Mapping[str, Callable[[str], tuple[HTTPStatus, str, bytes]]]
    timeout = REQUEST_S_MAX

    def do_GET(self) -> None:
        """Answer."""
        page = self.known.get(self.path.partition("?")[0])
        if page is None:
            status, kind, body = HTTPStatus.NOT_FOUND, "text/plain", _listed(self.known)
        else:
            status, kind, body = page(self.headers.get("Accept", ""))
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815 - the library names it so

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library names it so
        """Say nothing: who looks every second is no news."""


def _listed(pages: Iterable[str]) -> bytes:
    return f"there is {', '.join(pages)}\n".encode()


def _metrics(registry: CollectorRegistry, accept: str) -> tuple[HTTPStatus, str, bytes]:
    encode, kind = choose_encoder(accept)
    return HTTPStatus.OK, kind, encode(registry)


def _verdict(name: str, verdict: Verdict) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.OK if verdict.good else HTTPStatus.SERVICE_UNAVAILABLE
    body = json.dumps({name: verdict.good, "reasons": verdict.reasons})
    return status, "application/json", body.encode() + b"\n"
