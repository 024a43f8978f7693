"""What a handler may ask for beside its event: the envelope, `emit`, the idempotency key, a logger."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, MutableMapping
from typing import Any
from uuid import UUID

from headrace import errors
from headrace.event.contract import Event
from headrace.event.envelope import Envelope

_log = logging.getLogger("headrace.handler")


class EventLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose records carry ``event_id``, ``trace_id`` and ``handler`` beside what a call gives."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


class Context:
    """One attempt at one event, as its handler sees it; valid until the handler has returned."""

    __slots__ = ("_emitted", "_envelope", "_handler", "_made", "_open", "_task", "attempt", "idempotency_key")

    def __init__(
        self, handler: str, idempotency_key: UUID, attempt: int, made: Callable[[], Envelope]
    ) -> None:
        self._handler = handler
        self._made = made
        self._envelope: Envelope | None = None
        self._emitted: list[tuple[Event, str | None]] = []
        self._task = _where()
        self._open = True
        #: The number of this attempt, from 1.
        self.attempt = attempt
        #: Stable over retries, restarts and model versions: pass it to what has effects outside.
        self.idempotency_key = idempotency_key

    @property
    def envelope(self) -> Envelope:
        """Who published the event, when, caused by what, under which trace."""
        if self._envelope is None:
            self._envelope = self._made()
        return self._envelope

    def emit(self, event: Event, *, name: str | None = None) -> None:
        """Emit an event; it is written together with the outcome, or not at all.

        The id is derived from the order of the calls.  From concurrent tasks of one handler give each a
        ``name`` that is the same in every attempt; raises `EmitUnnamed` without.
        """
        if not self._open:
            raise errors.EmitLate(handler=self._handler)
        if name is None and _where() != self._task:
            raise errors.EmitUnnamed(handler=self._handler)
        self._emitted.append((event, name))

    @property
    def log(self) -> EventLog:
        """A logger that says which event it speaks of."""
        envelope = self.envelope
        said: dict[str, Any] = {
            "event_id": str(envelope.event_id),
            "trace_id": envelope.traceparent[3:35],
            "handler": self._handler,
        }
        return EventLog(_log, said)

    def taken(self) -> list[tuple[Event, str | None]]:
        """Return what was emitted, and accept no more: the handler has returned (for the runtime)."""
        self._open = False
        return self._emitted


def _where() -> object:
    """Return the task that runs, or in a thread without an event loop (a plain handler) the thread."""
    import asyncio

    try:
        return asyncio.current_task()
    except RuntimeError:
        return threading.get_ident()
