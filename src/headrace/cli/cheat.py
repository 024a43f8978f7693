"""``headrace cheat``: the commands of a working week on one screen."""

from __future__ import annotations

import typer

from headrace.cli.options import Json, examples
from headrace.cli.output import Exit, paint, put, put_json

#: What somebody wants, and the command that does it; 24 lines of 80 characters are the smallest terminal.
RECIPES = (
    ("start a project", "headrace new support"),
    ("is the app fit to run?", "headrace check app:app"),
    ("run it for good", "headrace run app:app --workers 4"),
    ("publish one event", "headrace publish app:app Ticket '{...}'"),
    ("publish a file", "headrace publish app:app Ticket @in.jsonl"),
    ("watch events", "headrace tail --follow --type Routed"),
    ("an event and what followed", "headrace show EVENT"),
    ("where is it, why did it die", "headrace why EVENT"),
    ("how far is everything", "headrace status"),
    ("dead letters, and again", "headrace dlq ls; headrace dlq redrive --dry-run"),
    ("which version did what", "headrace model history"),
    ("back to the old model", "headrace model activate support.route intent@1"),
    ("what is set, and where", "headrace settings"),
    ("is the machine fit", "headrace doctor app:app"),
    ("what does this code mean", "headrace explain HR-E103"),
    ("for programs", "headrace status --json; headrace tail --jsonl"),
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("cheat", epilog=examples("headrace cheat", "headrace cheat --json"))(_cheat)


def _cheat(as_json: Json = False) -> int:
    """Show the commands of a working week, to be copied."""
    if as_json:
        put_json([{"wanted": wanted, "command": command} for wanted, command in RECIPES])
        return Exit.DONE
    width = max(len(wanted) for wanted, _ in RECIPES)
    for wanted, command in RECIPES:
        put(f"{paint(wanted.ljust(width), 'dim')}  {command}")
    return Exit.DONE
