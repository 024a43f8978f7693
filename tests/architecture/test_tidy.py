"""The source read as text: sizes, names, what may stand where. A breach names file:line and the remedy."""

from __future__ import annotations

import ast
import io
import re
import statistics
import sys
import tokenize
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[2]
PACKAGE = "src/headrace/"

FILE_LINES_MAX = 400  # what a reader holds in mind
FUNCTION_LINES_MAX = 70  # one screen
FUNCTION_LINES_P95_MAX = 39  # 95 of 100 are well below a screen

VAGUE = {"base", "common", "core", "helper", "helpers", "manager", "misc", "util", "utils"}

#: The files that implement the ports Clock and Chance: the only ones that ask the machine.
CLOCK_FILES = (f"{PACKAGE}world.py",)

#: What makes two runs of one seed differ (a dot at the end: all of that module).
CHANCE = (
    "asyncio.sleep",
    "datetime.date.today",
    "datetime.datetime.now",
    "datetime.datetime.today",
    "datetime.datetime.utcnow",
    "numpy.random.",
    "os.getrandom",
    "os.urandom",
    "random.",
    "secrets.",
    "time.clock_gettime",
    "time.monotonic",
    "time.perf_counter",
    "time.sleep",
    "time.time",
    "uuid.uuid1",
    "uuid.uuid4",
)

#: Each foreign name and where in the package it may appear ("" = anywhere). Others have no place.
PLACES: dict[str, tuple[str, ...]] = {
    "apsw": ("journal/",),
    "confluent_kafka": ("journal/kafka/",),
    "msgspec": ("codec/", "event/"),
    "numpy": ("codec/", "demo/", "model/"),
    "onnxruntime": ("model/onnx.py",),
    "prometheus_client": ("lens/endpoint.py",),
    "psycopg": ("journal/index/session.py",),
    "pydantic": ("",),
    "pydantic_core": ("",),
    "rich": ("cli/", "demo/"),
    "sqlite3": ("journal/",),  # not foreign, but a second SQLite in one process breaks the locks of the first
    "typer": ("cli/", "demo/"),
    "typing_extensions": ("",),
    "xxhash": ("codec/", "event/"),
}

# Capitals followed by a space begin a statement; in small letters it takes more to tell SQL from a sentence.
SQL = re.compile(
    r"\s*(?:(?:SELECT|INSERT|UPDATE|DELETE|REPLACE)\s|CREATE\s+(?:\w+\s+)?(?:TABLE|INDEX|VIEW|TRIGGER)\b"
    r"|(?:ALTER|DROP)\s+(?:TABLE|INDEX|VIEW|TRIGGER)\b|WITH\s+\w+.*\sAS\s"
    r"|(?i:select\s.+\sfrom\s|insert\s+(?:or\s+\w+\s+)?into\s|update\s+\w+\s+set\s|delete\s+from\s|create\s+table\s))",
    re.DOTALL,
)
EVERYTHING = {"Exception", "BaseException"}
LEFT_OVER = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")

Breach = tuple[int, str]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the root of the repository, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        """The parsed file."""
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Every node of the tree."""
        return list(ast.walk(self.tree))

    @property
    def functions(self) -> list[Function]:
        """Every function, method and function within a function."""
        return [node for node in self.nodes if isinstance(node, Function)]

    @property
    def is_product(self) -> bool:
        """Does the file ship?"""
        return self.path.startswith(PACKAGE)


def read_sources() -> list[Source]:
    """Return what is written by hand: the package, its tests, its benchmarks."""
    files = (file for folder in (PACKAGE, "tests", "bench") for file in sorted((ROOT / folder).rglob("*.py")))
    return [Source(file.relative_to(ROOT).as_posix(), file.read_text("utf-8")) for file in files]


SOURCES = read_sources()


def length(function: Function) -> int:
    """Return the lines from `def` to the end."""
    return (function.end_lineno or function.lineno) - function.lineno + 1


# ------------------------------------------------------------------------------------------- the rules


def long_file(source: Source) -> Iterator[Breach]:
    """Yield the first line too many."""
    if (lines := len(source.text.splitlines())) > FILE_LINES_MAX:
        yield FILE_LINES_MAX + 1, f"{lines} lines"


def long_function(source: Source) -> Iterator[Breach]:
    """Yield functions that do not fit a screen."""
    for function in source.functions:
        if length(function) > FUNCTION_LINES_MAX:
            yield function.lineno, f"{function.name} has {length(function)} lines"


def vague_name(source: Source) -> Iterator[Breach]:
    """Yield parts of the path that name a drawer instead of a thing."""
    for part in Path(source.path).with_suffix("").parts:
        if vague := VAGUE.intersection(part.lower().split("_")):
            yield 1, f"{part}: {', '.join(sorted(vague))}"


def no_first_line(source: Source) -> Iterator[Breach]:
    """Yield files that do not begin by saying what they are (a `#!` line may come before)."""
    first = source.tree.body[0].lineno if source.tree.body else 1
    said = (ast.get_docstring(source.tree, clean=False) or "").split("\n")[0].strip()
    if not said or first > 1 + source.text.startswith("#!"):
        yield 1, "the first line is no docstring"


def sql_in_python(source: Source) -> Iterator[Breach]:
    """Yield string literals that begin like a statement, docstrings aside."""
    prose = {node.value for node in source.nodes if isinstance(node, ast.Expr)}
    for node in source.nodes:
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str) or node in prose:
            continue
        if SQL.match(node.value):
            yield node.lineno, repr(node.value[:40])


def imports(source: Source) -> Iterator[tuple[int, str, str]]:
    """Yield (line, local name, what it names) of each absolute import."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            for name in node.names:
                local = name.asname or name.name.split(".")[0]
                yield node.lineno, local, name.name if name.asname else local
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for name in node.names:
                yield node.lineno, name.asname or name.name, f"{node.module}.{name.name}"


def foreign_name_out_of_place(source: Source) -> Iterator[Breach]:
    """Yield imports of foreign packages where they do not belong."""
    inside = source.path.removeprefix(PACKAGE)
    for line, _, named in imports(source):
        top = named.split(".")[0]
        if top in PLACES:
            if not inside.startswith(PLACES[top]):
                yield line, f"{top} belongs in {' or '.join(PLACES[top])}"
        elif top not in sys.stdlib_module_names and top != "headrace":
            yield line, f"{top} has no place in PLACES"


def dotted(node: ast.AST, names: dict[str, str]) -> str:
    """Return what `a.b.c` names, imports resolved; "" for anything else."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute) and (left := dotted(node.value, names)):
        return f"{left}.{node.attr}"
    return ""


def clock_or_chance(source: Source) -> Iterator[Breach]:
    """Yield uses of time and chance, called or handed on, outside the files that implement the ports."""
    if source.path in CLOCK_FILES:
        return
    names = {local: named for _, local, named in imports(source)}
    # A sleep of nothing only lets others run.
    idle = [
        node.func
        for node in source.nodes
        if isinstance(node, ast.Call) and ast.unparse(node) == "asyncio.sleep(0)"
    ]
    for node in source.nodes:
        if not isinstance(node, ast.Name | ast.Attribute) or node in idle:
            continue
        if (named := dotted(node, names)).startswith(CHANCE):
            yield node.lineno, named


def swallowed_error(source: Source) -> Iterator[Breach]:
    """Yield what catches everything by accident, or everything and says nothing."""
    names = {local: named for _, local, named in imports(source)}
    for node in source.nodes:
        if isinstance(node, ast.ExceptHandler):
            if node.type is None:
                yield node.lineno, "bare except"
            elif ast.unparse(node.type) in EVERYTHING and all(map(is_silent, node.body)):
                yield node.lineno, f"except {ast.unparse(node.type)} that says nothing"
        elif isinstance(node, ast.Call) and dotted(node.func, names) == "contextlib.suppress":
            yield from (
                (node.lineno, "suppresses everything")
                for kind in node.args
                if ast.unparse(kind) in EVERYTHING
            )


def is_silent(node: ast.stmt) -> bool:
    """Tell `pass`, `continue` and `...` from statements that do something."""
    return isinstance(node, ast.Pass | ast.Continue) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def left_over(source: Source) -> Iterator[Breach]:
    """Yield comments and docstrings that put something off."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and (found := LEFT_OVER.search(token.string)):
            yield token.start[0], found[0]
    for node in source.nodes:
        prose = node.value if isinstance(node, ast.Expr) else None
        if isinstance(prose, ast.Constant) and (found := LEFT_OVER.search(str(prose.value))):
            yield prose.lineno, found[0]


def silent_test(source: Source) -> Iterator[Breach]:
    """Yield tests that do not say in their first line what must hold."""
    if not Path(source.path).name.startswith("test_"):
        return
    for function in source.functions:
        said = (ast.get_docstring(function, clean=False) or "").split("\n")[0].strip()
        if function.name.startswith("test_") and not said:
            yield function.lineno, function.name


class Rule(NamedTuple):
    """A check, what to do about a breach, and snippets that prove the check right."""

    check: Callable[[Source], Iterator[Breach]]
    remedy: str
    bad: tuple[str, ...]
    good: tuple[str, ...] = ("",)
    everywhere: bool = False
    path: str = f"{PACKAGE}runtime/worker.py"

    @property
    def name(self) -> str:
        """The name of the check, in words."""
        return self.check.__name__.replace("_", "-")

    def applies(self, source: Source) -> bool:
        """Is the file one that the rule is about?"""
        return self.everywhere or source.is_product


RULES = [
    Rule(
        long_file,
        f"Split it by subject; a file has at most {FILE_LINES_MAX} lines.",
        bad=("x = 1\n" * (FILE_LINES_MAX + 1),),
        good=("x = 1\n" * FILE_LINES_MAX,),
    ),
    Rule(
        long_function,
        f"Move its leaves into functions of their own; at most {FUNCTION_LINES_MAX} lines.",
        bad=("def f():\n" + "    x = 1\n" * 70, "class A:\n  async def f(self):\n" + "    x = 1\n" * 70),
        good=("def f():\n" + "    x = 1\n" * 69,),
    ),
    Rule(
        no_first_line,
        "Begin the file with one line in triple quotes that says what it is.",
        bad=("", "x = 1\n", "# licence\n'''What it is.'''\n", "'''\nWhat it is.'''\n"),
        good=("'''What it is.'''\n", "#!/usr/bin/env python3\n'''What it is.'''\n"),
        everywhere=True,
    ),
    Rule(
        sql_in_python,
        "Move the statement into a .sql file beside the code, named, with a sentence above it.",
        bad=(
            "q = 'SELECT 1'",
            "q = f'DELETE FROM {t}'",
            "q = '''\n  CREATE TABLE t (a)'''",
            "q = 'insert or ignore into t values (1)'",
            "q = 'WITH x(a) AS (VALUES (1)) TABLE x'",
        ),
        good=(
            "'''SELECT is a word of SQL.'''",
            "m = 'DELETE'",
            "m = 'select a handler'",
            "m = 'with one as '",
        ),
    ),
    Rule(
        foreign_name_out_of_place,
        "Go through the port; if the package is new, give it its one place in PLACES.",
        bad=(
            "import apsw",
            "from onnxruntime import InferenceSession",
            "def f():\n  import rich.table",
            "import zmq",
        ),
        good=(
            "import json",
            "from pydantic import BaseModel",
            "from headrace.ports import Clock",
            "from . import x",
        ),
    ),
    Rule(
        clock_or_chance,
        "Ask the Clock or Chance port: only then is a failure a seed.",
        bad=(
            "import time\nx = time.time()",
            "from time import monotonic_ns as now\nx = now()",
            "import random\nx = random.Random(1)",
            "import uuid\nf(default_factory=uuid.uuid4)",
            "import datetime as dt\nx = dt.datetime.now(dt.UTC)",
            "from datetime import datetime\nx = datetime.now()",
            "import os\nx = os.urandom(8)",
            "import asyncio\nasync def f(): await asyncio.sleep(1)",
            "import numpy as np\nx = np.random.default_rng()",
        ),
        good=(
            "import asyncio\nasync def f(): await asyncio.sleep(0)",
            "x = clock.time()",
            "import time\nx = time.gmtime(0)",
            "import uuid\nx = uuid.UUID(int=1)",
        ),
    ),
    Rule(
        swallowed_error,
        "Name the error that may happen, or record the one that did.",
        bad=(
            "try: f()\nexcept: g()",
            "try: f()\nexcept Exception: pass",
            "try: f()\nexcept BaseException as e: ...",
            "for x in y:\n  try: f()\n  except Exception: continue",
            "from contextlib import suppress\nwith suppress(Exception): f()",
        ),
        good=("try: f()\nexcept KeyError: pass", "try: f()\nexcept Exception as e: log(e)"),
        everywhere=True,
    ),
    Rule(
        left_over,
        "Do it, or open an issue and say in the comment what holds until then.",
        bad=("x = 1  # TODO: more", "'''What it is. FIXME'''"),
        good=("x = 'TODO'", "# todos los santos"),
        everywhere=True,
    ),
    Rule(
        silent_test,
        "Begin the test with one line in triple quotes that says what must hold.",
        bad=("def test_x():\n  assert f()", "class TestX:\n  async def test_x(self):\n    '''\n    Late.'''"),
        good=("def test_x():\n  '''X holds.'''", "def made(): return 1"),
        everywhere=True,
        path="tests/unit/test_worker.py",
    ),
]
BY_NAME = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


# ------------------------------------------------------------------------------------------- the tests


@BY_NAME
def test_source_keeps_the_rule(rule: Rule) -> None:
    """No file breaks the rule."""
    breaches = [
        f"{source.path}:{line}: {what}"
        for source in SOURCES
        if rule.applies(source)
        for line, what in rule.check(source)
    ]

    assert not breaches, "\n".join([rule.remedy, *breaches])


@BY_NAME
def test_the_rule_can_fail(rule: Rule) -> None:
    """Each bad snippet is found, so that silence means something."""
    missed = [bad for bad in rule.bad if not list(rule.check(Source(rule.path, bad)))]

    assert not missed


@BY_NAME
def test_the_rule_leaves_good_code_alone(rule: Rule) -> None:
    """No good snippet is found, so that nobody has to argue with the rule."""
    blamed = {good: breaches for good in rule.good if (breaches := list(rule.check(Source(rule.path, good))))}

    assert not blamed


def test_names_say_what_is_inside() -> None:
    """No file or folder is named for a drawer."""
    breaches = [f"{source.path}: {what}" for source in SOURCES for _, what in vague_name(source)]

    assert not breaches, "\n".join(["Name it for the thing it holds.", *breaches])


@pytest.mark.parametrize(
    "path", ["src/headrace/utils.py", "src/headrace/core/x.py", "tests/unit/json_helpers.py"]
)
def test_a_vague_name_is_found(path: str) -> None:
    """A name of a drawer is found in a file, in a folder and as half of a name."""
    assert list(vague_name(Source(path, "")))


def p95(lengths: list[int]) -> float:
    """Return the length that 95 of 100 functions do not exceed."""
    return statistics.quantiles(lengths, n=20, method="inclusive")[-1]


def test_most_functions_are_short() -> None:
    """95 of 100 functions of the package stay well below a screen."""
    found = sorted(
        (length(function), f"{source.path}:{function.lineno}: {function.name}")
        for source in SOURCES
        if source.is_product
        for function in source.functions
    )
    longest = [
        f"{where} has {lines} lines" for lines, where in reversed(found) if lines > FUNCTION_LINES_P95_MAX
    ]

    assert len(found) < 2 or p95([lines for lines, _ in found]) <= FUNCTION_LINES_P95_MAX, "\n".join(
        [f"Shorten some: 95 of 100 have at most {FUNCTION_LINES_P95_MAX} lines.", *longest]
    )


def test_the_measure_of_most_can_fail() -> None:
    """Five short functions of a hundred do not hide ten long ones; five long ones do hide among the short."""
    assert p95([5] * 90 + [60] * 10) > FUNCTION_LINES_P95_MAX
    assert p95([5] * 96 + [60] * 4) <= FUNCTION_LINES_P95_MAX


@pytest.mark.parametrize("path", CLOCK_FILES)
def test_clock_files_may_ask_the_machine(path: str) -> None:
    """The files that implement the ports are exempt, and only from this rule."""
    source = Source(path, "import time\nx = time.time()")

    assert not list(clock_or_chance(source))
    assert list(no_first_line(source))
