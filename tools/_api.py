"""The public classes and functions as Markdown, read from the source, so that no Python's version matters."""

from __future__ import annotations

import ast
import importlib
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "src" / "headrace"

#: Where the public names of the package live, in the order of a reader who builds an app.
NAMES = {
    "App": "app.py",
    "Event": "event/contract.py",
    "Model": "model/__init__.py",
    "Label": "event/label.py",
    "Context": "runtime/context.py",
    "RetryPolicy": "gate/retry.py",
    "Retention": "gate/retention.py",
    "Options": "runtime/publish.py",
    "Published": "runtime/outlet.py",
    "Envelope": "event/envelope.py",
}
ABOUT = (
    "What may be relied on: `headrace`, `headrace.testing`, `headrace.integrations.asgi`, and"
    " [the errors](errors.md), which are `headrace.errors`. Everything else may change."
)
TESTING = ("run_until_idle", "until_idle", "Result", "EchoModel", "ManualClock", "FailAt", "CrashAt")
ASGI = ("lifespan", "Inlet")

#: Methods without an underscore that are for other parts of Headrace, not for people.
INTERNAL = {
    "App": {"borrowed", "configure", "journal", "place_in", "worker"},
    "Context": {"taken"},
    "Retention": {"keep"},
    "EchoModel": {"close", "fingerprint", "infer", "load"},
    "FailAt": {"at"},
    "CrashAt": {"at"},
    "Event": {"model_construct", "model_copy"},
}
#: A signature that is longer than this is broken into lines.
LINE_CHARS = 96

Function = ast.FunctionDef | ast.AsyncFunctionDef


def page() -> str:
    """Return the page."""
    parts = [
        "# API",
        ABOUT,
        "## headrace",
        *(text for name, file in NAMES.items() for text in _described(file, name)),
        "## headrace.testing",
        _module("testing.py"),
        *(text for name in TESTING for text in _described("testing.py", name)),
        "## headrace.integrations.asgi",
        _module("integrations/asgi.py"),
        *(text for name in ASGI for text in _described("integrations/asgi.py", name)),
    ]
    return "\n\n".join(part for part in parts if part)


def _parsed(file: str) -> ast.Module:
    return ast.parse((PACKAGE / file).read_text("utf-8"))


def _module(file: str) -> str:
    return prose(ast.get_docstring(_parsed(file)) or "")


def _described(file: str, name: str) -> Iterator[str]:
    lines = (PACKAGE / file).read_text("utf-8").splitlines()
    node = next(
        one
        for one in _parsed(file).body
        if isinstance(one, ast.ClassDef | Function) and one.name == name and not _overload(one)
    )
    yield f"### {name}"
    home = importlib.import_module(
        ".".join(["headrace", *Path(file).with_suffix("").parts]).removesuffix(".__init__")
    )
    _with_values(node, vars(home))
    if isinstance(node, Function):
        yield _signature(node)
        yield prose(ast.get_docstring(node) or "")
        return
    made = next((one for one in node.body if isinstance(one, Function) and one.name == "__init__"), None)
    if made is not None and name != "Context":
        yield _signature(made, name)
    yield prose(ast.get_docstring(node) or "")
    yield from _fields(node, lines)
    for one in node.body:
        if isinstance(one, Function) and _is_public(name, one):
            yield f"#### {name}.{one.name}"
            if not any(ast.unparse(mark) == "property" for mark in one.decorator_list):
                yield _signature(one)
            yield prose(ast.get_docstring(one) or "")


def _with_values(node: ast.AST, known: dict[str, object]) -> None:
    """Put values in the place of constants: a reader cannot look them up."""
    for one in ast.walk(node):
        if isinstance(one, ast.arguments):
            for defaults in (one.defaults, one.kw_defaults):
                for at, default in enumerate(defaults):
                    if isinstance(default, ast.Name) and default.id in known:
                        defaults[at] = ast.Constant(known[default.id])  # type: ignore[arg-type, call-overload]


def _is_public(owner: str, node: Function) -> bool:
    hidden = node.name.startswith("_") or node.name in INTERNAL.get(owner, ())
    return not hidden and not _overload(node) and ast.get_docstring(node) is not None


def _overload(node: ast.ClassDef | Function) -> bool:
    return any(ast.unparse(mark) == "overload" for mark in node.decorator_list)


def _fields(node: ast.ClassDef, lines: list[str]) -> Iterator[str]:
    """Yield the table of the fields; what is said of each stands above it, behind ``#:``."""
    rows: list[str] = []
    for one in _assigned(node):
        told = " ".join(said_above(lines, one.lineno))
        if one.value is not None:
            told = f"{told} Default: `{ast.unparse(one.value)}`.".strip()
        target = one.target.attr if isinstance(one.target, ast.Attribute) else ast.unparse(one.target)
        kind = ast.unparse(one.annotation).replace("|", "\\|")
        if not target.startswith("_"):
            rows.append(f"| `{target}` | `{kind}` | {prose(told)} |")
    if rows:
        yield "\n".join(["| | | |", "|---|---|---|", *rows])


def _assigned(node: ast.ClassDef) -> Iterator[ast.AnnAssign]:
    """Yield the fields of a class, and what ``__init__`` makes public of its arguments."""
    for one in node.body:
        if isinstance(one, ast.AnnAssign) and "ClassVar" not in ast.unparse(one.annotation):
            yield one
    made = next((one for one in node.body if isinstance(one, Function) and one.name == "__init__"), None)
    if made is None or node.name != "Context":
        return
    kinds = {argument.arg: argument.annotation for argument in made.args.args}
    for one in made.body:
        if not isinstance(one, ast.Assign) or not isinstance(one.targets[0], ast.Attribute):
            continue
        target = one.targets[0]
        kind = kinds.get(target.attr)
        if kind is not None:
            yield ast.AnnAssign(target, kind, None, 0, lineno=one.lineno, col_offset=0)


def said_above(lines: list[str], number: int) -> list[str]:
    """Return what is said of a line above it, behind ``#:``."""
    found: list[str] = []
    for line in reversed(lines[: number - 1]):
        if not line.strip().startswith("#:"):
            break
        found.insert(0, line.strip().removeprefix("#:").strip())
    return found


def _signature(node: Function, name: str = "") -> str:
    arguments = node.args
    if arguments.args and arguments.args[0].arg in ("self", "cls"):
        arguments.args.pop(0)
    begin = "async def " if isinstance(node, ast.AsyncFunctionDef) else "def "
    begin = "" if name else begin
    answer = f" -> {ast.unparse(node.returns)}" if node.returns is not None and not name else ""
    each = [_spaced(one) for one in _apart(ast.unparse(arguments))]
    text = f"{begin}{name or node.name}({', '.join(each)}){answer}"
    if len(text) > LINE_CHARS:
        inside = "".join(f"    {one},\n" for one in each)
        text = f"{begin}{name or node.name}(\n{inside}){answer}"
    return f"```text\n{text}\n```"


def _spaced(argument: str) -> str:
    """Return an argument as it is written by people: spaces beside the sign where there is a type."""
    name, typed, rest = argument.partition(": ")
    kind, given, default = rest.partition("=")
    return f"{name}: {kind} = {default}" if typed and given else argument


def _apart(arguments: str) -> Iterator[str]:
    """Yield arguments one by one: a comma inside of brackets parts nothing."""
    depth, begin = 0, 0
    for at, character in enumerate(arguments):
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            yield arguments[begin:at].strip()
            begin = at + 1
    yield arguments[begin:].strip()


def prose(text: str) -> str:
    """Return a docstring as Markdown: one kind of quotes for names, blocks of code fenced."""
    parts = text.replace("::\n", ":\n").split("\n\n")
    shown: list[str] = []
    for part in parts:
        if part.startswith(("    ", ":\n")):
            shown.append(f"```text\n{textwrap.dedent(part.removeprefix(':')).strip()}\n```")
        elif part.startswith("Args:"):
            shown.append(_listed(part))
        elif part.strip() != ":":
            shown.append(re.sub(r"  +", " ", " ".join(part.split())))
    fences = re.compile(r"```.*?```", re.DOTALL)
    joined = "\n\n".join(shown)
    code = fences.findall(joined)
    plain = fences.sub("\0", joined).replace("``", "`")
    for one in code:
        plain = plain.replace("\0", one, 1)
    return plain


def _listed(part: str) -> str:
    """Return the ``Args:`` of a docstring as a list."""
    body = textwrap.dedent(part.removeprefix("Args:").strip("\n"))
    entries = re.split(r"^(\w+): ", body, flags=re.MULTILINE)[1:]
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return "\n".join(f"* `{name}`: {' '.join(text.split())}" for name, text in pairs)
