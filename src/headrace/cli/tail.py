"""``headrace tail``: the events of a journal, the newest ones or a stretch of its history."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from headrace import errors
from headrace.cli.moments import EVER, Bound, stretch_of
from headrace.cli.options import Index, Journal, JsonLines, TopicName, TypeName, examples, not_empty
from headrace.cli.output import Exit, counted, ending_with_reader, put, put_json_line, warn

if TYPE_CHECKING:
    from headrace.ports.look import Feed, Look, StoredEvent

#: What is shown of the past when no beginning is given.
NEWEST = 10

_EPILOG = examples(
    "headrace tail",
    "headrace tail --topic tickets --follow",
    "headrace tail --from 2026-05-04T09:00 --to 2026-05-04T09:05 --key ada",
    "headrace tail --from 15m --type Routed --where intent=translate",
    "headrace tail --chain 01a22a41-9f19-79cd --follow",
    "headrace tail --side trial",
    "headrace tail --from 1 --limit 100 --jsonl | jq .payload",
)

ChainOf = Annotated[
    str | None,
    typer.Option(
        "--chain",
        metavar="EVENT",
        help="Of the chain of this event.",
        show_default=False,
        callback=not_empty,
    ),
]


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("tail", epilog=_EPILOG)(_tail)


def _tail(  # noqa: PLR0913, PLR0917 - one parameter per option
    topic: TopicName = None,
    kind: TypeName = None,
    key: Annotated[str | None, typer.Option("--key", help="Of this key.", show_default=False)] = None,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where", metavar="FIELD=VALUE", show_default=False,
            help="Whose payload has this value in this field (a.b for one inside); may be repeated.",
        ),
    ] = None,
    chain: ChainOf = None,
    first: Annotated[
        str | None,
        typer.Option(
            "--from", "--from-offset", metavar="TIME|OFFSET", show_default=False,
            help="Begin at this time (UTC, or 15m, 2h, 3d ago) or offset, on Kafka of each partition.",
        ),
    ] = None,
    last: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="TIME|OFFSET", show_default=False,
            help="End before this time, or with this offset.",
        ),
    ] = None,
    side: Annotated[
        str | None,
        typer.Option("--side", metavar="NAME", show_default=False, help="What replays put on this side."),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Print at most so many.", show_default=False)
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further events.")] = False,
    journal: Journal = None,
    index: Index = None,
    jsonl: JsonLines = False,
) -> int:  # fmt: skip
    """Print events in commit order; without a beginning the last ten.

    What a replay has put on a side is left out, unless the side or its topic is named. On Kafka order holds
    within a partition.
    """
    from headrace.cli.access import looked
    from headrace.world import SystemClock

    if follow and last is not None:
        raise errors.CommandInvalid(problem="--to ends, and --follow does not", hint="drop one of them")
    begin, end = stretch_of(first, last, SystemClock().wall_us())
    wanted = Wanted(topic, kind, key, tuple(map(_condition, where or ())), begin, end, side)

    async def look(at: Look) -> None:
        await _warn_of_topic(at, topic)
        await _warn_of_side(at, side)
        feed = at.feed(topic, begin.offset or 0, begin.us)
        tail = Tail(feed, wanted, limit, _json if jsonl else _text)
        if chain is not None:
            await feed.newest(0)  # before the chain is looked at: what comes meanwhile is told by the feed
            await tail.run_behind(await _chain(at, chain, wanted), follow=follow)
        elif begin != EVER:
            await tail.run(None, follow=follow)
        else:
            await tail.run(min(limit or NEWEST, NEWEST) if follow or limit is None else limit, follow=follow)

    with ending_with_reader():
        looked(journal, index, look)
    return Exit.DONE


def _condition(text: str) -> tuple[tuple[str, ...], str]:
    field, equals, value = text.partition("=")
    if not (field and equals):
        raise errors.CommandInvalid(
            problem=f"--where {text!r} has no field, or no value", hint="--where customer=ada"
        )
    return tuple(field.split(".")), value


async def _warn_of_topic(look: Look, topic: str | None) -> None:
    if topic is None:
        return
    known = [one.name for one in await look.topics()]
    if topic not in known:
        warn(f"the journal has no topic {topic}; it has {', '.join(known) or 'none'}")


async def _warn_of_side(look: Look, side: str | None) -> None:
    if side is None:
        return
    known = sorted({one.side for one in await look.replays() if one.side is not None})
    if side not in known:
        warn(f"the journal has no side {side}; it has {', '.join(known) or 'none'}")


async def _chain(look: Look, text: str, wanted: Wanted) -> list[StoredEvent]:
    """Return the chain of an event as far as it is there, and want nothing else."""
    from headrace.ports.look import CHAIN_EVENTS_MAX

    event = await look.find(text)
    wanted.chain = event.envelope.causality_id
    found = await look.chain(event)
    if len(found) >= CHAIN_EVENTS_MAX:
        warn(f"the chain has {counted(CHAIN_EVENTS_MAX, 'event')} or more; the first of them are shown")
    return sorted(found, key=lambda one: (one.envelope.time, one.envelope.offset))


def _text(event: StoredEvent) -> None:
    from headrace.cli.events import event_line

    put(event_line(event))


def _json(event: StoredEvent) -> None:
    from headrace.cli.events import event_json

    put_json_line(event_json(event))


@dataclass(slots=True)
class Wanted:
    """Which events are shown."""

    topic: str | None = None
    kind: str | None = None
    key: str | None = None
    #: Paths into the payload, each with the text of the value there.
    conditions: tuple[tuple[tuple[str, ...], str], ...] = ()
    begin: Bound = EVER
    end: Bound = EVER
    #: Results of replays on this side; ``None`` = what is live, or all there is of a topic that is named.
    side: str | None = None
    chain: UUID | None = None

    def fits(self, event: StoredEvent) -> bool:
        """Return whether an event is one of them."""
        one = event.envelope
        return (
            self.topic in (None, one.topic)
            and self.kind in (None, one.type)
            and self.key in (None, one.key)
            and self.chain in (None, one.causality_id)
            and (one.side == self.side or (self.side is None and self.topic is not None))
            and self._in_time(event)
            and all(_value_at(event.payload, path) == value for path, value in self.conditions)
        )

    def _in_time(self, event: StoredEvent) -> bool:
        one = event.envelope
        if self.begin.offset is not None and one.offset < self.begin.offset:
            return False
        if self.end.offset is not None and one.offset > self.end.offset:
            return False
        if self.begin.us is None and self.end.us is None:
            return True
        us = _us(event)
        return (self.begin.us is None or us >= self.begin.us) and (self.end.us is None or us < self.end.us)

    def passed(self, event: StoredEvent) -> bool:
        """Return whether all that follows in commit order is beyond the end."""
        from headrace.ports.look import SKEW_US_MAX

        if self.end.offset is not None:
            return event.envelope.offset >= self.end.offset
        return self.end.us is not None and _us(event) > self.end.us + SKEW_US_MAX


def _us(event: StoredEvent) -> int:
    from headrace.ports.look import us_of

    return us_of(event.envelope.time)


def _value_at(payload: bytes, path: Sequence[str]) -> str | None:
    """Return the value at a path as text: a string as it is, all else as JSON has it."""
    try:
        found: Any = json.loads(payload)
        for name in path:
            found = found[name]
    except (ValueError, RecursionError, KeyError, TypeError):  # no JSON, or nothing of that name
        return None
    return found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


class Tail:
    """What was shown so far, and what is to be shown."""

    def __init__(
        self, feed: Feed, wanted: Wanted, limit: int | None, show: Callable[[StoredEvent], None]
    ) -> None:
        self._feed, self._wanted, self._show = feed, wanted, show
        self._left = limit
        self._ended = self._shown = False
        self._shown_before: set[UUID] = set()

    async def run(self, newest: int | None, *, follow: bool) -> None:
        """Show the last events there are, if wanted, and those that follow."""
        try:
            if newest is not None:
                for event in await self._feed.newest(newest, self._wanted.fits):
                    self._take(event)
            await self._catch_up()
            self._warn_of_type(follow=follow)
            while follow and not self._finished():
                await self._feed.wait()
                await self._catch_up()
        finally:
            await self._feed.close()

    async def run_behind(self, past: Sequence[StoredEvent], *, follow: bool) -> None:
        """Show events that were found already, and those that follow after them."""
        for event in past:
            self._shown_before.add(event.envelope.event_id)
            self._take(event)
        if follow:
            await self.run(None, follow=True)
        else:
            self._warn_of_type(follow=False)
            await self._feed.close()

    def _warn_of_type(self, *, follow: bool) -> None:
        """Say that it may be the name of the type: any app may have types that no journal knows."""
        if not self._shown and self._wanted.kind is not None:
            warn(f"no event of type {self._wanted.kind} was found{' so far' if follow else ''}")

    def _finished(self) -> bool:
        return self._ended or (self._left is not None and self._left <= 0)

    async def _catch_up(self) -> None:
        """Show what lies above, page by page."""
        while not self._finished():
            page = await self._feed.page()
            if not page:
                return
            for event in page:
                if event.envelope.event_id not in self._shown_before:
                    self._take(event)
            self._ended = self._feed.ordered and self._wanted.passed(page[-1])

    def _take(self, event: StoredEvent) -> None:
        if self._finished() or not self._wanted.fits(event):
            return
        self._show(event)
        self._shown = True
        if self._left is not None:
            self._left -= 1
