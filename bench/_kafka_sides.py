"""The sides of `kafka.py`, each in a process of its own: consume, classify with the model, produce.

``python bench/_kafka_sides.py SIDE WHERE`` handles what is in one topic until it is terminated; WHERE is the
JSON of a `Where`.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import psycopg
from _measure import ROOT, calm_collector
from confluent_kafka import Consumer, Message, Producer
from pydantic import BaseModel

from headrace import App, Event, Model
from headrace.settings import Settings

MODEL = ROOT / "src" / "headrace" / "demo" / "intent.onnx"
#: Texts that the model is asked about at a time, and records of one transaction, on all sides.
BATCH_MAX, TRANSACTION_MAX = 64, 500
PATIENCE_S = 0.2


class Where(NamedTuple):
    """What a side works on."""

    bootstrap: str
    source: str
    sink: str
    index: str


class Ticket(BaseModel):
    """What is consumed, for FastStream."""

    customer: str
    text: str


class Routed(BaseModel):
    """What is produced."""

    customer: str
    intent: str


def until_terminated() -> Callable[[], bool]:
    """Return what says whether to go on."""
    told = [True]
    signal.signal(signal.SIGTERM, lambda *_: told.clear())
    return lambda: bool(told)


# --- by hand ------------------------------------------------------------------------------------

Look = Callable[[Sequence[Message]], None]


def bare(where: Where, look: Look | None = None) -> None:
    """Run a transactional loop on the bare client."""
    loop_of(where, look=look, ready=calm_collector, goes_on=until_terminated())


def loop_of(
    where: Where, *, ready: Callable[[], None], goes_on: Callable[[], bool], look: Look | None = None
) -> None:
    """Consume, classify and produce in transactions until there is an end."""
    model = Model.onnx(MODEL).load()
    common = {"bootstrap.servers": where.bootstrap}
    consumer = Consumer(
        {
            **common,
            "group.id": f"bare-{where.source}",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    producer = Producer(
        {
            **common,
            "transactional.id": uuid4().hex,
            "transaction.timeout.ms": 10_000,
            "retry.backoff.ms": 1,
            "linger.ms": 0,
            "compression.type": "lz4",
        }
    )
    producer.init_transactions(10)
    consumer.subscribe([where.source])
    ready()
    while goes_on():
        found = consumer.consume(1, PATIENCE_S)
        if not found:
            continue
        found += consumer.consume(TRANSACTION_MAX - 1, 0)
        if look is not None:
            look(found)
        tickets = [json.loads(one.value()) for one in found]
        labels = [
            label
            for start in range(0, len(tickets), BATCH_MAX)
            for label in model.infer([ticket["text"] for ticket in tickets[start : start + BATCH_MAX]])
        ]
        producer.begin_transaction()
        for message, ticket, label in zip(found, tickets, labels, strict=True):
            told = {**ticket, "intent": label.name}
            del told["text"]
            value = json.dumps(told).encode()
            headers = [("ce_id", uuid4().bytes), ("content-type", b"application/json")]
            producer.produce(where.sink, value, message.key(), headers=headers)
            producer.poll(0)
        offsets = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(offsets, consumer.consumer_group_metadata())
        producer.commit_transaction()
    consumer.close()


_SEEN = """
INSERT INTO seen (partition, id, at) SELECT * FROM unnest(%s::int[], %s::bytea[], %s::bigint[])
ON CONFLICT DO NOTHING RETURNING at
"""


def bare_with_index(where: Where) -> None:
    """The same, and the first position of each event is noted in PostgreSQL before it is handled."""
    with looking(where) as look:
        bare(where, look)


@contextmanager
def looking(where: Where) -> Iterator[Look]:
    """Yield what notes the first positions of events; none of them may be known already."""
    with psycopg.connect(where.index, autocommit=True) as db:
        db.execute(
            "CREATE TABLE IF NOT EXISTS seen"
            " (partition int, id bytea, at bigint, PRIMARY KEY (partition, id))"
        )

        def look(found: Sequence[Message]) -> None:
            ids = [dict(one.headers() or ())["ce_id"] for one in found]
            partitions, offsets = [one.partition() for one in found], [one.offset() for one in found]
            assert len(db.execute(_SEEN, (partitions, ids, offsets)).fetchall()) == len(found)

        yield look


# --- Headrace -----------------------------------------------------------------------------------


def headrace(where: Where) -> None:
    """Run a worker of an app."""

    class Asked(Event, topic=where.source, key="customer", type="Asked"):
        customer: str
        text: str

    class Told(Event, topic=where.sink, key="customer", type="Told"):
        customer: str
        intent: str

    app = app_of(where, Told)

    @app.handler(model=Model.onnx(MODEL, batch_max=BATCH_MAX))
    async def route(asked: Asked, model) -> Told:
        label = await model(asked.text)
        return Told(customer=asked.customer, intent=label.name)

    async def main() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
        calm_collector()
        await app.run(stop)

    # Annotations of a function inside of a function are names; these are the classes.
    asyncio.run(main())


def app_of(where: Where, *events: type[Event]) -> App:
    """Return an app on the cluster of this run."""
    settings = Settings(journal=f"kafka://{where.bootstrap}", index=where.index)
    return App(where.source, settings=settings, events=list(events))


# --- FastStream ---------------------------------------------------------------------------------


def faststream(where: Where) -> None:
    """Run an ordinary handler at least once: one record at a time."""
    serve(where, batched=False)


def faststream_batched(where: Where) -> None:
    """Run a handler that is given records by the batch and publishes their results together."""
    serve(where, batched=True)


def serve(where: Where, *, batched: bool) -> None:
    """Run an app of FastStream until it is terminated."""
    from faststream import AckPolicy, FastStream
    from faststream.confluent import KafkaBroker

    model = Model.onnx(MODEL).load()
    broker = KafkaBroker(where.bootstrap, logger=None)
    options = {
        "group_id": f"faststream-{where.source}",
        "auto_offset_reset": "earliest",
        "ack_policy": AckPolicy.NACK_ON_ERROR,
    }

    async def one(ticket: Ticket) -> Routed:
        (label,) = model.infer([ticket.text])
        return Routed(customer=ticket.customer, intent=label.name)

    async def many(tickets: list[Ticket]) -> None:
        labels = model.infer([ticket.text for ticket in tickets])
        routed = [
            Routed(customer=ticket.customer, intent=label.name)
            for ticket, label in zip(tickets, labels, strict=True)
        ]
        await broker.publish_batch(*routed, topic=where.sink)

    if batched:
        broker.subscriber(where.source, batch=True, max_records=BATCH_MAX, **options)(many)
    else:
        broker.publisher(where.sink)(broker.subscriber(where.source, **options)(one))
    calm_collector()
    asyncio.run(FastStream(broker, logger=None).run())


SIDES = {one.__name__: one for one in (bare, bare_with_index, headrace, faststream, faststream_batched)}

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    SIDES[sys.argv[1]](Where(*json.loads(sys.argv[2])))
