"""The two hops of `latency.py` on Kafka: by hand and ours; both are seen by a plain reader."""

from __future__ import annotations

import asyncio
import json
from multiprocessing.connection import Connection
from pathlib import Path
from uuid import uuid4

from _hops import MODEL, Window, now_ns, ready, schedule, serve, texts, turns
from _kafka_sides import BATCH_MAX, Where, app_of, looking, loop_of
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace import Event, Model

PARTITIONS = 16
POLL_S = 0.2


def where_of(path: Path) -> Where:
    """Return what a side works on; it stands in its folder."""
    return Where(*json.loads((path.parent / f"{path.name}.json").read_text(encoding="utf-8")))


def tell(folder: Path, side: str, bootstrap: str, index: str) -> None:
    """Say on which topics a side is to work, and create them."""
    where = Where(bootstrap, f"tickets-{side}", f"routed-{side}", index)
    (folder / f"{side}.json").write_text(json.dumps(where), encoding="utf-8")


def prepare(path: Path) -> None:
    """Create the topics of a side."""
    where = where_of(path)
    admin = AdminClient({"bootstrap.servers": where.bootstrap})
    made = admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in (where.source, where.sink)])
    for answer in made.values():
        answer.result(30)


# --- by hand ------------------------------------------------------------------------------------


def publish_by_hand(path: Path, window: Window, pipe: Connection) -> None:
    """First process."""
    where, told = where_of(path), texts(window.events)
    producer = Producer(
        {"bootstrap.servers": where.bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0}
    )
    for _ in turns(pipe):
        late = []
        for (customer, text), late_ns in zip(told, schedule(window), strict=True):
            late.append(late_ns)
            value = json.dumps({"customer": customer, "text": text, "sent_ns": now_ns()}).encode()
            producer.produce(where.source, value, customer.encode(), headers=[("ce_id", uuid4().bytes)])
            producer.poll(0)
        producer.flush()
        pipe.send(late)


def handle_by_hand(path: Path, window: Window, pipe: Connection) -> None:
    """Second process."""
    del window
    loop_of(where_of(path), ready=lambda: ready(pipe), goes_on=lambda: not ended(pipe))


def handle_by_hand_with_index(path: Path, window: Window, pipe: Connection) -> None:
    """Second process, that notes the first position of each event in PostgreSQL before it is handled."""
    del window
    with looking(where_of(path)) as look:
        loop_of(where_of(path), ready=lambda: ready(pipe), goes_on=lambda: not ended(pipe), look=look)


def ended(pipe: Connection) -> bool:
    """Return whether the run is over; whose turn it is does not matter to a process that serves."""
    try:
        while pipe.poll():
            pipe.recv()
    except (EOFError, ConnectionResetError):
        return True
    return False


def read(path: Path, window: Window, pipe: Connection) -> None:
    """Third process, of both sides: a plain reader of what is committed."""
    where = where_of(path)
    consumer = Consumer(
        {
            "bootstrap.servers": where.bootstrap,
            "group.id": f"reads-{where.sink}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 10,
        }
    )
    consumer.assign([TopicPartition(where.sink, partition, 0) for partition in range(PARTITIONS)])
    for _ in turns(pipe):
        took: list[int] = []
        while len(took) < window.events:
            found = consumer.consume(1, POLL_S)
            found += consumer.consume(BATCH_MAX, 0) if found else []
            now = now_ns()
            took += [now - json.loads(one.value())["sent_ns"] for one in found if one.error() is None]
        pipe.send(took)
    consumer.close()


# --- ours ---------------------------------------------------------------------------------------


def publish_ours(path: Path, window: Window, pipe: Connection) -> None:
    """First process."""
    where, told = where_of(path), texts(window.events)

    class Ticket(Event, topic=where.source, key="customer", type="Ticket"):
        customer: str
        text: str
        sent_ns: int

    async def main() -> None:
        async with app_of(where, Ticket) as app:
            for _ in turns(pipe):
                late, sent = [], set[asyncio.Task[object]]()
                for (customer, text), late_ns in zip(told, schedule(window), strict=True):
                    late.append(late_ns)
                    event = Ticket(customer=customer, text=text, sent_ns=now_ns())
                    task = asyncio.ensure_future(app.publish(event))
                    sent.add(task)
                    task.add_done_callback(sent.discard)
                    await asyncio.sleep(0)
                await asyncio.gather(*sent)
                pipe.send(late)

    asyncio.run(main())


def handle_ours(path: Path, window: Window, pipe: Connection) -> None:
    """Second process."""
    del window
    where = where_of(path)

    class Ticket(Event, topic=where.source, key="customer", type="Ticket"):
        customer: str
        text: str
        sent_ns: int

    class Routed(Event, topic=where.sink, key="customer", type="Routed"):
        customer: str
        intent: str
        sent_ns: int

    app = app_of(where, Routed)

    @app.handler(model=Model.onnx(MODEL, batch_max=BATCH_MAX))
    async def route(ticket: Ticket, model) -> Routed:
        label = await model(ticket.text)
        return Routed(customer=ticket.customer, intent=label.name, sent_ns=ticket.sent_ns)

    asyncio.run(serve(app, pipe))
