"""Errors 24x: care of the journal, from retention to the end of a handler."""

from __future__ import annotations

from headrace.errors.journal import JournalError
from headrace.errors.tree import Fault


class JournalOlder(JournalError):
    """Journal {path} has schema {found}, this Headrace reads from {known} on.

    A command that only looks does not change the file. Nothing was written.

    Hint: a worker, a publisher or ``headrace compact`` of this version brings it up to date.
    """

    code = "HR-E240"
    fault = Fault.YOURS


class NotOnKafka(JournalError):
    """A journal on Kafka has no ``headrace {command}``.

    Nothing was done.

    Hint: {instead}
    """

    code = "HR-E241"
    fault = Fault.YOURS


class BackupRefused(JournalError):
    """No backup was made at {target}: {problem}.

    Whatever is there is as it was; the journal too.

    Hint: name a file that does not exist, on a disk with room for the journal.
    """

    code = "HR-E242"
    fault = Fault.YOURS


class RetireRefused(JournalError):
    """Handler {handler} is not retired: {problem}.

    Nothing was changed.

    Hint: stop the workers that serve it, or wait for the end of their leases.
    """

    code = "HR-E243"
    fault = Fault.YOURS


class RenameRefused(JournalError):
    """Handler {handler} cannot continue {was}: {problem}.

    Nothing was handled. Two histories cannot become one: events would count as handled that one of them has
    not seen.

    Hint: take ``was=`` away, or retire the one that is to end with ``headrace handler retire``.
    """

    code = "HR-E244"
    fault = Fault.YOURS


class EventErased(JournalError):
    """The payload of this event was erased before it was handled.

    Somebody has run ``headrace erase`` with its key. The event is closed as expired, its id is still known.

    Hint: nothing to do; publishing it again has no effect, a new event has.
    """

    code = "HR-E245"
    fault = Fault.YOURS


class HandlerRetired(JournalError):
    """The handler was retired, or its replay given up, before it had finished this event.

    Somebody has run ``headrace handler retire``. The event is closed as expired for that handler alone.

    Hint: nothing to do; publish the payload again if another handler is to have it.
    """

    code = "HR-E246"
    fault = Fault.YOURS


class WalHeld(JournalError):
    """The WAL of {path} could not be emptied: {holder}.

    What was done stands. Older pages stay in the ``-wal`` file until that reader has ended.

    Hint: end it, and run ``headrace compact``; it says whether the WAL is empty.
    """

    code = "HR-E247"
    fault = Fault.THEIRS


class RetentionElsewhere(JournalError):
    """Topic {topic} keeps its events as Kafka is told to, not as the app says.

    Events are handled as ever. The ``Retention`` that the app declares is passed over.

    Hint: ``kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config {setting}``.
    """

    code = "HR-E248"
    fault = Fault.YOURS


class RetentionInvalid(JournalError):
    """Retention of {topic} is not usable: {problem}.

    The app was not made: it might remove more than was meant.

    Hint: ``Retention(age=timedelta(days=30), bytes_max=1 << 30)``, with either or both.
    """

    code = "HR-E249"
    fault = Fault.YOURS
