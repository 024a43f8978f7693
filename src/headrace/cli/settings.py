"""``headrace settings``: every setting, its value, and where that came from."""

from __future__ import annotations

import typer

from headrace.cli.access import warn_of_environment
from headrace.cli.options import Index, Journal, Json, examples
from headrace.cli.output import Exit, paint, put, put_json, put_table


def add_to(top: typer.Typer) -> None:
    """Add the command."""
    epilog = examples(
        "headrace settings",
        "headrace settings --json",
        more="A flag wins over HEADRACE_NAME in the environment, that over headrace.toml or [tool.headrace]"
        " in pyproject.toml (the nearest file upwards), that over the default. App(journal=...) of an app"
        " wins over all but a flag.",
    )
    top.command("settings", epilog=epilog)(_settings)


def _settings(journal: Journal = None, index: Index = None, as_json: Json = False) -> int:
    """Show every setting and where its value came from; passwords in addresses are left out."""
    from headrace.settings import DEFAULT, ENVIRONMENT, told, without_secrets

    warn_of_environment()
    found = told({"journal": journal, "index": index})
    if as_json:
        put_json(
            [
                {
                    "name": one.name,
                    "value": one.value if isinstance(one.value, int) else without_secrets(one.value),
                    "origin": one.origin,
                    "variable": ENVIRONMENT + one.name.upper(),
                }
                for one in found
            ]
        )
        return Exit.DONE
    put_table(
        ("SETTING", "VALUE", "FROM"),
        [(one.name, without_secrets(one.value), one.origin) for one in found],
    )
    if all(one.origin == DEFAULT for one in found):
        put()
        put(paint("nothing is set; the README lists what each setting means", "dim"))
    return Exit.DONE
