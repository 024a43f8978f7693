"""``headrace copy``: move a journal from SQLite to Kafka, with all that its handlers have come to."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from headrace import errors
from headrace.cli.options import DryRun, Json, Yes, examples
from headrace.cli.output import Exit, Progress, confirmed, counted, put, put_json, put_table, say

if TYPE_CHECKING:
    from headrace.journal.kafka.copy import Copy, Report
    from headrace.journal.kafka.journal import KafkaJournal
    from headrace.journal.source import Source

_EPILOG = examples(
    "headrace copy --from headrace.db --to kafka://localhost:9092 --index postgresql://... --dry-run",
    "headrace copy --from sqlite:///var/lib/support/headrace.db --to kafka://a:9092,b:9092 --yes",
    more="Stop workers and publishers of the source first, and start nothing on the target before all is"
    " copied. The source is only read. Killed at any time, the same command goes on where it was.",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("copy", epilog=_EPILOG)(_copy)


def _copy(
    source: Annotated[
        str, typer.Option("--from", help="The journal to copy: a path or sqlite:///path.", show_default=False)
    ],
    target: Annotated[
        str, typer.Option("--to", help="The cluster: kafka://host:9092[,...][?...]", show_default=False)
    ],
    index: Annotated[
        str | None,
        typer.Option(
            "--index", help="The index of the target. [env: HEADRACE_INDEX; default: headrace.index.db]",
            show_default=False,
        ),
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    as_json: Json = False,
) -> int:  # fmt: skip
    """Move a journal to Kafka: events, positions, open retries, dead letters, versions and replays."""
    if not target.startswith("kafka://"):
        raise errors.CommandInvalid(
            problem=f"--to names a cluster, and {target!r} does not begin with kafka://"
        )
    return asyncio.run(_run(source, target, index, _Wish(dry_run=dry_run, yes=yes, as_json=as_json)))


class _Wish:
    """How the person wants it."""

    def __init__(self, *, dry_run: bool, yes: bool, as_json: bool) -> None:
        self.dry_run, self.yes, self.as_json = dry_run, yes, as_json


async def _run(path: str, target: str, index: str | None, wish: _Wish) -> int:
    from headrace.app import World
    from headrace.journal.source import Source
    from headrace.settings import load, path_of
    from headrace.wiring import journal_of

    world = World()
    # Before `Copy` is imported: without the client of Kafka this says what to install.
    journal: KafkaJournal = journal_of(load({"journal": target, "index": index}), world)  # type: ignore[assignment]
    source = Source(path_of(path), world.clock)
    try:
        await journal.open()
        try:
            return await _through(source, journal, wish)
        finally:
            await journal.close()
    finally:
        source.close()


async def _through(source: Source, journal: KafkaJournal, wish: _Wish) -> int:
    from headrace.journal.kafka.copy import Copy
    from headrace.world import SystemClock

    bar = Progress(1)

    def step(what: str, done: int, total: int) -> None:
        bar.total = total
        bar.at(done, what)

    copy = Copy(source, journal, SystemClock(), step)
    try:
        if await copy.is_done():
            say(
                f"{source.path} was copied before, and nothing has changed since: start the app on the target"
            )
            if wish.as_json:
                put_json({"from": source.path, "to": journal.address, "copied": False, "already": True})
            return Exit.DONE
        return await _copied(copy, source, journal, wish)
    finally:
        bar.end()
        copy.close()


async def _copied(copy: Copy, source: Source, journal: KafkaJournal, wish: _Wish) -> int:
    told = await copy.check()
    topics = source.topics()
    letters, _ = source.letter_counts()
    events = sum(topic.events for topic in topics)
    summary = (
        f"{counted(events, 'event')} in {counted(len(topics), 'topic')} and {counted(letters, 'dead letter')}"
        f" of {source.path} to {journal.address}"
    )
    for line in told:
        say(line)
    if wish.dry_run:
        say(f"would copy {summary}")
        if wish.as_json:
            put_json({"from": source.path, "to": journal.address, "copied": False, "events": events})
        return Exit.DONE
    if not confirmed(f"Copy {summary}?", yes=wish.yes):
        say("nothing was copied")
        return Exit.NO
    report = await copy.run()
    _put(report, source, journal, as_json=wish.as_json)
    return Exit.DONE


def _put(report: Report, source: Source, journal: KafkaJournal, *, as_json: bool) -> None:
    from headrace.journal.kafka.copy import as_document

    if as_json:
        put_json({"from": source.path, "to": journal.address, "copied": True, **as_document(report)})
        return
    put(f"{source.path} is copied to {journal.address}; every event was read back and is the same")
    put()
    put_table(("TOPIC", "PARTITIONS", "EVENTS", "CHECKSUM"), report.topics, numbers=(1, 2))
    put()
    head = ("HANDLER", "TOPIC", "VERSION", "TAKEN", "DONE", "DEAD", "OPEN")
    put_table(head, report.handlers, numbers=range(3, 7))
    put()
    left = (
        f"; {report.letters_left:,} redriven or dropped ones stay in the source"
        if report.letters_left
        else ""
    )
    replays = f"; {counted(report.replays, 'replay')}" if report.replays else ""
    put(f"{counted(report.letters, 'dead letter')}{left}{replays}")
