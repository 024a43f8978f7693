"""``headrace tail``: the events of a journal, the newest ones or from an offset on."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.options import Index, Journal, JsonLines, TopicName, TypeName, examples
from headrace.cli.output import Exit, put, put_json_line, warn

if TYPE_CHECKING:
    from headrace.ports.look import Feed, Look, StoredEvent, Wanted

#: What is shown of the past when no offset is given.
NEWEST = 10

_EPILOG = examples(
    "headrace tail",
    "headrace tail --topic tickets --follow",
    "headrace tail --side trial",
    "headrace tail --from-offset 1 --limit 100 --jsonl | jq .payload",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("tail", epilog=_EPILOG)(_tail)


def _tail(  # noqa: PLR0913, PLR0917 - one parameter per option
    topic: TopicName = None,
    kind: TypeName = None,
    from_offset: Annotated[
        int | None,
        typer.Option(
            "--from-offset",
            min=0,
            help="Begin with this offset; on Kafka in each partition.",
            show_default=False,
        ),
    ] = None,
    side: Annotated[
        str | None,
        typer.Option(
            "--side", metavar="NAME", show_default=False, help="Results of replays on this side alone."
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Print at most so many.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further events.")] = False,
    journal: Journal = None,
    index: Index = None,
    jsonl: JsonLines = False,
) -> int:
    """Print events in commit order; without an offset the last ten.

    What a replay has put on a side is left out, unless the side or its topic is named. On Kafka order holds
    within a partition.
    """
    from headrace.cli.access import looked

    async def look(at: Look) -> None:
        await _warn_of_topic(at, topic)
        wanted = _wanted(kind, side, every_side=topic is not None and side is None)
        tail = Tail(at.feed(topic, from_offset or 0), wanted, limit, _json if jsonl else _text)
        newest = None
        if from_offset is None:
            newest = min(limit or NEWEST, NEWEST) if follow or limit is None else limit
        await tail.run(newest, follow=follow)

    looked(journal, index, look)
    return Exit.DONE


def _wanted(kind: str | None, side: str | None, *, every_side: bool) -> Wanted:
    """Return which events are shown: of a type, and live ones or those of a side."""

    def wanted(event: StoredEvent) -> bool:
        one = event.envelope
        return (kind is None or one.type == kind) and (every_side or one.side == side)

    return wanted


async def _warn_of_topic(look: Look, topic: str | None) -> None:
    if topic is None:
        return
    known = [one.name for one in await look.topics()]
    if topic not in known:
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
        self, feed: Feed, wanted: Wanted, limit: int | None, show: Callable[[StoredEvent], None]
    ) -> None:
        self._feed, self._wanted, self._show = feed, wanted, show
        self._left = limit

    async def run(self, newest: int | None, *, follow: bool) -> None:
        """Show the last events there are, if wanted, and those that follow."""
        try:
            if newest is not None:
                for event in await self._feed.newest(newest, self._wanted):
                    self._take(event)
            await self._catch_up()
            while follow and not self._finished():
                await self._feed.wait()
                await self._catch_up()
        finally:
            await self._feed.close()

    def _finished(self) -> bool:
        return self._left is not None and self._left <= 0

    async def _catch_up(self) -> None:
        """Show what lies above, page by page."""
        while not self._finished():
            page = await self._feed.page()
            if not page:
                return
            for event in page:
                self._take(event)

    def _take(self, event: StoredEvent) -> None:
        if self._finished() or not self._wanted(event):
            return
        self._show(event)
        if self._left is not None:
            self._left -= 1
