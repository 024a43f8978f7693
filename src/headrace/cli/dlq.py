"""``headrace dlq``: list dead letters, look at one, make events waiting again, put letters away."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import errors
from headrace.cli.options import DryRun, Index, Journal, Json, JsonLines, TypeName, Yes, examples
from headrace.cli.output import (
    Exit,
    confirmed,
    counted,
    iso,
    paint,
    plain,
    put,
    put_facts,
    put_json,
    put_json_line,
    put_table,
    say,
    shortened,
    show_error,
    width_of,
)

if TYPE_CHECKING:
    from headrace.ports.look import Decided, Filter, Letter, Look

Letters = Annotated[
    list[str] | None,
    typer.Argument(metavar="LETTER", help="Numbers of dead letters, or ids of events.", show_default=False),
]
HandlerName = Annotated[
    str | None,
    typer.Option("--handler", help="Of this handler (app.function or function).", show_default=False),
]
Reason = Annotated[
    str | None,
    typer.Option("--reason", help="With this reason, such as failed or crash.", show_default=False),
]

_NAMES = "a dead letter is named by its number, or by the id of its event; ``headrace dlq ls`` lists them"


def add_to(top: typer.Typer) -> None:
    """Add the commands."""
    dlq = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Dead letters: events put aside.")
    dlq.command(
        "ls", epilog=examples("headrace dlq ls", "headrace dlq ls --handler route --reason failed --jsonl")
    )(_ls)
    dlq.command("show", epilog=examples("headrace dlq show 12", "headrace dlq show 12 --json"))(_show)
    dlq.command(
        "redrive",
        help="Make dead events waiting again, for the active version of their handler.",
        epilog=examples(
            "headrace dlq redrive 12",
            "headrace dlq redrive --handler route --dry-run",
            "headrace dlq redrive --reason failed --yes",
        ),
    )(_deciding("redrive", "redriven"))
    dlq.command(
        "drop",
        help="Put dead letters away; they stay counted as dead, and `dlq ls --all` still lists them.",
        epilog=examples("headrace dlq drop 12", "headrace dlq drop --type Ticket --yes"),
    )(_deciding("drop", "dropped"))
    top.add_typer(dlq, name="dlq")


# --- looking ----------------------------------------------------------------------------------


def _ls(
    handler: HandlerName = None,
    reason: Reason = None,
    kind: TypeName = None,
    decided: Annotated[bool, typer.Option("--all", help="Also those that were redriven or dropped.")] = False,
    journal: Journal = None,
    index: Index = None,
    jsonl: JsonLines = False,
) -> int:
    """List dead letters, oldest first."""
    from headrace.cli.access import looked
    from headrace.ports.look import Filter

    wanted = Filter(handler, reason, kind, decided)
    found = looked(journal, index, lambda at: at.letters(wanted))
    if jsonl:
        for one in found:
            put_json_line(_entry(one))
        return Exit.DONE
    if not found:
        say("no dead letters")
        return Exit.DONE
    room = max(30, width_of() - 90)
    put_table(
        ("ID", "DIED", "HANDLER", "TYPE", "REASON", "CODE", "ATTEMPTS", "FATE", "ERROR"),
        [
            (
                one.id, f"{one.died:%Y-%m-%d %H:%M:%S}", _whose(one), one.type, one.reason, one.code,
                one.attempts, _fate(one), shortened(one.error.replace("\n", " "), room),
            )
            for one in found
        ],
        numbers=(0, 6),
    )  # fmt: skip
    return Exit.DONE


def _whose(one: Letter) -> str:
    return f"{one.handler} ({one.replay})" if one.replay else one.handler


def _fate(one: Letter) -> str:
    if one.fate is not None:
        return one.fate
    return "again, for the same reason" if one.again else "-"


def _show(
    letter: Annotated[
        str, typer.Argument(metavar="LETTER", help="Its number, or the id of its event.", show_default=False)
    ],
    journal: Journal = None,
    index: Index = None,
    as_json: Json = False,
) -> int:
    """Print a dead letter: error, traceback, attempts, original bytes."""
    from headrace.cli.access import looked

    found = looked(journal, index, lambda at: _named(at, letter))
    if as_json:
        put_json(_entry(found[-1], whole=True) | {"earlier": [one.id for one in found[:-1]]})
        return Exit.DONE
    _put_letter(found[-1])
    return Exit.DONE


async def _named(look: Look, text: str) -> list[Letter]:
    """Return the dead letters that a text names; where there are none the hint is about letters."""
    if not text:
        raise errors.CommandInvalid(problem="the number of the dead letter is empty", hint=_NAMES)
    try:
        return await look.named(text)
    except errors.EventNotFound as fault:
        if fault.hint != errors.EventNotFound().hint:
            raise  # it names candidates
        raise errors.EventNotFound("There is no such dead letter.", hint=_NAMES, event_id=text) from None


def _put_letter(one: Letter) -> None:
    from headrace.cli.events import put_event

    put(f"{paint('dead letter', 'bold')} {one.id}: {plain(one.error, lines=True)}")
    put_facts(
        {
            "reason": f"{one.reason} [{one.code}]",
            "handler": f"{one.handler}, version {one.version}",
            "replay": one.replay,
            "died": iso(one.died),
            "attempts": one.attempts,
            "process died": one.crashes or None,
            "redriven": one.generation or None,
            "fate": one.fate,
            "refused": one.refused,
            "again": "it died for the same reason before it was redriven" if one.again else None,
        }
    )
    for number, text in enumerate(one.errors, 1):
        put(f"  attempt {number}: {plain(text)}")
    if one.traceback:
        put()
        put(plain(one.traceback.rstrip(), lines=True))
    put()
    put_event(one.event)


def _entry(one: Letter, *, whole: bool = False) -> dict[str, Any]:
    from headrace.cli.events import event_json

    found: dict[str, Any] = {
        "id": one.id,
        "died": one.died,
        "handler": one.handler,
        "version": one.version,
        "replay": one.replay or None,
        "type": one.type,
        "event_id": one.event.envelope.event_id,
        "topic": one.event.envelope.topic,
        "offset": one.event.envelope.offset,
        "key": one.event.envelope.key,
        "reason": one.reason,
        "code": one.code,
        "error": one.error,
        "attempts": one.attempts,
        "crashes": one.crashes,
        "generation": one.generation,
        "again": one.again,
        "fate": one.fate,
        "refused": one.refused or None,
    }
    if whole:
        found |= {
            "errors": list(one.errors),
            "traceback": one.traceback,
            "event": event_json(one.event),
        }
    return found


# --- deciding ---------------------------------------------------------------------------------


def _deciding(verb: str, done: str) -> Callable[..., int]:
    """Return the command of a decision: the same options for each."""

    def decide(  # noqa: PLR0913, PLR0917 - one parameter per option
        letters: Letters = None,
        handler: HandlerName = None,
        reason: Reason = None,
        kind: TypeName = None,
        dry_run: DryRun = False,
        yes: Yes = False,
        journal: Journal = None,
        index: Index = None,
        as_json: Json = False,
    ) -> int:
        from headrace.ports.look import Filter

        decision = Decision((journal, index), verb, done, dry_run=dry_run, yes=yes, as_json=as_json)
        return asyncio.run(decision.run(letters or [], Filter(handler, reason, kind)))

    return decide


class Decision:
    """One redrive or drop: which letters, the question, the deed, the counts before and after."""

    def __init__(
        self, where: tuple[str | None, str | None], verb: str, done: str, *, dry_run: bool, yes: bool,
        as_json: bool,
    ) -> None:  # fmt: skip
        self._where, self._verb, self._done = where, verb, done
        self._dry_run, self._yes, self._as_json = dry_run, yes, as_json

    async def run(self, named: list[str], wanted: Filter) -> int:
        """Decide, and tell; returns the exit code."""
        from headrace.cli.access import reading

        filtered = wanted != type(wanted)()
        if bool(named) == filtered:
            problem = (
                "letters and filters do not go together" if named else "it does not say which dead letters"
            )
            hint = "name letters, or give --handler, --reason or --type"
            raise errors.CommandInvalid(problem=problem, hint=hint)
        async with reading(*self._where) as look:
            letters = await self._letters(look, named, wanted)
            before = await look.left()
            if letters and not self._dry_run:
                question = f"{self._verb} {len(letters):,} of {counted(before, 'dead letter')}?"
                if not confirmed(question, yes=self._yes):
                    say("nothing was done")
                    return Exit.NO
            decided = await self._decide(letters) if letters else []
            self._tell(decided, before, await look.left())
        return Exit.NO if any(one.problem for one in decided) else Exit.DONE

    async def _letters(self, look: Look, named: list[str], wanted: Filter) -> list[Letter]:
        if not named:
            return await look.letters(wanted)
        found: dict[int, Letter] = {}
        for text in named:
            several = await _named(look, text)
            # An event may have died for several handlers, and after a redrive: the undecided count.
            open_ones = [one for one in several if one.fate is None] or several[-1:]
            found |= {one.id: one for one in open_ones}
        return list(found.values())

    async def _decide(self, letters: list[Letter]) -> list[Decided]:
        from headrace.cli.access import deciding

        async with deciding(*self._where) as desk:
            if self._dry_run:
                return await desk.refusals(letters, drop=self._verb == "drop")
            return await (desk.redrive if self._verb == "redrive" else desk.drop)(letters)

    def _tell(self, decided: list[Decided], before: int, after: int) -> None:
        refused = [one for one in decided if one.problem]
        count = len(decided) - len(refused)
        if self._as_json:
            put_json(
                {
                    "matched": len(decided),
                    self._done: count,
                    "refused": [one._asdict() for one in refused],
                    "before": before,
                    "after": after,
                    "dry_run": self._dry_run,
                }
            )
            return
        for one in refused:
            show_error(errors.RedriveRefused(dead_id=one.id, problem=one.problem))
        would = "would be " if self._dry_run else ""
        put(
            f"{count:,} {would}{self._done}, {len(refused):,} refused;"
            f" dead letters: {before:,} before, {after:,} after"
        )
