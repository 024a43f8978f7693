"""``headrace publish``: events from an argument, a file or standard input into the journal."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace import errors
from headrace.cli.options import Index, Journal, Target, examples
from headrace.cli.output import Exit, counted, put_json_line, say, show_error

if TYPE_CHECKING:
    from headrace.app import App, Published
    from headrace.event.contract import Contract, Event

#: Bytes of one read; the lines in it are published together, so a quick source shares its flushes.
READ_BYTES = 65_536

_EPILOG = examples(
    """headrace publish app:app Ticket '{"customer": "ada", "text": "My card is lost"}'""",
    "headrace publish app:app Ticket @tickets.jsonl",
    "tail -F new.jsonl | headrace publish app:app Ticket -",
    more="The key is a field of the payload: the event class names it.",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("publish", epilog=_EPILOG)(_publish)


def _publish(
    target: Target,
    kind: Annotated[str, typer.Argument(metavar="TYPE", help="The event type.", show_default=False)],
    payload: Annotated[
        str,
        typer.Argument(
            metavar="JSON|-|@FILE",
            help="The payload; or - for one per line on standard input; or @FILE for one per line in a file"
            " (the whole file when its name ends in .json).",
            show_default=False,
        ),
    ],
    event_id: Annotated[
        str | None,
        typer.Option(
            "--id", help="Publishing this id again has no effect. One event only.", show_default=False
        ),
    ] = None,
    parents: Annotated[
        list[str] | None,
        typer.Option("--parent", help="Id of an event that caused it; may be repeated.", show_default=False),
    ] = None,
    journal: Journal = None,
    index: Index = None,
) -> int:
    """Publish events; a receipt per event on stdout, as JSON lines, once they are on disk."""
    from headrace.cli.target import load

    app = load(target)
    app.configure({"journal": journal, "index": index})
    contract = app.contracts.get(kind)
    if contract is None:
        known = ", ".join(app.contracts) or "none"
        raise errors.CommandInvalid(
            problem=f"{target} knows no event type {kind!r}; it knows {known}",
            hint="import the class in the app, or list it in App(events=[...])",
        )
    single = _single(payload)
    if single is None and event_id is not None:
        raise errors.CommandInvalid(problem="--id names one event, not one per line", hint="drop --id")
    publisher = Publisher(app, contract, event_id, parents or [])
    if single is not None:
        return asyncio.run(publisher.publish_one(single))
    source = 0 if payload == "-" else os.open(_file(payload), os.O_RDONLY)
    return asyncio.run(publisher.publish_lines(source))


def _single(payload: str) -> bytes | None:
    """Return the one payload that the argument is or names; ``None`` when there is one per line."""
    if payload == "-":
        if sys.stdin.isatty():
            say("reading one payload per line from the terminal; end with Ctrl-D")
        return None
    if not payload.startswith("@"):
        return payload.encode("utf-8", "surrogateescape")
    return _file(payload).read_bytes() if payload.endswith(".json") else None


def _file(payload: str) -> Path:
    file = Path(payload[1:])
    if not file.is_file():
        raise errors.CommandInvalid(
            problem=f"there is no file {file}", hint="@FILE is relative to this folder"
        )
    return file


class Line(NamedTuple):
    """One line of the source, from 1; ``None`` instead of the text of one that is too long to be kept."""

    number: int
    text: bytes | None
    size_bytes: int


class Publisher:
    """Takes foreign bytes, checks them whole, publishes them, and tells what became of each."""

    def __init__(self, app: App, contract: Contract, event_id: str | None, parents: Sequence[str]) -> None:
        self._app, self._contract = app, contract
        self._event_id, self._parents = event_id, parents
        self._bytes_max = app.settings.payload_bytes_max
        self._failed = 0

    def _event_of(self, line: Line) -> Event:
        if line.text is None:
            raise errors.PayloadTooLarge(
                type=self._contract.type, size_bytes=line.size_bytes, limit_bytes=self._bytes_max
            )
        return self._event(line.text)

    def _event(self, text: bytes) -> Event:
        from headrace.codec.foreign import check_foreign

        check_foreign(self._contract.type, text, self._bytes_max)
        return self._contract.decode(text)

    async def publish_one(self, text: bytes) -> int:
        """Publish one payload; raises what is wrong with it."""
        event = self._event(text)
        async with self._app as app:
            receipt = await app.publish(event, event_id=self._event_id, parents=self._parents)
        _tell(receipt)
        return Exit.DONE

    async def publish_lines(self, source: int) -> int:
        """Publish one payload per line; a line that is refused does not stop the others."""
        splitter = Splitter(self._bytes_max)
        loop = asyncio.get_running_loop()
        async with self._app:
            while True:
                # In a thread: a source that gives nothing for hours must not block the loop.
                found = await loop.run_in_executor(None, os.read, source, READ_BYTES)
                await self._publish_some(list(splitter.feed(found)))
                if not found:
                    break
        if self._failed:
            say(f"not published: {counted(self._failed, 'line')}")
        return Exit.NO if self._failed else Exit.DONE

    async def _publish_some(self, lines: list[Line]) -> None:
        good: list[tuple[Line, Event]] = []
        for line in lines:
            try:
                good.append((line, self._event_of(line)))
            except errors.EventError as fault:
                self._refuse(line, fault)
        from headrace.runtime.publish import UNIT_EVENTS_MAX

        for start in range(0, len(good), UNIT_EVENTS_MAX):
            await self._publish_unit(good[start : start + UNIT_EVENTS_MAX])

    async def _publish_unit(self, good: list[tuple[Line, Event]]) -> None:
        """Publish lines together; where that is refused, each by itself."""
        try:
            receipts = await self._app.publish([event for _, event in good], parents=self._parents)
        except errors.EventError:
            await self._publish_each(good)
            return
        for (line, _), receipt in zip(good, receipts, strict=True):
            _tell(receipt, line)

    async def _publish_each(self, good: list[tuple[Line, Event]]) -> None:
        """Find the lines that the unit was refused for; the others are published all the same."""
        for line, event in good:
            try:
                _tell(await self._app.publish(event, parents=self._parents), line)
            except errors.EventError as fault:
                self._refuse(line, fault)

    def _refuse(self, line: Line, fault: errors.EventError) -> None:
        self._failed += 1
        show_error(fault, f"line {line.number}: ")


def _tell(receipt: Published, line: Line | None = None) -> None:
    told = {"event_id": receipt.event_id, "duplicate": receipt.duplicate}
    put_json_line(told if line is None else {"line": line.number, **told})


class Splitter:
    """Cuts a stream of bytes into lines; a line over the limit is counted, and not kept."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = b""
        #: Bytes that were not kept of a line that is too long.
        self._dropped_bytes = 0
        self._number = 0

    def feed(self, found: bytes) -> Iterator[Line]:
        """Yield the lines that are whole now; no bytes mean the end."""
        *whole, rest = (self._rest + found).split(b"\n") if found else [self._rest, b""]
        for text in whole:
            self._number += 1
            if self._dropped_bytes:
                yield Line(self._number, None, self._dropped_bytes + len(text))
                self._dropped_bytes = 0
            elif text.strip():
                yield Line(self._number, text, len(text))
        self._rest = rest
        if self._dropped_bytes or len(rest) > self._bytes_max:
            self._dropped_bytes += len(rest)
            self._rest = b""
