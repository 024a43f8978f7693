"""``headrace handler``: who serves a journal, and the end of a handler that is no longer wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

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
            "headrace handler retire support.route --dry-run",
            "headrace handler retire route --yes",
        ),
    )(_retire)
    top.add_typer(handler, name="handler")


def _ls(journal: Journal = None, index: Index = None, as_json: Json = False) -> int:
    """List the handlers that a journal knows, those that were retired too."""
    from headrace.cli.access import looked

    async def look(at: Look) -> tuple[list[Progress], list[RetiredOne]]:
        return await at.progress(), await at.retired()

    live, retired = looked(journal, index, look)
    found = [*map(_live, live), *map(_gone, retired)]
    if as_json:
        put_json({"handlers": [one._asdict() for one in found]})
        return Exit.DONE
    put_table(
        ("HANDLER", "TOPIC", "STATE", "VERSION", "WAITING", "DONE", "DEAD", "EXPIRED", "WORKERS"),
        [
            (
                one.handler, one.topic, one.state, one.active_version, one.waiting, one.done, one.dead,
                one.expired, one.workers_serving,
            )
            for one in found
        ],
        numbers=range(4, 9),
    )  # fmt: skip
    return Exit.DONE


class Entry(NamedTuple):
    """One handler, as it is told to programs."""

    handler: str
    topic: str
    #: ``live`` or ``retired``.
    state: str
    active_version: str | None
    waiting: int
    running: int
    done: int
    dead: int
    expired: int
    workers_serving: int


def _live(one: Progress) -> Entry:
    return Entry(
        one.handler,
        one.topic,
        "live",
        active_version=one.active.name if one.active is not None else None,
        waiting=one.waiting,
        running=one.running,
        done=one.done,
        dead=one.dead,
        expired=one.expired,
        workers_serving=one.serving,
    )


def _gone(one: RetiredOne) -> Entry:
    """Return what is known of a retired one: nothing waits for it, and nobody serves it."""
    return Entry(
        one.handler,
        one.topic,
        "retired",
        active_version=None,
        waiting=0,
        running=0,
        done=one.done,
        dead=one.dead,
        expired=one.expired,
        workers_serving=0,
    )


def _retire(
    handler: Annotated[
        str, typer.Argument(metavar="NAME", help="app.function, or function.", show_default=False)
    ],
    replays: Annotated[
        bool, typer.Option("--replays", help="Give up its unfinished replays; the handler itself goes on.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    journal: Journal = None,
    as_json: Json = False,
) -> int:
    """End a handler: what it has open is closed as expired, and retention no longer waits for it.

    So it is with its replays that are not finished. A worker that serves it later goes on behind what was
    taken; what was closed stays closed.
    """
    from headrace.cli.access import cared

    def retired(*, dry_run: bool) -> Retired:
        return cared(
            journal,
            "handler retire",
            lambda care: care.retire(handler, dry_run=dry_run, replays_only=replays),
        )

    found = retired(dry_run=True)
    what = f"{'replays of ' if replays else ''}{found.handler}"
    if not dry_run:
        if not confirmed(f"retire {what}: {_told(found, replays)}?", yes=yes):
            say("nothing was changed")
            return Exit.NO
        found = retired(dry_run=False)
    if as_json:
        put_json(found._asdict() | {"dry_run": dry_run})
    else:
        are = "are" if replays else "is"
        put(f"{what} {'would be' if dry_run else are} retired: {_told(found, replays)}")
    return Exit.DONE


def _told(found: Retired, replays: bool) -> str:
    told = [] if replays else [f"{counted(found.closed, 'open event')} closed, {found.untaken:,} not taken"]
    if found.replays:
        left = counted(found.replayed_closed, "event")
        told.append(f"{counted(found.replays, 'unfinished replay')} given up with {left}")
    return "; ".join(told)
