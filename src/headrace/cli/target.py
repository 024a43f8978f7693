"""From ``module:app`` on the command line to the app in it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from headrace import errors

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.runtime.handlers import Handler

#: Names of a module that are worth telling when the right one is not among them.
NAMES_SHOWN_MAX = 12


class TargetFailed(errors.TargetInvalid):
    """{target!r} cannot be imported: {problem}.

    The fault is in the module, not in how it was named; its traceback is above.

    Hint: ``python -c "import {module}"`` shows the same.
    """

    def __init__(self, cause: BaseException, target: str, module: str) -> None:
        super().__init__(target=target, module=module, problem=f"{type(cause).__name__}: {cause}")
        self.cause = cause


def load(target: str) -> App:
    """Import the app that a target names, the working directory first.

    Raises `TargetInvalid`, saying what was found instead; errors of Headrace in the module pass through.
    """
    from headrace.app import App

    module_name, colon, path = target.partition(":")
    if module_name.endswith(".py"):
        raise errors.TargetInvalid(target=target, problem="it names a file; the module is named without .py")
    if not module_name or not all(part.isidentifier() for part in module_name.split(".")):
        raise errors.TargetInvalid(target=target, problem="that is no name of a module")
    module = _imported(target, module_name)
    if not colon or not path:
        raise errors.TargetInvalid(target=target, problem=f"it does not say which. {_found(module)}")
    found: object = module
    for part in path.split("."):
        if not hasattr(found, part):
            raise errors.TargetInvalid(
                target=target, problem=f"module {module_name} has no {path!r}. {_found(module)}"
            )
        found = getattr(found, part)
    if not isinstance(found, App):
        raise errors.TargetInvalid(
            target=target, problem=f"{path} is a {type(found).__name__}, not an App. {_found(module)}"
        )
    return found


def handler_named(app: App, name: str) -> Handler | None:
    """Return a handler of an app by its whole name, or by that of its function."""
    return app.handlers.get(name) or app.handlers.get(f"{app.name}.{name}")


def _imported(target: str, name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except errors.HeadraceError:
        raise
    except ModuleNotFoundError as fault:
        if fault.name is not None and (name == fault.name or name.startswith(f"{fault.name}.")):
            raise errors.TargetInvalid(target=target, problem=_missing(name)) from None
        raise TargetFailed(fault, target, name) from fault
    except Exception as fault:
        raise TargetFailed(fault, target, name) from fault


def _missing(name: str) -> str:
    here = Path.cwd()
    files = sorted(file.stem for file in here.glob("*.py"))[:NAMES_SHOWN_MAX]
    there = f"modules there: {', '.join(files)}" if files else "no module is there"
    return f"there is no module {name} in {here} or in the Python path ({there})"


def _found(module: ModuleType) -> str:
    """Say what a module holds: its apps, or else its names."""
    from headrace.app import App

    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    apps = [f"{module.__name__}:{name}" for name, value in public.items() if isinstance(value, App)]
    if apps:
        return f"It holds {', '.join(apps)}"
    names = list(public)[:NAMES_SHOWN_MAX]
    return f"It holds no App, but: {', '.join(names)}" if names else "It is empty"
