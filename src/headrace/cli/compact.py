"""``headrace compact``: gives what a journal no longer needs back to the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import errors
from headrace.cli.options import Journal, Json, examples
from headrace.cli.output import Exit, Progress, confirmed, mib, put, put_json, say, show_error

if TYPE_CHECKING:
    from headrace.ports.care import Care, Compacted

_EPILOG = examples("headrace compact", "headrace compact --whole --yes", "headrace compact --json")


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("compact", epilog=_EPILOG)(_compact)


def _compact(
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Rewrite the file: smallest, but workers and publishers wait meanwhile."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask (--whole asks).")] = False,
    journal: Journal = None,
    as_json: Json = False,
) -> int:
    """Give free pages of the journal back to the disk, in short steps beside workers, and empty its WAL.

    Exit code 1 when a reader keeps the WAL from being emptied.
    """
    from headrace.cli.access import cared

    if whole and not confirmed(
        "rewrite the file? workers and publishers wait for as long as it takes", yes=yes
    ):
        say("nothing was changed")
        return Exit.NO
    bar = Progress(None)

    async def work(care: Care) -> tuple[str, Compacted]:
        return care.address, await care.compact(bar.told, whole=whole)

    try:
        path, found = cared(journal, "compact", work)
    finally:
        bar.end()
    if as_json:
        put_json(_document(path, found))
    else:
        put(f"file {mib(found.before.file_bytes)} -> {mib(found.after.file_bytes)},"
            f" WAL {mib(found.before.wal_bytes)} -> {mib(found.after.wal_bytes)},"
            f" free inside {mib(found.before.free_bytes)} -> {mib(found.after.free_bytes)}")  # fmt: skip
    if found.holder:
        show_error(errors.WalHeld(path=path, holder=found.holder))
    return Exit.NO if found.holder else Exit.DONE


def _document(path: str, found: Compacted) -> dict[str, Any]:
    return {
        "journal": path,
        "before": found.before._asdict(),
        "after": found.after._asdict(),
        "holder": found.holder or None,
    }
