"""``headrace index``: the database beside a journal on Kafka, made again from the log or compared with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headrace.cli.options import Index, Journal, Json, examples
from headrace.cli.output import Exit, Progress, counted, paint, put, put_json, warn

if TYPE_CHECKING:
    from headrace.ports.upkeep import Progressed, Upkeep

T = TypeVar("T")

Topics = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        help="Also this topic, which no handler consumes and no app has used lately; may be repeated.",
        show_default=False,
    ),
]


def add_to(top: typer.Typer) -> None:
    """Add the commands."""
    index = typer.Typer(
        no_args_is_help=True, rich_markup_mode=None, help="The database beside a journal on Kafka."
    )
    index.command(
        "rebuild", epilog=examples("headrace index rebuild", "headrace index rebuild --topic routed --json")
    )(_rebuild)
    index.command("verify", epilog=examples("headrace index verify", "headrace index verify --json"))(_verify)
    top.add_typer(index, name="index")


def _rebuild(
    topics: Topics = None, journal: Journal = None, index: Index = None, as_json: Json = False
) -> int:
    """Drop the index and make it again from the topics alone; workers may wait, or go on meanwhile.

    Nothing is handled again. Ids of events that retention has deleted are kept, if they are still there.
    """
    found = _run(journal, index, lambda upkeep, told: upkeep.rebuild(topics or [], told), make=True)
    if as_json:
        put_json(found._asdict())
    else:
        names = ", ".join(found.topics) or "no topic"
        put(f"{counted(found.events, 'event')} indexed of {names}, {found.seconds:,.1f} s")
    return Exit.DONE


def _verify(journal: Journal = None, index: Index = None, as_json: Json = False) -> int:
    """Compare every id of the index with the topics; exit 1 with a list of what is not as it should be.

    ``headrace index rebuild`` mends it.
    """
    found = _run(journal, index, lambda upkeep, told: upkeep.verify(told), make=False)
    if as_json:
        violations = [one._asdict() for one in found.violations]
        put_json({"topics": found.topics, "records": found.records, "violations": violations})
    else:
        sound = paint("clean", "green") if not found.violations else paint("NOT CLEAN", "red")
        names = ", ".join(found.topics) or "no topic"
        put(f"index: {sound} ({counted(found.records, 'record')} in {names})")
        for one in found.violations:
            warn(f"index: {one.rule}: {one.where}")
    return Exit.NO if found.violations else Exit.DONE


def _run(
    journal: str | None, index: str | None, work: Callable[[Upkeep, Progressed], Awaitable[T]], *, make: bool
) -> T:
    from headrace.cli.access import maintaining

    async def whole() -> T:
        bar = Progress(None)
        async with maintaining(journal, index, make=make) as upkeep:
            try:
                return await work(upkeep, bar.told)
            finally:
                bar.end()

    return asyncio.run(whole())
