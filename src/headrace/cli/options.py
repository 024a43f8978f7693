"""Options that several commands have, and the form of their help."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace import errors


def not_empty(text: str | None) -> str | None:
    """Refuse the name of an event that a script has left blank."""
    if not text and text is not None:
        raise errors.CommandInvalid(
            problem="the id of the event is empty", hint="``headrace tail`` prints events with their ids"
        )
    return text


Journal = Annotated[
    str | None,
    typer.Option(
        "--journal",
        help="Where events are kept. [env: HEADRACE_JOURNAL; default: headrace.db]",
        show_default=False,
    ),
]
Index = Annotated[
    str | None,
    typer.Option(
        "--index",
        help="The database beside a journal on Kafka. [env: HEADRACE_INDEX; default: headrace.index.db]",
        show_default=False,
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
JsonLines = Annotated[bool, typer.Option("--jsonl", help="Print one JSON object per line.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Target = Annotated[
    str, typer.Argument(metavar="MODULE:APP", help="The app, such as app:app.", show_default=False)
]
EventId = Annotated[
    str,
    typer.Argument(
        metavar="EVENT",
        help="Its id; a beginning that no other has (16 digits: 12 are the time); or the name that its"
        " publisher gave it.",
        show_default=False,
        callback=not_empty,
    ),
]
TopicName = Annotated[str | None, typer.Option("--topic", help="Of this topic.", show_default=False)]
TypeName = Annotated[str | None, typer.Option("--type", help="Of this event type.", show_default=False)]


def examples(*lines: str, more: str = "") -> str:
    """Return the end of a help text: commands that can be copied."""
    shown = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
    return f"{shown}\n\n{more}" if more else shown
