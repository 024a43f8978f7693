"""Dead letters: events put aside, with everything that is known about why."""

from __future__ import annotations

import json
from typing import Any

from headrace import errors
from headrace.journal.progress import version
from headrace.journal.queries import load
from headrace.journal.reader import PAGE_ROWS_MAX, Reader
from headrace.ports.look import UNDECIDED, Filter, Letter, moment


def letters(
    reader: Reader, wanted: Filter = UNDECIDED, *, after: int = 0, limit: int = PAGE_ROWS_MAX
) -> list[Letter]:
    """Return dead letters, oldest first, at most a page."""
    count = min(limit, PAGE_ROWS_MAX)
    bindings = (after, wanted.handler, wanted.reason, wanted.type, wanted.decided, count)
    return [_letter(reader, row) for row in reader.rows(load("letters.sql").letters, bindings)]


def letter(reader: Reader, number: int) -> Letter | None:
    """Return the dead letter of a number."""
    found = letters(reader, Filter(decided=True), after=number - 1, limit=1)
    return found[0] if found and found[0].id == number else None


def named(reader: Reader, text: str) -> list[Letter]:
    """Return the dead letters of a number or of an event id (or its beginning).

    Raises `EventNotFound` when there is none.
    """
    if text.isdecimal() and len(text) < len("12345678"):
        numbers = [int(text)]
    else:
        event = reader.find(text)
        numbers = [
            row[0] for row in reader.rows(load("letters.sql").numbers_of_event, (event.envelope.offset,))
        ]
    found = [one for one in (letter(reader, number) for number in numbers) if one is not None]
    if not found:
        raise errors.EventNotFound(
            "There is no such dead letter.", hint="``headrace dlq ls`` lists them", event_id=text
        )
    return found


def left(reader: Reader) -> int:
    """Return how many dead letters nobody has decided on."""
    return int(reader.rows(load("letters.sql").left)[0][0])


def _letter(reader: Reader, row: tuple[Any, ...]) -> Letter:
    (
        number, handler, tp, seq, event_id, kind, reason, code, error, traceback,
        attempts, crashes, told, generation, version_number, head, body, died_us, fate, depth, replay, again,
    ) = row  # fmt: skip
    by = version(reader, version_number)
    return Letter(
        id=number,
        handler=handler,
        type=kind,
        reason=reason,
        code=code,
        error=error,
        traceback=traceback,
        attempts=attempts,
        crashes=crashes,
        errors=tuple(json.loads(told)),
        generation=generation,
        version=by.name if by else "?",
        died=moment(died_us),
        fate=fate,
        again=bool(again),
        replay=replay,
        # The letter holds the envelope and the payload, so it outlives the event.
        event=reader.event((seq, tp, event_id, depth, head, body)),
    )
