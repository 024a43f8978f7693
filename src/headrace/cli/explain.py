"""``headrace explain``: what an error code means, whose fault it is, what happens next, what you can do."""

from __future__ import annotations

import inspect
from typing import Annotated, Any

import typer

from headrace import errors
from headrace.cli.options import Json, examples
from headrace.cli.output import Exit, paint, put, put_json, told


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("explain", epilog=examples("headrace explain HR-E103", "headrace explain"))(_explain)


def _explain(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="Such as HR-E103, or 103.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> int:
    """Explain an error code; without one, list them all."""
    known = errors.catalogue()
    if code is None:
        chosen = known
    else:
        wanted = code.upper().removeprefix("HR-").removeprefix("E")
        name = f"HR-E{wanted}"
        if name not in known:
            raise errors.CodeUnknown(wanted=code)
        chosen = {name: known[name]}
    if as_json:
        entries = [_entry(kind) for kind in chosen.values()]
        put_json(entries if code is None else entries[0])
    elif code is None:
        for name, kind in chosen.items():
            put(f"{name}  {kind.__name__}: {errors.headline(kind)}")
    else:
        for kind in chosen.values():
            _put(kind)
    return Exit.DONE


def _put(kind: type[errors.HeadraceError]) -> None:
    put(f"{paint(kind.code, 'bold')} {kind.__name__}")
    put()
    put(told(inspect.getdoc(kind) or ""))
    put()
    put(f"Whose fault: {kind.fault.value}.")
    put(f"Tried again by itself: {'yes' if kind.retryable else 'no'}.")


def _entry(kind: type[errors.HeadraceError]) -> dict[str, Any]:
    return {
        "code": kind.code,
        "name": kind.__name__,
        "message": errors.headline(kind),
        "text": inspect.getdoc(kind) or "",
        "fault": kind.fault.name.lower(),
        "retryable": kind.retryable,
    }
