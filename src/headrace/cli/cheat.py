"""``headrace cheat``: the commands of a working week on one screen."""

from __future__ import annotations

import typer

from headrace.cli.options import Json, examples
from headrace.cli.output import Exit, paint, put, put_json

#: What somebody wants, and the command that does it; 24 lines of 80 characters are the smallest terminal.
RECIPES = (
    ("start a project", "headrace new support"),
    ("work on it, with reload", "headrace dev app:app"),
    ("is the app fit?", "headrace check app:app"),
    ("run it for good", "headrace run app:app --workers 4"),
    ("publish one event", "headrace publish app:app Ticket '{...}'"),
    ("a file, repeatably", "headrace publish app:app Ticket @a.jsonl --id-field id"),
    ("watch events", "headrace tail --follow --type Routed"),
    ("what happened at nine", "headrace tail --from 2026-05-04T09:00 --limit 20"),
    ("event and what followed", "headrace show EVENT"),
    ("why did it die", "headrace why EVENT"),
    ("how far is everything", "headrace status"),
    ("dead letters, and again", "headrace dlq ls; headrace dlq redrive --dry-run"),
    ("which version did what", "headrace model history"),
    ("back to the old model", "headrace model activate support.route intent@1"),
    ("how sure is the model", "headrace model calibrate app:app route labels.jsonl"),
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
