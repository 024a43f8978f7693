"""``headrace completion``: what makes a shell complete commands, options, and names out of the journal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace import errors
from headrace.cli.options import examples
from headrace.cli.output import Exit, plain, put

if TYPE_CHECKING:
    from headrace.ports.look import Look

#: Events that are offered, the newest; and files that are read to find apps.
EVENTS_MAX, FILES_MAX = 20, 200


class Shell(StrEnum):
    """A shell that can be told how to complete."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


_SCRIPTS = {
    # Bash parts words at ':', which stands in MODULE:APP: it hands over the line, and gets what lies behind.
    Shell.BASH: """\
_headrace() {
    local IFS=$'\\n'
    COMPREPLY=($(headrace completion bash -- "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -F _headrace headrace
""",
    Shell.ZSH: """\
#compdef headrace
_headrace() {
    local -a found
    found=("${(@f)$(headrace completion zsh -- "${(@)words[1,CURRENT]}" 2>/dev/null)}")
    if [[ -n "$found" ]]; then compadd -- "${found[@]}"; else _files; fi
}
compdef _headrace headrace
""",
    Shell.FISH: """\
complete --command headrace --arguments \\
    "(headrace completion fish -- (commandline --tokens-expanded --cut-at-cursor) \
(commandline --current-token --cut-at-cursor) 2>/dev/null)"
""",
}

_EPILOG = examples(
    "headrace completion bash > ~/.local/share/bash-completion/completions/headrace",
    "headrace completion zsh > ~/.zfunc/_headrace",
    "headrace completion fish > ~/.config/fish/completions/headrace.fish",
    more="In a running bash or zsh: eval the output. Names of topics, types, handlers and events come from"
    " the journal in a file that the settings name.",
)


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    top.command("completion", epilog=_EPILOG)(_completion)


def _completion(
    shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Which shell.", show_default=False)],
    words: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> int:
    """Print the script that makes a shell complete the commands of Headrace."""
    if words is None:
        put(_SCRIPTS[shell].rstrip())
        return Exit.DONE
    typed = _split(words[0]) if shell is Shell.BASH else words
    for one in candidates(typed[1:]):
        put(_behind_colon(plain(one), typed[-1]) if shell is Shell.BASH else plain(one))
    return Exit.DONE


def _split(line: str) -> list[str]:
    """Return the words of a line; the last one is that which is being typed, possibly empty."""
    try:
        found = shlex.split(line)
    except ValueError:  # a quote that is still open
        found = line.split()
    return [*found, ""] if not found or line[-1:].isspace() else found


def _behind_colon(found: str, typed: str) -> str:
    start = typed.rfind(":") + 1
    return found[start:] if found.startswith(typed[:start]) else found


# --- what fits --------------------------------------------------------------------------------


def candidates(words: Sequence[str]) -> list[str]:
    """Return what the last of the words may become, sorted; an empty list where nothing is known."""
    from headrace.cli.invoke import tree

    *before, typed = words or [""]
    known = typer.main.get_command(tree(before[0] if before else None))
    command: Any = known
    rest = list(before)
    while rest and hasattr(command, "commands") and rest[0] in command.commands:
        command = command.commands[rest.pop(0)]
    found = _options(command) if typed.startswith("-") else _words(command, rest)
    return sorted({one for one in found if one.startswith(typed)})


def _options(command: Any) -> list[str]:
    shown = [one for one in command.params if not getattr(one, "hidden", False)]
    return ["--help", *(name for one in shown for name in one.opts if name.startswith("--"))]


def _words(command: Any, before: Sequence[str]) -> Iterable[str]:
    """Return what may stand as a value, or as the next argument."""
    if hasattr(command, "commands"):
        return [] if before else [name for name, one in command.commands.items() if not one.hidden]
    named = {name: one for one in command.params for name in one.opts if name.startswith("-")}
    taken, value_of = 0, None
    for word in before:
        if value_of is not None:
            value_of = None
        elif word in named:
            value_of = None if named[word].is_flag else named[word]
        elif not word.startswith("-"):
            taken += 1
    arguments = [one for one in command.params if one.opts and not one.opts[0].startswith("-")]
    if value_of is not None:
        return _values(next(name for name in value_of.opts if name.startswith("--")))
    return _values(arguments[taken].metavar or "") if taken < len(arguments) else []


def _values(name: str) -> Iterable[str]:
    """Return the values of an option, or of an argument by what help calls it."""
    name = name.strip("[]")
    choices = [one for one in name.split("|") if one.isalpha() and one.islower()]
    if len(choices) > 1:
        return choices
    known = _KNOWN.get(name)
    if known is not None:
        return known()
    asked = _ASKED.get(name)
    return _from_journal(asked) if asked is not None else []


def _from_journal(ask: Callable[[Look], Awaitable[list[str]]]) -> list[str]:
    """Ask the journal in a file; one on a cluster would keep the shell waiting."""
    from headrace.cli.access import looked
    from headrace.settings import load
    from headrace.wiring import on_kafka

    with suppress(errors.HeadraceError):
        if not on_kafka(load()):
            return looked(None, None, ask)
    return []


async def _topics(look: Look) -> list[str]:
    return [one.name for one in await look.topics()]


async def _types(look: Look) -> list[str]:
    found = [await look.feed(topic.name).newest(EVENTS_MAX) for topic in await look.topics()]
    return [event.envelope.type for events in found for event in events]


async def _handlers(look: Look) -> list[str]:
    return [one.handler for one in await look.progress()]


async def _versions(look: Look) -> list[str]:
    return [version.name for one in await look.histories() for version in one.versions]


async def _events(look: Look) -> list[str]:
    return [str(one.envelope.event_id) for one in await look.feed().newest(EVENTS_MAX)]


#: An app that is made at the top of a module.
_APP = re.compile(r"^(\w+)(?:\s*:[^=\n]+)?\s*=\s*App\(", re.MULTILINE)


def _targets() -> list[str]:
    """Return the apps of the modules in this folder; nothing is imported."""
    found: list[str] = []
    for file in sorted(Path.cwd().glob("*.py"))[:FILES_MAX]:
        with suppress(OSError, UnicodeDecodeError):
            found += [f"{file.stem}:{name}" for name in _APP.findall(file.read_text("utf-8"))]
    return found


#: How names are found, by the option or the metavar of the argument.
_KNOWN: dict[str, Callable[[], Iterable[str]]] = {
    "CODE": errors.catalogue,
    "--durability": lambda: ("full", "normal"),
    "MODULE:APP": _targets,
}
_ASKED: dict[str, Callable[[Look], Awaitable[list[str]]]] = {
    "--topic": _topics,
    "--type": _types,
    "TYPE": _types,
    "HANDLER": _handlers,
    "--handler": _handlers,
    "VERSION": _versions,
    "EVENT": _events,
    "--chain": _events,
    "--parent": _events,
}
