"""``headrace handler``: who serves a journal, and the end of a handler that is no longer wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import DryRun, Index, Journal, Json, Yes, examples
from headrace.cli.output import Exit, confirmed, counted, put, put_json, put_table, say

if TYPE_CHECKING:
    from headrace.ports.care import Retired
    from headrace.ports.history import RetiredOne
    from headrace.ports.look import Look, Progress


def add_to(top: typer.Typer) -> None:
    """Add the commands."""
    handler = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The handlers of a journal.")
    handler.command("ls", epilog=examples("headrace handler ls", "headrace handler ls --json"))(_ls)
    handler.command(
        "retire",
        epilog=examples(
            "headrace handler retire support.route --dry-run", "headrace handler retire route --yes"
        ),
    )(_retire)
    top.add_typer(handler, name="handler")


def _ls(journal: Journal = None, index: Index = None, as_json: Json = False) -> int:
    """List the handlers that a journal knows, those that were retired too."""
    from headrace.cli.access import looked

    async def look(at: Look) -> tuple[list[Progress], list[RetiredOne]]:
        return await at.progress(), await at.retired()

    live, retired = looked(journal, index, look)
    found = [*(_entry(one, "live") for one in live), *(_entry(one, "retired") for one in retired)]
    if as_json:
        put_json({"handlers": found})
        return Exit.DONE
    head = ("HANDLER", "TOPIC", "STATE", "VERSION", "WAITING", "DONE", "DEAD", "EXPIRED", "WORKERS")
    rows = [[value for name, value in one.items() if name != "running"] for one in found]
    put_table(head, rows, numbers=range(4, 9))
    return Exit.DONE


def _entry(one: Progress | RetiredOne, state: str) -> dict[str, Any]:
    active = getattr(one, "active", None)
    return {
        "handler": one.handler,
        "topic": one.topic,
        "state": state,
        "active_version": active.name if active else None,
        "waiting": getattr(one, "waiting", 0),
        "running": getattr(one, "running", 0),
        "done": one.done,
        "dead": one.dead,
        "expired": one.expired,
        "workers_serving": getattr(one, "serving", 0),
    }


def _retire(
    handler: Annotated[
        str, typer.Argument(metavar="NAME", help="app.function, or function.", show_default=False)
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    journal: Journal = None,
    as_json: Json = False,
) -> int:
    """End a handler: what it has open is closed as expired, and retention no longer waits for it.

    A worker that serves it later goes on behind what was taken; what was closed stays closed.
    """
    from headrace.cli.access import cared

    found = cared(journal, "handler retire", lambda care: care.retire(handler, dry_run=True))
    if not dry_run:
        if not confirmed(f"retire {found.handler}: {_told(found)}?", yes=yes):
            say("nothing was changed")
            return Exit.NO
        found = cared(journal, "handler retire", lambda care: care.retire(handler, dry_run=False))
    if as_json:
        put_json(found._asdict() | {"dry_run": dry_run})
    else:
        put(f"{found.handler} {'would be' if dry_run else 'is'} retired: {_told(found)}")
    return Exit.DONE


def _told(found: Retired) -> str:
    return f"{counted(found.closed, 'open event')} closed, {found.untaken:,} not taken"
