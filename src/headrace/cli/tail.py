"""``headrace tail``: the events of a journal, the newest ones or from an offset on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Journal, JsonLines, TopicName, TypeName, examples
from headrace.cli.output import Exit, put, put_json_line, warn

if TYPE_CHECKING:
    from headrace.journal.reader import Reader, StoredEvent

#: What is shown of the past when no offset is given.
NEWEST = 10

_EPILOG = examples(
    "headrace tail",
    "headrace tail --topic tickets --follow",
    "headrace tail --from-offset 1 --limit 100 --jsonl | jq .payload",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("tail", epilog=_EPILOG)(_tail)


def _tail(
    topic: TopicName = None,
    kind: TypeName = None,
    from_offset: Annotated[
        int | None,
        typer.Option("--from-offset", min=0, help="Begin with this offset.", show_default=False),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Print at most so many.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further events.")] = False,
    journal: Journal = None,
    jsonl: JsonLines = False,
) -> int:
    """Print events in commit order; without an offset the last ten."""
    from headrace.cli.access import reading

    with reading(journal) as reader:
        _warn_of_topic(reader, topic)
        tail = Tail(reader, topic, kind, limit, _json if jsonl else _text)
        if from_offset is None:
            tail.show_newest(min(limit or NEWEST, NEWEST) if follow or limit is None else limit)
        else:
            tail.after = from_offset - 1
        tail.catch_up()
        if follow and not tail.finished():
            asyncio.run(_follow(reader, tail))
    return Exit.DONE


def _warn_of_topic(reader: Reader, topic: str | None) -> None:
    from headrace.journal.progress import topics

    known = [one.name for one in topics(reader)]
    if topic is not None and topic not in known:
        warn(f"the journal has no topic {topic}; it has {', '.join(known) or 'none'}")


def _text(event: StoredEvent) -> None:
    from headrace.cli.events import event_line

    put(event_line(event))


def _json(event: StoredEvent) -> None:
    from headrace.cli.events import event_json

    put_json_line(event_json(event))


class Tail:
    """What was shown so far, and what is to be shown."""

    def __init__(
        self,
        reader: Reader,
        topic: str | None,
        kind: str | None,
        limit: int | None,
        show: Callable[[StoredEvent], None],
    ) -> None:
        self._reader, self._topic, self._kind, self._show = reader, topic, kind, show
        self._left = limit
        #: The offset of the last event looked at.
        self.after = 0

    def finished(self) -> bool:
        """Return whether the limit is reached."""
        return self._left is not None and self._left <= 0

    def show_newest(self, count: int) -> None:
        """Show the last events there are."""
        # Looked at before, so that an event that comes meanwhile is found by `catch_up`.
        self.after = self._reader.last_offset()
        for event in self._reader.newest(count, topic=self._topic, kind=self._kind):
            if event.envelope.offset <= self.after:
                self._take(event)

    def catch_up(self) -> None:
        """Show what lies above, page by page."""
        while not self.finished():
            page = self._reader.events(after=self.after, topic=self._topic)
            if not page:
                return
            for event in page:
                self._take(event)
            self.after = page[-1].envelope.offset

    def _take(self, event: StoredEvent) -> None:
        if self.finished() or (self._kind is not None and event.envelope.type != self._kind):
            return
        self._show(event)
        if self._left is not None:
            self._left -= 1


async def _follow(reader: Reader, tail: Tail) -> None:
    """Look again whenever somebody has committed."""
    from headrace.journal.notify import Watch, notify_path

    woken = asyncio.Event()
    watch = Watch(notify_path(reader.path), woken.set, flushed=True)
    seen = 0
    try:
        while not tail.finished():
            changed = reader.changed()
            if changed != seen:
                seen = changed
                tail.catch_up()
                continue
            await woken.wait()
            woken.clear()
    finally:
        watch.close()
