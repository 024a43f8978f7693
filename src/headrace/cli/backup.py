"""``headrace backup``: a copy of the journal at one moment, made while workers run."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.cli.options import Journal, Json, examples
from headrace.cli.output import Exit, counted, mib, put, put_json

_EPILOG = examples(
    "headrace backup backups/monday.db",
    "headrace backup /mnt/other/headrace.db --json",
    more="To restore: stop workers and publishers, put the copy in place of the journal, without the -wal and"
    " -shm that lie there, start again.",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("backup", epilog=_EPILOG)(_backup)


def _backup(
    target: Annotated[
        str, typer.Argument(metavar="TO", help="A file that does not exist.", show_default=False)
    ],
    journal: Journal = None,
    as_json: Json = False,
) -> int:
    """Copy the journal as it is at one moment; nobody has to stop.

    The copy is checked as `headrace status --verify` would, and has its name only when it is whole.
    """
    from headrace.cli.access import cared

    found = cared(journal, "backup", lambda care: care.backup(target))
    if as_json:
        put_json(found._asdict())
    else:
        told = f"{counted(found.events, 'event')}, {mib(found.size_bytes)}"
        put(f"{found.path}: {told}, verified, {found.seconds:,.1f} s")
    return Exit.DONE
