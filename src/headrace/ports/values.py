"""What passes between the runtime and a journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

from headrace.event.envelope import Head


class NewEvent(NamedTuple):
    """One event on its way into the journal; chain and depth are the journal's to find."""

    topic: str
    #: The journal's number of topic and partition (`Journal.place`).
    place: int
    event_id: bytes
    head: Head
    body: bytes
    #: False when the id was just drawn, so that no look-up for a copy is needed.
    may_exist: bool

    @property
    def size_bytes(self) -> int:
        """Payload and headers: what a publisher can make as large as it likes."""
        headers = self.head.headers
        if not headers:
            return len(self.body)
        return len(self.body) + sum(len(name) + len(value) for name, value in headers.items())


class Receipt(NamedTuple):
    """What became of one published event."""

    event_id: bytes
    #: True when the same event was there already, with the same content.
    duplicate: bool


class TopicInfo(NamedTuple):
    """A topic as the journal has it; the number of partitions is fixed at creation."""

    id: int
    name: str
    partitions: int


class Keep(NamedTuple):
    """How long a topic keeps the payload of its events; ``None`` sets no bound."""

    topic: str
    age_us: int | None
    bytes_max: int | None


class VersionOffer(NamedTuple):
    """What a worker can run: the declared version of a handler and the digest of its model."""

    handler: str
    declared: str
    model: str | None = None
    digest: str | None = None
    model_declared: str | None = None


class VersionInfo(NamedTuple):
    """A handler version known to the journal; its name is ``declared`` or ``declared+model@epoch:digest``."""

    id: int
    handler: str
    declared: str
    model: str | None
    digest: str | None
    #: ``name@epoch`` or ``name@declared``, then ``:`` and 12 digits of the digest; ``None`` without a model.
    model_name: str | None

    @property
    def name(self) -> str:
        """Return the text that stands in envelopes and in derived ids."""
        return self.declared if self.model_name is None else f"{self.declared}+{self.model_name}"


class Offered(NamedTuple):
    """The journal's answer: the version that was offered, and the one that is active."""

    mine: VersionInfo
    active: VersionInfo


#: offset, partition, event id, chain, depth, head, body.  A plain tuple: one per event on the hot path.
Row = tuple[int, int, bytes, Any, int, Any, bytes]


class OpenState(StrEnum):
    """Why an offset below the position is still open."""

    RUNNING = "running"
    RETRY = "retry"  # waits for its next attempt
    BLOCKED = "blocked"  # waits for an earlier event of its key
    PARKED = "parked"  # waits for something else than time
    RETURNED = "returned"  # handed back by a worker that stopped, not counted as an attempt
    REDRIVEN = "redriven"  # made waiting again from a dead letter


class Attempt(NamedTuple):
    """How often an event was tried; a first attempt has no record of its own."""

    number: int = 1
    crashes: int = 0
    generation: int = 0
    #: Errors of the earlier attempts, one line each, oldest first.
    errors: tuple[str, ...] = ()


FIRST_ATTEMPT = Attempt()


@dataclass(slots=True)
class Batch:
    """Events claimed together, by one worker, under one version."""

    subscription: int
    version: VersionInfo
    rows: list[Row]
    #: Attempts by offset; an offset that is not here has its first.
    attempts: Mapping[int, Attempt] = field(default_factory=dict[int, Attempt])
    #: True when the events are suspects of a crash: nothing else may run in the process meanwhile.
    alone: bool = False
    #: The journal's own notes (fencing epochs and ranges).
    token: Any = None


class Waiting(NamedTuple):
    """An offset that stays open, and until when."""

    row: Row
    state: OpenState
    attempt: Attempt
    after_ms: float = 0.0


class DeadLetter(NamedTuple):
    """An event put aside."""

    row: Row
    reason: str
    code: str
    error: str
    traceback: str
    attempt: Attempt
    trace: bytes = b""
    type: str = ""


@dataclass(slots=True)
class Outcome:
    """What the handling of (a part of) a batch came to; committed as one transaction."""

    #: Events that follow, each as `Journal.emitted` made it.
    emitted: list[Any] = field(default_factory=list[Any])
    #: Offset of the cause of each emitted event, side by side with `emitted`.
    causes: list[int] = field(default_factory=list[int])
    #: Rows that are finished.
    done: list[Row] = field(default_factory=list[Row])
    waiting: list[Waiting] = field(default_factory=list[Waiting])
    dead: list[DeadLetter] = field(default_factory=list[DeadLetter])
    #: Reserved for handlers with state and for remembered step results; no part fills them yet.
    state: Sequence[object] = ()
    steps: Sequence[object] = ()

    def __len__(self) -> int:
        return len(self.done) + len(self.waiting) + len(self.dead)

    def offsets(self) -> set[int]:
        """Return the offsets that are named."""
        found = {row[0] for row in self.done}
        found.update(one.row[0] for one in self.waiting)
        found.update(one.row[0] for one in self.dead)
        return found


class Settled(NamedTuple):
    """How the journal took an outcome."""

    #: Offsets whose partition has a new owner: their results were dropped whole.
    stale: frozenset[int]
    #: Offsets whose emitted ids are taken by other content, with the id; they are still open.
    conflicts: Mapping[int, bytes]
    #: The next batch, claimed in the same transaction.
    next: Batch | None


class Subscription(NamedTuple):
    """A handler's progress over its topic."""

    id: int
    handler: str
    topic: TopicInfo
    #: The first name of the handler, which its derived ids are made of; empty where it was never renamed.
    born: str = ""
    #: A further one, whose version is fixed and that handles what it was allotted.
    replay: bool = False
