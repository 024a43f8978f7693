"""Finds the command and runs it; the only place where errors become text and exit codes."""

from __future__ import annotations

import importlib
import sys
import traceback
from collections.abc import Sequence
from typing import Annotated, Any, cast

import typer

from headrace import errors
from headrace.cli.options import examples
from headrace.cli.output import Exit, exit_of, lose, paint, put, say, show_error
from headrace.cli.target import TargetFailed

DEBUG, HELP = "--debug", "--help"
#: In the order of a first day; each is a module beside this one.
COMMANDS = (
    "demo",
    "new",
    "dev",
    "run",
    "publish",
    "tail",
    "show",
    "why",
    "status",
    "check",
    "dlq",
    "model",
    "replay",
    "handler",
    "compact",
    "backup",
    "erase",
    "copy",
    "index",
    "settings",
    "doctor",
    "explain",
    "completion",
    "cheat",
)
#: The error of a wrong command line.  Versions of typer differ in where it lives, not in its heirs.
_ClickError = cast("type[Exception]", typer.BadParameter.__mro__[2])

_EPILOG = examples(
    "headrace demo",
    "headrace new support",
    "headrace run app:app",
    "headrace status",
    more="Exit codes: 0 done; 1 it ran and the answer is no, or some items failed; 2 it could not run"
    " (usage, settings, import); 3 journal or model out of reach; 130 interrupted.",
)


def tree(wanted: str | None = None) -> typer.Typer:
    """Return all commands, or the one that is wanted: what a worker does not need is not loaded."""
    top = typer.Typer(
        add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False
    )

    @top.callback(epilog=_EPILOG)
    def headrace(
        *,
        version: Annotated[bool, typer.Option("--version", help="Print the version and end.")] = False,
        debug: Annotated[bool, typer.Option(DEBUG, help="Print the traceback of any error.")] = False,
    ) -> None:
        """Run models on events: each event is handled exactly once per model version."""
        del version, debug  # both are read before the commands are: see `invoke`

    for name in [wanted] if wanted in COMMANDS else COMMANDS:
        importlib.import_module(f"headrace.cli.{name}").add_to(top)
    return top


def invoke(given: Sequence[str]) -> int:
    """Run one command line; returns the exit code."""
    arguments = [one for one in given if one != DEBUG]
    if arguments == ["--version"]:
        from headrace import __version__

        put(f"headrace {__version__}")
        return Exit.DONE
    for stream in (sys.stdout, sys.stderr):
        # What a terminal cannot show is spelled out instead of being an error.
        cast("Any", stream).reconfigure(errors="backslashreplace")
    try:
        _check_text(arguments)
        wanted = next((one for one in arguments if not one.startswith("-")), None)
        command = typer.main.get_command(tree(wanted))
        # Not `command.main`: it has ways of its own with closed pipes and Ctrl-C.
        with command.make_context("headrace", list(arguments)) as context:
            found = command.invoke(context)
    except typer.Exit as end:
        return end.exit_code
    except typer.Abort:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        raise
    except Exception as fault:  # noqa: BLE001 - told with a code, as every other
        if isinstance(fault, OSError) and HELP in arguments:  # the one text that is not printed by us
            fault = lose(fault)
        return _told(fault, debug=DEBUG in given)
    return found if isinstance(found, int) else Exit.DONE


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse bytes that are no text: neither SQLite nor JSON could take them."""
    for argument in arguments:
        if any("\ud800" <= letter <= "\udfff" for letter in argument):
            raise errors.CommandInvalid(problem=f"{argument!r} is not UTF-8")


def _told(fault: Exception, *, debug: bool) -> int:
    """Say what went wrong; returns the exit code."""
    if isinstance(fault, _ClickError):
        return _show_usage(fault)
    if isinstance(fault, errors.OutputLost):  # it was told when it happened
        return exit_of(fault)
    if debug:
        traceback.print_exception(fault)
    elif isinstance(fault, TargetFailed):
        _show_users_frames(fault.cause)
    elif isinstance(fault, errors.ProviderFailed) and fault.__cause__ is not None:
        _show_users_frames(fault.__cause__)
    if not isinstance(fault, errors.HeadraceError):
        fault = errors.HeadraceError(f"{type(fault).__name__}: {fault}", hint=f"run it again with {DEBUG}")
    show_error(fault)
    return exit_of(fault)


def _show_usage(error: Any) -> int:
    """Say what is wrong with the command line, and how it is used."""
    text = error.format_message().rstrip().rstrip(".")
    context = getattr(error, "ctx", None)
    if "\n" in text:  # a command that was called without anything: the text is its help
        say(text)
        return Exit.UNUSABLE
    path = context.command_path if context is not None else "headrace"
    if context is not None:
        say(context.get_usage())
        say()
    problem, _, suggestion = (text[:1].lower() + text[1:]).partition(". ")
    show_error(errors.CommandInvalid(suggestion, problem=problem, hint=f"{path} --help"))
    return Exit.UNUSABLE


def _show_users_frames(cause: BaseException) -> None:
    """Print the traceback of the user's code, without the frames that led there."""
    from headrace.runtime.frames import users_traceback

    say(paint(users_traceback(cause, ours=False).rstrip(), "dim", sys.stderr))
