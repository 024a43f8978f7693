"""``headrace compact``: gives what a journal no longer needs back to the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import errors
from headrace.cli.options import Journal, Json, examples
from headrace.cli.output import Exit, Progress, confirmed, put, put_json, say, show_error

if TYPE_CHECKING:
    from headrace.ports.care import Care, Compacted, Size

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
    drawn: list[Progress] = []

    def told(done: int, total: int) -> None:
        if not drawn:
            drawn.append(Progress(total))
        drawn[0].at(done)

    async def work(care: Care) -> tuple[str, Compacted]:
        return care.address, await care.compact(told, whole=whole)

    try:
        path, found = cared(journal, "compact", work)
    finally:
        for one in drawn:
            one.end()
    if as_json:
        put_json(_document(path, found))
    else:
        put(f"file {_mib(found.before.file_bytes)} -> {_mib(found.after.file_bytes)},"
            f" WAL {_mib(found.before.wal_bytes)} -> {_mib(found.after.wal_bytes)},"
            f" free inside {_mib(found.before.free_bytes)} -> {_mib(found.after.free_bytes)}")  # fmt: skip
    if found.holder:
        show_error(errors.WalHeld(path=path, holder=found.holder))
    return Exit.NO if found.holder else Exit.DONE


def _mib(size: int) -> str:
    return f"{size / (1 << 20):,.1f} MiB"


def _document(path: str, found: Compacted) -> dict[str, Any]:
    def entry(size: Size) -> dict[str, int]:
        return size._asdict()

    return {
        "journal": path,
        "before": entry(found.before),
        "after": entry(found.after),
        "holder": found.holder or None,
    }
