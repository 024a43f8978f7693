"""``headrace model``: which version has handled what, and which one takes events from now on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.calibrate import EPILOG, calibrate
from headrace.cli.options import Index, Journal, Json, examples
from headrace.cli.output import Exit, paint, put, put_json, put_table

if TYPE_CHECKING:
    from headrace.ports import VersionInfo
    from headrace.ports.history import History

Handler = Annotated[
    str | None, typer.Argument(metavar="HANDLER", help="app.function, or function.", show_default=False)
]


def add_to(top: typer.Typer) -> None:
    """Add the commands."""
    model = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="Versions of handlers and their models."
    )
    model.command(
        "history", epilog=examples("headrace model history", "headrace model history support.route --json")
    )(_history)
    model.command(
        "activate",
        epilog=examples(
            "headrace model activate support.route intent@1",
            "headrace model activate support.route 1+intent@2:233be5dc586a",
        ),
    )(_activate)
    model.command("calibrate", epilog=EPILOG)(calibrate)
    top.add_typer(model, name="model")


# --- history ----------------------------------------------------------------------------------


def _history(
    handler: Handler = None, journal: Journal = None, index: Index = None, as_json: Json = False
) -> int:
    """Show, per handler and partition, which version handled which offsets, and count them.

    Exit code 1 when an event was handled by no version, or by two.
    """
    from headrace.cli.access import looked

    found = looked(journal, index, lambda at: at.histories(handler))
    if as_json:
        put_json([_entry(one) for one in found])
    else:
        for one in found:
            _put_text(one)
    return Exit.NO if any(one.neither or one.both for one in found) else Exit.DONE


def _put_text(one: History) -> None:
    active = one.active.name if one.active else "none"
    put(f"{paint(one.handler, 'bold')}: active version {active}")
    for version in one.versions:
        replayed = one.replayed.get(version.id, 0)
        beside = f", and {replayed:,} in replays" if replayed else ""
        put(f"  {version.name} has handled {one.handled[version.id]:,}{beside}")
    fine = not (one.neither or one.both)
    open_sum = f"taken {one.taken:,}, unfinished {one.unfinished:,}"
    sums = f"{open_sum}, by neither {one.neither:,}, by both {one.both:,}"
    put(f"  {sums}: {paint('sound', 'green') if fine else paint('NOT SOUND', 'red')}")
    if one.ranges:
        put()
        put_table(
            ("PARTITION", "FROM", "TO", "VERSION", "HANDLED", "UNFINISHED", "BY OTHERS"),
            [
                (part.partition, part.first, part.last, part.version.name, part.handled, part.unfinished,
                 _others(part.exceptions))
                for part in one.ranges
            ],
            numbers=(0, 1, 2, 4, 5),
        )  # fmt: skip
    put()


def _others(exceptions: tuple[tuple[int, VersionInfo], ...]) -> str:
    counts: dict[str, int] = {}
    for _, version in exceptions:
        counts[version.name] = counts.get(version.name, 0) + 1
    return ", ".join(f"{name}: {count:,}" for name, count in counts.items()) or "-"


def _entry(one: History) -> dict[str, Any]:
    return {
        "handler": one.handler,
        "active_version": one.active.name if one.active else None,
        "versions": [
            {
                "version": known.name,
                "handled": one.handled[known.id],
                "replayed": one.replayed.get(known.id, 0),
            }
            for known in one.versions
        ],
        "taken": one.taken,
        "unfinished": one.unfinished,
        "neither": one.neither,
        "both": one.both,
        "ranges": [
            {
                "partition": part.partition,
                "from_offset": part.first,
                "to_offset": part.last,
                "version": part.version.name,
                "handled": part.handled,
                "unfinished": part.unfinished,
                "exceptions": [
                    {"offset": offset, "version": version.name} for offset, version in part.exceptions
                ],
            }
            for part in one.ranges
        ],
    }


# --- activate ---------------------------------------------------------------------------------


def _activate(
    handler: Annotated[str, typer.Argument(metavar="HANDLER", help="app.function.", show_default=False)],
    version: Annotated[
        str,
        typer.Argument(
            metavar="VERSION",
            help="Its whole name, model@epoch, @epoch, or a part that no other has.",
            show_default=False,
        ),
    ],
    journal: Journal = None,
    index: Index = None,
    as_json: Json = False,
) -> int:
    """Make a known version the one that takes events from now on.

    What is in hand ends on the version it was claimed with; nothing is handled again.
    """
    found = asyncio.run(_activated(journal, index, handler, version))
    if as_json:
        put_json({"handler": handler, "active_version": found.name})
    else:
        put(f"{handler}: {found.name} is active")
    return Exit.DONE


async def _activated(journal: str | None, index: str | None, handler: str, version: str) -> VersionInfo:
    from headrace.cli.access import deciding

    async with deciding(journal, index) as desk:
        return await desk.activate(handler, version)
