"""Errors 25x: replays."""

from __future__ import annotations

from headrace.errors.journal import JournalError
from headrace.errors.tree import Fault


class ReplayRefused(JournalError):
    """No history of {handler} is replayed: {problem}.

    Nothing was written.

    Hint: ``headrace model history {handler}`` lists what each version has handled.
    """

    code = "HR-E251"
    fault = Fault.YOURS


class EventReplayed(JournalError):
    """Version {version} of {handler} has this event already, in a replay.

    A version handles an event once. It was redriven under another version, and before its turn came this one
    was made active. The event is a dead letter again, as it was.

    Hint: ``headrace replay ... --again NAME`` handles it a second time, beside everything else.
    """

    code = "HR-E252"
    fault = Fault.YOURS
