"""Errors 25x: replays."""

from __future__ import annotations

from headrace.errors.journal import JournalError
from headrace.errors.tree import Fault


class ReplayUnsupported(JournalError):
    """A journal on Kafka cannot replay history yet.

    Nothing was written. Versions, ranges and exceptions are kept there as on SQLite, so the history that is
    written now can be replayed once that is there.

    Hint: a new version can be tried on a SQLite journal to which the same events are published.
    """

    code = "HR-E250"
    fault = Fault.YOURS


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
