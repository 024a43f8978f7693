"""An app beside a web application (ASGI: Starlette, FastAPI, ...): its life, and events published over HTTP.

::

    from fastapi import FastAPI
    from headrace.integrations.asgi import Inlet, lifespan

    api = FastAPI(lifespan=lifespan(app))           # the journal is open while the server runs
    api.mount("/events", Inlet(app))                # POST /events/Ticket

    @api.post("/tickets")
    async def create(text: str) -> dict[str, str]:
        receipt = await app.publish(Ticket(customer="ada", text=text))
        return {"event_id": str(receipt.event_id)}
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from headrace import errors
from headrace.app import App
from headrace.codec.foreign import check_foreign
from headrace.event.contract import Contract

_log = logging.getLogger("headrace.asgi")

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

#: The first that fits decides.
_STATUS: tuple[tuple[type[errors.HeadraceError], int], ...] = (
    (errors.PayloadTooLarge, 413),
    (errors.HeadersTooLarge, 431),
    (errors.ContentTypeRefused, 415),
    (errors.TypeUnknown, 404),
    (errors.EventConflict, 409),
    (errors.EventError, 422),
    (errors.MethodRefused, 405),
    (errors.JournalDenied, 403),
    (errors.JournalError, 503),
)


def lifespan(app: App, *, handlers: bool = False) -> Callable[[object], AbstractAsyncContextManager[None]]:
    """Return what a web framework takes as ``lifespan=``: the journal is open while it serves.

    With ``handlers`` the events of the app are handled in the same process, on the same loop, until the
    server stops; what is in hand then ends or is handed back.
    """

    @asynccontextmanager
    async def entered(_: object) -> AsyncGenerator[None]:
        async with app:
            if not handlers:
                yield
                return
            stop = asyncio.Event()
            serving = asyncio.create_task(app.run(stop), name=f"headrace-{app.name}")
            serving.add_done_callback(_told)
            try:
                yield
            finally:
                stop.set()
                await serving

    return entered


def _told(serving: asyncio.Task[int]) -> None:
    fault = None if serving.cancelled() else serving.exception()
    if fault is not None:
        told = f"[{fault.code}] {fault}" if isinstance(fault, errors.HeadraceError) else fault
        _log.critical("no event is handled in this process any more: %s", told, exc_info=fault)


class Inlet:
    """An ASGI application that publishes: ``POST /Ticket`` with the payload as JSON.

    Answers 201 with ``event_id`` and ``duplicate`` once the event is on disk; an error with its code, message
    and hint.  The header ``Idempotency-Key`` is the event's id, so that a repeated request is harmless;
    ``traceparent`` and ``tracestate`` are continued.  ``types`` are the event types that may be published; by
    default all that the app knows.  Who may call it is for the application around it to say.
    """

    def __init__(self, app: App, *, types: Iterable[str] | None = None) -> None:
        self._app = app
        self._types = None if types is None else frozenset(types)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Serve one request, or the life of the server when this is the outermost application."""
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif scope["type"] == "http":
            try:
                status, answer = 201, await self._publish(scope, receive)
            except errors.HeadraceError as fault:
                status, answer = _refusal(fault)
            await _answer(send, status, answer)
        else:
            raise RuntimeError(f"there is no {scope['type']} here")

    async def _live(self, receive: Receive, send: Send) -> None:
        while True:
            wanted = (await receive())["type"]
            try:
                await (self._app.__aenter__() if wanted == "lifespan.startup" else self._app.__aexit__())
            except errors.HeadraceError as fault:
                await send({"type": f"{wanted}.failed", "message": str(fault)})
                return
            await send({"type": f"{wanted}.complete"})
            if wanted == "lifespan.shutdown":
                return

    async def _publish(self, scope: Message, receive: Receive) -> dict[str, Any]:
        contract = self._contract(scope)
        headers = {name.decode("latin-1").lower(): _text(value) for name, value in scope["headers"]}
        kind = headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind != "application/json":
            raise errors.ContentTypeRefused(content_type=kind)
        bytes_max = self._app.settings.payload_bytes_max
        body = await _body(receive, contract.type, bytes_max)
        check_foreign(contract.type, body, bytes_max)
        receipt = await self._app.publish(
            contract.decode(body),
            event_id=headers.get("idempotency-key"),
            traceparent=headers.get("traceparent"),
            tracestate=headers.get("tracestate", ""),
        )
        return {"event_id": str(receipt.event_id), "duplicate": receipt.duplicate}

    def _contract(self, scope: Message) -> Contract:
        path = str(scope["path"])
        root = str(scope.get("root_path", ""))
        name = path.removeprefix(root).strip("/") if root and path.startswith(root) else path.strip("/")
        found = self._app.contracts.get(name)
        if found is None or (self._types is not None and name not in self._types):
            raise errors.TypeUnknown(type=name, topic="any")
        if scope["method"] != "POST":
            raise errors.MethodRefused(method=scope["method"])
        return found


def _text(value: bytes) -> str:
    """Return what a header means as text: UTF-8, as most callers write it, or what it says as Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


async def _body(receive: Receive, name: str, bytes_max: int) -> bytes:
    """Return the whole body, and give up on one that is too large while it comes."""
    found = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise errors.PayloadUndecodable("The caller has gone before its end.", type=name)
        found += message.get("body", b"")
        if len(found) > bytes_max:
            raise errors.PayloadTooLarge(type=name, size_bytes=len(found), limit_bytes=bytes_max)
        if not message.get("more_body", False):
            return bytes(found)


def _refusal(fault: errors.HeadraceError) -> tuple[int, dict[str, Any]]:
    status = next((status for kind, status in _STATUS if isinstance(fault, kind)), 500)
    return status, {"code": fault.code, "message": fault.message, "hint": fault.hint}


async def _answer(send: Send, status: int, answer: dict[str, Any]) -> None:
    body = json.dumps(answer, ensure_ascii=False).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 405:  # noqa: PLR2004 - the standard asks for it
        headers.append((b"allow", b"POST"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
