"""Is this event for this handler?  Decided by its stamp, once per stamp."""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum

from headrace import errors
from headrace.event.envelope import Stamp


class Admit(Enum):
    """What a handler does with events of one stamp."""

    RUN = "run"
    SKIP = "skip"  # another type of the topic, known to the app: not for this handler


ACCEPTED = frozenset({"application/json"})
#: What JSON may say of its characters: RFC 8259 has UTF-8 only, of which ASCII is a part.
_CHARSETS = frozenset({"utf-8", "utf8", "us-ascii"})


def admit(stamp: Stamp | None, wanted: str, known: Collection[str], topic: str) -> Admit | errors.EventError:
    """Return whether to run or skip events of a stamp, or the error that makes them dead letters."""
    if stamp is None:
        return errors.HeadCorrupt("Its stamp is not known.", where="a place not told")
    if not _accepted(stamp.content_type):
        return errors.ContentTypeRefused(content_type=stamp.content_type, event_id=f"of type {stamp.type}")
    if stamp.type in (wanted, ""):  # who does not know Headrace may say no type: it is what the handler takes
        return Admit.RUN
    if stamp.type in known:
        return Admit.SKIP
    return errors.TypeUnknown(type=stamp.type, topic=topic)


def _accepted(content_type: str) -> bool:
    """Return whether a payload can be read; the case of letters has no say (RFC 9110, 8.3.1)."""
    name, *parameters = content_type.lower().split(";")
    given = [parameter.strip().partition("=") for parameter in parameters]
    charsets = [value.strip('"') for key, _, value in given if key == "charset"]
    return name.strip() in ACCEPTED and all(charset in _CHARSETS for charset in charsets)
