"""``headrace erase``: removes what the journal holds of a person, for good."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from uuid import UUID

import typer

from headrace import errors
from headrace.cli.options import DryRun, Journal, Json, TopicName, Yes, examples
from headrace.cli.output import Exit, confirmed, counted, put, put_json, put_table, say, show_error, warn

if TYPE_CHECKING:
    from headrace.ports.care import Care, Erased

_EPILOG = examples(
    "headrace erase --key customer-4711 --dry-run",
    "headrace erase --key customer-4711 --effects --yes",
    more="Out of reach: backups made before, logs and files of your own code, what handlers have sent"
    " elsewhere, snapshots of the disk.",
)
_KEPT = (
    "not reached: backups made before, logs and files of your own code, what handlers have sent elsewhere,"
    " snapshots of the disk"
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("erase", epilog=_EPILOG)(_erase)


def _erase(
    keys: Annotated[
        list[str], typer.Option("--key", help="Of events with this key; may be repeated.", show_default=False)
    ],
    topic: TopicName = None,
    effects: Annotated[
        bool, typer.Option("--effects", help="Also what follows from them under other keys, or none.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    journal: Journal = None,
    as_json: Json = False,
) -> int:
    """Remove payloads, headers and dead letters of a key for good, and rewrite the file without them.

    Ids and causes stay, so that a repeated publish has no effect. What was still to be handled is closed as
    expired (erased). An event of topic headrace.erasures says how much it was; of the key it holds a salted
    hash. Workers may run; while the file is rewritten they wait. Exit code 1 when a reader keeps old pages in
    the WAL.
    """
    from headrace.cli.access import cared

    if "" in keys:
        raise errors.CommandInvalid(
            problem="--key is empty", hint="an event has no such key; --key customer-4711"
        )

    def erased(*, dry_run: bool) -> tuple[str, Erased]:
        async def work(care: Care) -> tuple[str, Erased]:
            return care.address, await care.erase(keys, topic, effects=effects, dry_run=dry_run)

        return cared(journal, "erase", work)

    path, found = erased(dry_run=True)
    if not dry_run:
        if not confirmed(f"erase {_told(found)} for good?", yes=yes):
            say("nothing was erased")
            return Exit.NO
        path, found = erased(dry_run=False)
    if as_json:
        put_json(_document(path, found, dry_run=dry_run))
    else:
        _put_text(found, dry_run=dry_run)
    if found.holder:
        show_error(errors.WalHeld(path=path, holder=found.holder))
    return Exit.NO if found.holder else Exit.DONE


def _told(found: Erased) -> str:
    told = [counted(found.events, "event"), counted(found.letters, "dead letter")]
    waiting = f" ({found.expired:,} still to be handled)" if found.expired else ""
    return " and ".join(told) + waiting


def _put_text(found: Erased, *, dry_run: bool) -> None:
    put_table(("TOPIC", "EVENTS"), sorted(found.topics.items()), numbers=[1])
    put(f"{_told(found)} {'would be' if dry_run else 'are'} erased")
    if found.effects:
        warn(f"{counted(found.effects, 'event')} that follow under other keys, or none, keep their payload;"
             " --effects takes them too")  # fmt: skip
    say(_KEPT)


def _document(path: str, found: Erased, *, dry_run: bool) -> dict[str, Any]:
    return {
        "journal": path,
        "dry_run": dry_run,
        "events": found.events,
        "topics": found.topics,
        "dead_letters": found.letters,
        "expired": found.expired,
        "effects_kept": found.effects,
        "event_id": None if found.event_id is None else UUID(bytes=found.event_id),
        "holder": found.holder or None,
    }
