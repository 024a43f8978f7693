"""Errors 2xx: the journal."""

from __future__ import annotations

from headrace.errors.tree import Fault, HeadraceError


class JournalError(HeadraceError):
    """The journal cannot do what was asked."""


class JournalBusy(JournalError):
    """Journal {path} was locked by another writer for {waited_s} s.

    The call was given up; nothing was written. Workers at work try again by themselves.

    Hint: a process stopped inside a write holds the lock: look for one in state T with
    ``ps -o pid,stat,cmd``.
    """

    code = "HR-E201"
    fault = Fault.THEIRS
    retryable = True


class JournalUnavailable(JournalError):
    """Journal {path} does not answer.

    Nothing was written. Workers at work keep what they hold and try again, with a growing wait; what only
    starts, ends.

    Hint: check the disk and the permissions of the file and of its folder; of brokers and databases, whether
    they run and can be reached from here.
    """

    code = "HR-E202"
    fault = Fault.THEIRS
    retryable = True


class JournalNewer(JournalError):
    """Journal {path} has schema {found}, this Headrace knows up to {known}.

    It was not opened, so that nothing is written that the newer version would misread.

    Hint: upgrade Headrace on this machine.
    """

    code = "HR-E203"
    fault = Fault.YOURS


class JournalForeign(JournalError):
    """File {path} is not a Headrace journal.

    It was not changed.

    Hint: choose another file with ``--journal`` or ``HEADRACE_JOURNAL``.
    """

    code = "HR-E204"
    fault = Fault.YOURS


class JournalReadOnly(JournalError):
    """Journal {path} cannot be written.

    Nothing was written.

    Hint: SQLite needs write permission for the file and for its folder (``-wal`` and ``-shm``).
    """

    code = "HR-E205"
    fault = Fault.YOURS


class DiskFull(JournalError):
    """The disk of journal {path} is full.

    The transaction was rolled back as a whole. Workers keep their results and try again.

    Hint: free space; nothing needs repair.
    """

    code = "HR-E206"
    fault = Fault.THEIRS
    retryable = True


class FileLimited(DiskFull):
    """Journal {path} may not grow: this process may not write files of more than {limit_bytes} bytes.

    The disk itself may have room. The transaction was rolled back as a whole. Workers keep their results and
    try again.

    Hint: raise the limit where the process is started: ``ulimit -f unlimited``, ``LimitFSIZE=infinity`` of a
    service.
    """

    code = "HR-E232"
    fault = Fault.THEIRS
    retryable = True


class JournalForked(JournalError):
    """Journal {path} was opened in process {opened_pid} and used in its child {pid}.

    A SQLite connection must not cross a fork: the child could corrupt the file. The call was refused.

    Hint: open the journal (or start the app) in the child, or use the ``spawn`` start method.
    """

    code = "HR-E207"
    fault = Fault.YOURS


class JournalOnNetwork(JournalError):
    """Journal {path} lies on a network file system ({filesystem}).

    Locks and shared memory do not work there, and the file would be damaged. It was not opened.

    Hint: use a local disk, or Kafka for several machines.
    """

    code = "HR-E208"
    fault = Fault.YOURS


class JournalCorrupt(JournalError):
    """Journal {path} is damaged: {problem}.

    Nothing more is written.

    Hint: stop the workers, keep a copy of the file with its ``-wal`` and restore a backup.
    """

    code = "HR-E209"
    fault = Fault.THEIRS


class TopicMismatch(JournalError):
    """Topic {topic} has {found} partitions, the app asks for {asked}.

    The number is fixed when a topic is created, because it decides where a key lives.

    Hint: ask for {found}, or use a new topic.
    """

    code = "HR-E210"
    fault = Fault.YOURS


class JournalClosed(JournalError):
    """The journal is closed.

    Nothing was written.

    Hint: use the app inside ``async with app:``, or call ``await app.open()`` first.
    """

    code = "HR-E211"
    fault = Fault.YOURS


class JournalUrlInvalid(JournalError):
    """{url!r} does not name a journal.

    Known forms: ``sqlite:///path/file.db``, a plain path, ``:memory:``, ``kafka://host:9092``.

    Hint: set ``HEADRACE_JOURNAL`` or ``--journal``.
    """

    code = "HR-E212"
    fault = Fault.YOURS


class JournalMissing(JournalError):
    """There is no journal at {path}.

    A command that only reads does not create one.

    Hint: name the file with ``--journal`` or ``HEADRACE_JOURNAL``; ``headrace run`` and
    ``headrace publish`` create it.
    """

    code = "HR-E213"
    fault = Fault.YOURS


class LeaseLost(JournalError):
    """Partition {partition} of {handler} has a new owner.

    The outcome was dropped as a whole; the new owner handles the event.

    Hint: nothing to do; if it happens often, raise ``lease_ms`` or find what stops the process.
    """

    code = "HR-E214"
    fault = Fault.THEIRS


class EventNotFound(JournalError):
    """No event has the id {event_id}.

    Hint: ids are UUIDs, as printed by ``headrace tail``; a beginning that no other has (16 digits) will do,
    so will the name that the publisher gave as ``event_id``.
    """

    code = "HR-E215"
    fault = Fault.YOURS


class RedriveRefused(JournalError):
    """Dead letter {dead_id} is left as it is: {problem}.

    Others that were named with it are redriven or dropped all the same.

    Hint: ``headrace dlq show {dead_id}`` tells its state.
    """

    code = "HR-E216"
    fault = Fault.YOURS


class JournalLoopBound(JournalError):
    """The journal was opened on another event loop.

    Nothing was written.

    Hint: open and use one app inside one ``asyncio.run``.
    """

    code = "HR-E217"
    fault = Fault.YOURS


class JournalDenied(JournalError):
    """Journal {path} does not let this user in: {problem}.

    Nothing was written.

    Hint: check ``security.protocol``, user, password and certificates, and the access rules of topics, groups
    and transactional ids.
    """

    code = "HR-E219"
    fault = Fault.YOURS


class HandlerUnknown(JournalError):
    """The journal knows no handler {handler}.

    A handler is known once a worker has served it. Nothing was changed.

    Hint: ``headrace status`` lists the handlers; ``--journal`` names another journal.
    """

    code = "HR-E220"
    fault = Fault.YOURS


class JournalForbidden(JournalError):
    """Journal {path} may not be read by this user.

    It was not opened.

    Hint: run as its owner, or let this user in with ``chmod``: workers and publishers need read and write
    permission for the file and for its folder.
    """

    code = "HR-E221"
    fault = Fault.YOURS


class IndexMissing(JournalError):
    """There is no index at {path}.

    A command that looks into a journal on Kafka does not make one. Nothing was changed.

    Hint: name it with ``--index`` or ``HEADRACE_INDEX``; workers make it, and ``headrace index rebuild`` does
    from the topics alone.
    """

    code = "HR-E226"
    fault = Fault.YOURS


class IndexForeign(JournalError):
    """The index at {path} belongs to cluster {found}, the journal is on cluster {cluster}.

    Positions of the one mean nothing to the other. Nothing was written.

    Hint: give each cluster an index of its own with ``HEADRACE_INDEX``: another file, database or schema.
    """

    code = "HR-E227"
    fault = Fault.YOURS


class IndexGap(JournalError):
    """Partition {partition} is indexed up to offset {indexed}, not to {after} as was believed.

    Nothing was written. The index is older than whoever asked: it was restored or made anew. What is
    missing is read from the log and indexed first, without anybody's help.

    Hint: nothing to do; if it does not end, see whether something keeps setting the database back.
    """

    code = "HR-E222"
    fault = Fault.THEIRS
    retryable = True


class CopyRefused(JournalError):
    """The journal is not copied: {problem}.

    The source is as it was. What was copied before, if anything, stays; the same command goes on from there.

    Hint: mend it, and run the same command again.
    """

    code = "HR-E228"
    fault = Fault.YOURS


class CopyDiffers(JournalError):
    """The copy differs from its source: {problem}.

    No position was written, so that no handler begins on a history that is another one. Somebody else has
    written to the topics, or records of them are gone.

    Hint: delete the topics and the index of the target, and copy again while nobody uses them.
    """

    code = "HR-E229"
    fault = Fault.YOURS


class TopicUnfit(JournalError):
    """Topic {topic} is not fit to hold events: {problem}.

    It was not used, and not changed.

    Hint: use another topic, or ``kafka-configs.sh --alter --entity-type topics --entity-name {topic}
    --add-config {setting}``.
    """

    code = "HR-E230"
    fault = Fault.YOURS


class RecordTooLarge(JournalError):
    """An event is larger than the brokers let into topic {topic}.

    Nothing was written, and it is not tried again: it would be refused again.

    Hint: raise ``max.message.bytes`` of the topic, or store the large part elsewhere and publish its address.
    """

    code = "HR-E231"
    fault = Fault.YOURS
