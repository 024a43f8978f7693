"""The public API as users write it, for `mypy --strict` and pyright; it is checked, never run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime, timedelta
from typing import assert_type
from uuid import UUID

from pydantic import Field

from headrace import (
    App,
    Context,
    Envelope,
    Event,
    Label,
    Model,
    Options,
    Published,
    Retention,
    RetryPolicy,
    errors,
)
from headrace.integrations.asgi import Inlet, lifespan
from headrace.testing import EchoModel, FailAt, ManualClock, Result, run_until_idle, until_idle

# ----------------------------------------------------------------------------- the app of the README


class Ticket(Event, topic="tickets", key="customer"):
    customer: str
    text: str


class Routed(Event, topic="routed", key="customer"):
    customer: str
    intent: str


app = App("support")


@app.handler(model=Model.onnx("intent.onnx"))
async def route(ticket: Ticket, model) -> Routed:  # type: ignore[no-untyped-def]
    label = await model(ticket.text)
    return Routed(customer=ticket.customer, intent=label.name)


# ------------------------------------------------------------------------------------------- declaring


class Common(Event):
    tenant: str
    at: datetime | None = None


class Rich(Common, topic="rich", key="tenant", type="shop.rich", version=2):
    parts: list[str] = Field(default_factory=list)
    number: int = 0


settled = App("settled", journal="headrace.db", events=[Ticket, Rich], principal="user:ada")
kept = App("kept", retention={Ticket: Retention(age=timedelta(days=30), bytes_max=1 << 30)})


@app.handler
async def bare(event: Ticket) -> None:
    pass


@app.handler()
async def called(event: Ticket) -> Routed | None:
    return None


@app.handler(offload="process", concurrency=2)
def plain(event: Ticket) -> list[Routed]:
    return [Routed(customer=event.customer, intent="")]


@app.handler(
    name="whole",
    version="2",
    retry=RetryPolicy(attempts_max=3, backoff_first_ms=10, backoff_max_ms=1_000, crash_attempts_max=2),
    deadline_ms=1_000,
    start="latest",
    was="half",
)
async def whole(event: Ticket, ctx: Context) -> Routed | Rich | None:
    assert_type(ctx.envelope, Envelope)
    assert_type(ctx.attempt, int)
    assert_type(ctx.idempotency_key, UUID)
    ctx.emit(Rich(tenant="t"), name="other")
    ctx.log.info("handled")
    return Rich(tenant="t", parts=["a"])


async def a_handler_stays_a_function() -> None:
    """The decorator gives the function back with its types, however it is written."""
    ticket = Ticket(customer="ada", text="hi")
    assert_type(await called(ticket), Routed | None)
    assert_type(plain(ticket), list[Routed])
    await bare(ticket)
    await bare(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


# ----------------------------------------------------------------------------------------------- events


def an_event_is_typed(ticket: Ticket) -> None:
    """Fields have their types, are given by name, and do not change."""
    assert_type(ticket.customer, str)
    assert_type(Rich(tenant="t").at, datetime | None)
    assert_type(Ticket.of(customer="ada", text="hi"), Ticket)
    assert_type(ticket.model_copy(update={"text": "bye"}), Ticket)
    Ticket(customer="ada")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Ticket(customer=5, text="")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ticket.text = "no"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]


def an_envelope_is_typed(envelope: Envelope) -> None:
    """Its attributes are what the documentation says."""
    assert_type(envelope.event_id, UUID)
    assert_type(envelope.parent_ids, tuple[UUID, ...])
    assert_type(envelope.time, datetime)
    assert_type(envelope.confidence, float | None)
    assert_type(envelope.headers, dict[str, bytes])


# ------------------------------------------------------------------------------------------- publishing


async def publishing(envelope: Envelope) -> None:
    """One event gives one receipt, several give a list."""
    ticket = Ticket(customer="ada", text="hi")
    async with App("support") as opened:
        receipt = await opened.publish(ticket)
        assert_type(receipt, Published)
        assert_type(receipt.event_id, UUID)
        assert_type(receipt.duplicate, bool)
        await opened.publish(
            ticket,
            event_id="order-7",
            parents=[envelope, receipt.event_id, "name"],
            traceparent="00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            tracestate="a=b",
            headers={"route": b"x"},
        )
        unit: Sequence[Event | tuple[Event, Options]] = [
            ticket,
            (Routed(customer="ada", intent=""), Options(event_id=UUID(int=1), parents=[envelope])),
        ]
        assert_type(await opened.publish(unit), list[Published])
        await opened.publish([ticket, Routed(customer="ada", intent="")], parents=[envelope])
        await opened.publish(5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
        try:
            assert_type(await opened.run(asyncio.Event()), int)
        except errors.JournalError as fault:
            assert_type(fault.code, str)
            assert_type(fault.hint, str)


def publishing_without_a_loop(opened: App) -> None:
    """The same shapes, without `await`."""
    ticket = Ticket(customer="ada", text="hi")
    assert_type(opened.publish_sync(ticket, event_id="order-7"), Published)
    assert_type(opened.publish_sync([ticket, (ticket, Options())], parents=["order-7"]), list[Published])
    opened.publish_sync(5)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    opened.close_sync()


# ------------------------------------------------------------------------------------ what handlers share


class Pool:
    size: int = 1


@asynccontextmanager
async def whole_life(app: App) -> AsyncIterator[None]:
    yield


sharing = App("sharing", lifespan=whole_life)


@sharing.provide
async def pool() -> AsyncIterator[Pool]:
    yield Pool()


@sharing.provide
def number(pool: Pool) -> int:
    return pool.size


@sharing.handler(rate_per_s=2.5)
async def shares(event: Ticket, pool: Pool, number: int) -> None:
    pass


async def what_is_provided_stays_a_function() -> None:
    """The decorator gives the function back with its types."""
    assert_type(pool(), AsyncIterator[Pool])
    assert_type(number(Pool()), int)
    await shares(Ticket(customer="ada", text=""), Pool(), 1)
    run_until_idle(sharing, provide={Pool: Pool()})
    assert_type(lifespan(sharing, handlers=True)(None), AbstractAsyncContextManager[None])
    Inlet(sharing, types=["Ticket"])


# ---------------------------------------------------------------------------------------------- testing


def in_a_test() -> None:
    """Results are typed by the class that is asked for."""
    ticket = Ticket(customer="ada", text="hi")
    result = run_until_idle(app, ticket, models={"route": EchoModel("greeting")}, clock=ManualClock())
    assert_type(result, Result)
    assert_type(result.emitted(Routed), list[Routed])
    assert_type(result.events[0].envelope, Envelope)
    EchoModel(lambda text: Label(f"{text}", 1.0), confidence=0.5)


async def in_an_asynchronous_test() -> None:
    """The same on a loop, with a fault."""
    faults = FailAt("settle.begin", OSError("disk"), times=2)
    assert_type(await until_idle(app, [Ticket(customer="ada", text="")], faults=faults), Result)
