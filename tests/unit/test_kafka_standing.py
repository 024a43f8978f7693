"""Which of the dead letters of an event counts."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.journal.kafka import letters, standing


def letter(generation: int, fate: str | None) -> Any:
    """Return a letter, as far as it is asked."""
    event = SimpleNamespace(envelope=SimpleNamespace(event_id=1, offset=7))
    return SimpleNamespace(event=event, generation=generation, fate=fate)


def test_the_last_counts_whatever_the_clocks_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """They come by when they died: after a redrive on a host whose clock is behind the last is the first."""

    async def named(*_: object) -> list[tuple[str, Any]]:
        return [("app.handler", letter(1, None)), ("app.handler", letter(0, "redriven"))]

    monkeypatch.setattr(letters, "named", named)
    survey: Any = SimpleNamespace(log=None)
    event = letter(0, None).event
    found: Any = asyncio.run(standing.letter_of(survey, "app.handler", event))
    assert found is not None
    assert found.generation == 1
    assert asyncio.run(standing.letter_of(survey, "app.other", event)) is None
