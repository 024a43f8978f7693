"""``headrace check``: is an app fit to run?  Handlers, types, models, cycles; nothing is run or written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from headrace import errors
from headrace.cli.access import warn_of_environment
from headrace.cli.options import Json, Target, examples
from headrace.cli.output import Exit, counted, paint, put, put_json, told, warn

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.ports.look import Look, Progress, Topic
    from headrace.runtime.handlers import Handler

_EPILOG = examples("headrace check app:app", "headrace check app:app --json")


class Finding(NamedTuple):
    """Something that is not right."""

    code: str
    where: str
    problem: str
    hint: str


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("check", epilog=_EPILOG)(_check)


def _check(
    target: Target,
    cycles: Annotated[
        bool, typer.Option("--allow-cycles", help="Cycles between handlers are meant; depth_max ends them.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Check the handlers of an app, the types between them, their models; exit 1 with findings."""
    from headrace.cli.target import load

    warn_of_environment()
    app: App | None = None
    strangers: list[str] = []
    try:
        app = load(target)
        found = [*_models(app), *_cycles({} if cycles else app.handlers), *_emptiness(app)]
        strangers = _strangers(app)
    except errors.UsageError:
        raise
    except errors.HeadraceError as fault:  # the app refused itself while it was declared
        found = [_finding(target, fault)]
    for one in strangers:
        warn(one)
    if as_json:
        put_json(_document(target, app, found) | {"warnings": strangers})
    else:
        _put_text(app, found)
    return Exit.NO if found else Exit.DONE


def _finding(where: str, fault: errors.HeadraceError) -> Finding:
    return Finding(fault.code, where, fault.message, fault.hint)


def _models(app: App) -> Iterator[Finding]:
    """Load every model once, as a worker would."""
    for handler in app.handlers.values():
        if handler.model is None:
            continue
        try:
            handler.model.load().close()
        except errors.HeadraceError as fault:
            yield _finding(handler.name, fault)


def _emptiness(app: App) -> Iterator[Finding]:
    if not app.handlers:
        yield Finding("", app.name, "the app has no handlers", "declare one with @app.handler")


def _cycles(handlers: Mapping[str, Handler]) -> Iterator[Finding]:
    """Name handlers that feed each other: with nothing to stop them they run until ``depth_max``."""
    feeds = {
        name: [
            other.name
            for other in handlers.values()
            if any(emitted.type == other.consumes.type for emitted in handler.emits)
        ]
        for name, handler in handlers.items()
    }
    for circle in circles(feeds):
        path = " -> ".join([*circle, circle[0]])
        yield Finding(
            errors.DepthExceeded.code, circle[0], f"handlers feed each other: {path}",
            "break the cycle, or say --allow-cycles if a condition in a handler ends it",
        )  # fmt: skip


def circles(feeds: Mapping[str, list[str]]) -> list[list[str]]:
    """Return one way round for each group of handlers that feed each other, each handler named once."""
    told: set[str] = set()
    found: list[list[str]] = []
    for start in feeds:
        way = _way_back(feeds, start) if start not in told else None
        if way is not None:
            told.update(way)
            found.append(way)
    return found


def _way_back(feeds: Mapping[str, list[str]], start: str) -> list[str] | None:
    """Return the shortest way from a handler to itself."""
    ways = [[start]]
    seen: set[str] = set()
    while ways:
        way = ways.pop(0)
        for following in feeds[way[-1]]:
            if following == start:
                return way
            if following not in seen:
                seen.add(following)
                ways.append([*way, following])
    return None


def _strangers(app: App) -> list[str]:
    """Name handlers that the journal does not know beside those that it knows and the app no longer has.

    A handler that was renamed without a word begins anew: it would handle again what is there.  Only a file
    is looked at, and only one that is there.
    """
    from headrace.cli.access import looked
    from headrace.wiring import on_kafka

    async def look(at: Look) -> tuple[list[Progress], list[Topic]]:
        return await at.progress(), await at.topics()

    journal = app.settings.journal
    if on_kafka(app.settings):
        return []
    try:
        known, topics = looked(journal, None, look)
    except errors.JournalError:  # there is none yet, or others have to say what is wrong
        return []
    served = {one.handler for one in known}
    former = {one.was for one in app.handlers.values()}
    left = [one for one in known if one.handler.startswith(f"{app.name}.")]
    left = [one for one in left if one.handler not in app.handlers and one.handler not in former]
    events = {one.name: one.events for one in topics}
    return [
        f"{one.name} is new to {journal}: it would handle {counted(events.get(old.topic, 0), 'event')} of"
        f" {old.topic} again; if it is {old.handler} renamed, say was={old.handler.rpartition('.')[2]!r}"
        for one in app.handlers.values()
        if one.name not in served and one.was not in served
        for old in left
        if old.topic == one.consumes.topic
    ]


def _put_text(app: App | None, found: list[Finding]) -> None:
    for name, handler in app.handlers.items() if app is not None else ():
        emits = " | ".join(one.type for one in handler.emits) or "nothing"
        model = f", model {handler.model.name}" if handler.model is not None else ""
        put(f"{paint(name, 'bold')} version {handler.version}{model}: {handler.consumes.type} -> {emits}")
    for one in found:
        code = f"[{one.code}]" if one.code else ""
        put(f"{paint(f'finding{code}:', 'red')} {one.where}: {told(one.problem)}")
        put(f"  {paint('hint:', 'cyan')} {told(one.hint)}")
    put(counted(len(found), "finding") if found else paint("no findings", "green"))


def _document(target: str, app: App | None, found: list[Finding]) -> dict[str, Any]:
    handlers = app.handlers.values() if app is not None else ()
    return {
        "target": target,
        "handlers": [
            {
                "handler": one.name,
                "version": one.version,
                "model": one.model.name if one.model is not None else None,
                "consumes": one.consumes.type,
                "topic": one.consumes.topic,
                "emits": [emitted.type for emitted in one.emits],
                "where": one.where,
            }
            for one in handlers
        ],
        "findings": [one._asdict() for one in found],
    }
