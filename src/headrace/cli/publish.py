"""``headrace publish``: events from an argument, a file or standard input into the journal."""

from __future__ import annotations

import asyncio
import codecs
import json
import os
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from headrace import errors
from headrace.cli.options import Index, Journal, Target, examples
from headrace.cli.output import Exit, Progress, counted, put_json_line, say, show_error

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.event.contract import Contract, Event
    from headrace.runtime.outlet import Published
    from headrace.runtime.publish import Options

#: Bytes of one read; the lines in it are published together, so a quick source shares its flushes.
READ_BYTES = 65_536

_EPILOG = examples(
    """headrace publish app:app Ticket '{"customer": "ada", "text": "My card is lost"}'""",
    "headrace publish app:app Ticket @tickets.jsonl",
    "headrace publish app:app Ticket @export.jsonl --id-field ticket_id",
    "tail -F new.jsonl | headrace publish app:app Ticket -",
    """echo '{"text": "My card is lost"}' | headrace publish app:app Ticket - --key ada""",
    more="With --id-field the same command may be given again after an interruption: what was published"
    " already has no effect, and says so.",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("publish", epilog=_EPILOG)(_publish)


def _publish(  # noqa: PLR0913, PLR0917 - one parameter per option
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
    id_field: Annotated[
        str | None,
        typer.Option(
            "--id-field",
            metavar="FIELD",
            help="Each payload names its id in this field, which is taken out if the type has none such.",
            show_default=False,
        ),
    ] = None,
    key: Annotated[
        str | None,
        typer.Option("--key", help="The key of payloads that have none themselves.", show_default=False),
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
    from headrace.settings import MEMORY

    app = load(target)
    app.configure({"journal": journal, "index": index})
    if app.settings.journal == MEMORY:
        problem = "a journal in memory ends with this command: nothing would remain"
        raise errors.CommandInvalid(problem=problem, hint="name a file with --journal or HEADRACE_JOURNAL")
    contract = app.contracts.get(kind)
    if contract is None:
        known = ", ".join(app.contracts) or "none"
        raise errors.CommandInvalid(
            problem=f"{target} knows no event type {kind!r}; it knows {known}",
            hint="import the class in the app, or list it in App(events=[...])",
        )
    single = _single(payload)
    if single is None and event_id is not None:
        raise errors.CommandInvalid(
            problem="--id names one event, not one per line", hint="--id-field names a field of each payload"
        )
    if event_id is not None and id_field is not None:
        raise errors.CommandInvalid(problem="--id and --id-field both name the id", hint="drop one of them")
    if key is not None and contract.key_field is None:
        raise errors.CommandInvalid(problem=f"events of type {kind} have no key", hint="drop --key")
    publisher = Publisher(app, Shaping(contract, id_field, key), event_id, parents or [])
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
    return _file(payload).read_bytes().removeprefix(codecs.BOM_UTF8) if payload.endswith(".json") else None


def _file(payload: str) -> Path:
    """Return the file that is named; a pipe will do, as ``@<(zcat old.jsonl.gz)`` gives one."""
    file, problem = Path(payload[1:]), ""
    try:
        if payload == "@":
            problem = "@ names no file"
        elif stat.S_ISDIR(file.stat().st_mode):
            problem = f"{file} is a folder"
        elif not os.access(file, os.R_OK):
            problem = f"{file} may not be read by this user"
    except FileNotFoundError:
        problem = f"there is no file {file}"
    except OSError as fault:
        problem = f"{payload} cannot be read ({fault.strerror})"
    if problem:
        hint = "@FILE is relative to this folder; - is standard input"
        raise errors.CommandInvalid(problem=problem, hint=hint)
    return file


class Line(NamedTuple):
    """One line of the source, from 1; ``None`` instead of the text of one that is too long to be kept."""

    number: int
    text: bytes | None
    size_bytes: int


class Ready(NamedTuple):
    """A line that can be published."""

    line: Line
    event: Event
    options: Options


class Shaping(NamedTuple):
    """From the bytes of one payload to an event and the id that the payload names."""

    contract: Contract
    id_field: str | None = None
    key: str | None = None

    def event(self, text: bytes, bytes_max: int) -> tuple[Event, str | None]:
        """Return the event and its id, if it names one; raises the `EventError` family."""
        from headrace.codec.foreign import check_foreign

        check_foreign(self.contract.type, text, bytes_max)
        if self.id_field is None and self.key is None:
            return self.contract.decode(text), None
        return self._shaped(text)

    def _shaped(self, text: bytes) -> tuple[Event, str | None]:
        from headrace.codec.foreign import fields_of, object_of

        fields = fields_of(self.contract.type, text)
        event_id = None
        if self.id_field is not None:
            event_id = self._id(fields, self.id_field)
            if self.id_field not in self._known():
                del fields[self.id_field]
        field = self.contract.key_field
        if self.key is not None and field is not None:
            own = fields.setdefault(field, json.dumps(self.key).encode())
            if _text_of(own) != self.key:
                problem = f"the payload says {_text_of(own)!r}, and --key says {self.key!r}"
                raise errors.KeyInvalid(type=self.contract.type, problem=problem)
        return self.contract.decode(object_of(fields)), event_id

    def _id(self, fields: Mapping[str, bytes], field: str) -> str:
        if field not in fields:
            problem = f"the payload has no field {field!r}, which --id-field names"
            hint = f"it has {', '.join(fields) or 'none'}"
            raise errors.EnvelopeInvalid(attribute="event_id", problem=problem, hint=hint)
        found = json.loads(fields[field])
        if isinstance(found, bool) or not isinstance(found, (str, int)) or found == "":
            problem = f"the field {field!r} of the payload holds neither text nor a whole number"
            raise errors.EnvelopeInvalid(attribute="event_id", problem=problem)
        return str(found)

    def _known(self) -> set[str]:
        """Return the names under which the type takes fields."""
        fields = self.contract.cls.model_fields
        return {*fields, *(one.alias for one in fields.values() if one.alias is not None)}


def _text_of(value: bytes) -> str:
    found = json.loads(value)
    return found if isinstance(found, str) else value.decode()


class Publisher:
    """Takes foreign bytes, checks them whole, publishes them, and tells what became of each."""

    def __init__(self, app: App, shaping: Shaping, event_id: str | None, parents: Sequence[str]) -> None:
        self._app, self._shaping = app, shaping
        self._event_id, self._parents = event_id, parents
        self._bytes_max = app.settings.payload_bytes_max
        self._failed = self._duplicates = 0

    async def publish_one(self, text: bytes) -> int:
        """Publish one payload; raises what is wrong with it."""
        event, named = self._shaping.event(text, self._bytes_max)
        async with self._app as app:
            receipt = await app.publish(
                event, event_id=named if self._event_id is None else self._event_id, parents=self._parents
            )
        _tell(receipt)
        return Exit.DONE

    async def publish_lines(self, source: int) -> int:
        """Publish one payload per line; a line that is refused does not stop the others."""
        progress = Progress(_size_of(source), " bytes")
        try:
            async with self._app:
                await self._publish_all(source, progress)
        finally:
            progress.end()
        if self._duplicates:
            say(f"published before: {counted(self._duplicates, 'line')}")
        if self._failed:
            say(f"not published: {counted(self._failed, 'line')}")
        return Exit.NO if self._failed else Exit.DONE

    async def _publish_all(self, source: int, progress: Progress) -> None:
        splitter = Splitter(self._bytes_max)
        loop = asyncio.get_running_loop()
        read_bytes = lines = 0
        found = b"?"
        while found:
            # In a thread: a source that gives nothing for hours must not block the loop.
            found = await loop.run_in_executor(None, os.read, source, READ_BYTES)
            some = list(splitter.feed(found))
            await self._publish_some(some)
            read_bytes, lines = read_bytes + len(found), lines + len(some)
            if not sys.stdout.isatty():  # there the receipts show how far it is
                progress.at(read_bytes, counted(lines, "line"))

    async def _publish_some(self, lines: list[Line]) -> None:
        from headrace.runtime.publish import UNIT_EVENTS_MAX, Options

        good: list[Ready] = []
        for line in lines:
            try:
                event, named = self._event_of(line)
            except errors.EventError as fault:
                self._refuse(line, fault)
            else:
                good.append(Ready(line, event, Options(event_id=named, parents=self._parents)))
        for start in range(0, len(good), UNIT_EVENTS_MAX):
            await self._publish_unit(good[start : start + UNIT_EVENTS_MAX])

    def _event_of(self, line: Line) -> tuple[Event, str | None]:
        if line.text is None:
            raise errors.PayloadTooLarge(
                type=self._shaping.contract.type, size_bytes=line.size_bytes, limit_bytes=self._bytes_max
            )
        return self._shaping.event(line.text, self._bytes_max)

    async def _publish_unit(self, good: list[Ready]) -> None:
        """Publish lines together; where that is refused, each by itself."""
        try:
            receipts = await self._app.publish([(one.event, one.options) for one in good])
        except errors.EventError:
            await self._publish_each(good)
            return
        for one, receipt in zip(good, receipts, strict=True):
            self._tell(receipt, one.line)

    async def _publish_each(self, good: list[Ready]) -> None:
        """Find the lines that the unit was refused for; the others are published all the same."""
        for one in good:
            try:
                (receipt,) = await self._app.publish([(one.event, one.options)])
            except errors.EventError as fault:
                self._refuse(one.line, fault)
            else:
                self._tell(receipt, one.line)

    def _tell(self, receipt: Published, line: Line) -> None:
        self._duplicates += receipt.duplicate
        _tell(receipt, line)

    def _refuse(self, line: Line, fault: errors.EventError) -> None:
        self._failed += 1
        show_error(fault, f"line {line.number}: ")


def _size_of(source: int) -> int | None:
    """Return how many bytes a file has; ``None`` for what has no end in sight."""
    about = os.fstat(source)
    return about.st_size if stat.S_ISREG(about.st_mode) else None


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
            if self._number == 1:
                text = text.removeprefix(codecs.BOM_UTF8)  # noqa: PLW2901 - as some editors begin a file
            if self._dropped_bytes:
                yield Line(self._number, None, self._dropped_bytes + len(text))
                self._dropped_bytes = 0
            elif text.strip():
                yield Line(self._number, text, len(text))
        self._rest = rest
        if self._dropped_bytes or len(rest) > self._bytes_max:
            self._dropped_bytes += len(rest)
            self._rest = b""
