"""Settings: flag, then ``HEADRACE_*``, then ``headrace.toml`` or ``[tool.headrace]``, then the default."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple, cast, get_type_hints

from headrace import errors

ENVIRONMENT = "HEADRACE_"
#: The journal of one process, for tests.
MEMORY = ":memory:"
#: Names in the environment that are no settings: they are about the terminal of one command.
_OTHERS = ("NO_PROGRESS",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that can be set, with its default; sizes and times carry their unit in the name."""

    #: Where events are kept: a path, ``sqlite:///path``, ``:memory:``, or ``kafka://host:9092,...?name=value``.
    journal: str = "headrace.db"
    #: The database beside a journal on Kafka: ``postgresql://...``, or a path for workers of one host.
    index: str = "headrace.index.db"
    #: ``full``: accepted survives a power cut. ``normal``: a power cut may take the last commits, no more.
    durability: str = "full"
    #: Largest payload of one event.
    payload_bytes_max: int = 1 << 20
    #: Longest chain of causes; a longer one is taken for a cycle.
    depth_max: int = 256
    #: After this long without renewal a worker counts as dead.
    lease_ms: int = 10_000
    #: How long a stopping worker lets handlers finish.
    stop_grace_ms: int = 10_000
    #: How long the id and the causes of an event are known after retention has removed its payload: 30 days.
    dedup_window_s: int = 2_592_000
    #: How ``headrace run`` and ``dev`` log: ``text`` for people, ``json`` for programs.
    log_format: str = "text"

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        for name in _NAMES:
            _check(name, getattr(self, name), "Settings(...)")


def load(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Return the settings in force; raises `SettingInvalid` with the origin of what is wrong."""
    return Settings(**{one.name: one.value for one in told(flags, environment, folder)})


class Told(NamedTuple):
    """One setting: its value and who said so."""

    name: str
    value: Any
    #: A file, ``the environment``, ``a flag``, or `DEFAULT`.
    origin: str


#: The origin of what nobody has set.
DEFAULT = "the default"


def told(
    flags: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> list[Told]:
    """Return every setting with its origin, in the order of `Settings`; raises `SettingInvalid`."""
    found = {field.name: Told(field.name, field.default, DEFAULT) for field in fields(Settings)}
    for origin, values in (
        *_files(folder or Path.cwd()),
        ("the environment", _from_environment(os.environ if environment is None else environment)),
        ("a flag", {name: value for name, value in (flags or {}).items() if value is not None}),
    ):
        found |= {name: Told(name, _typed(name, value, origin), origin) for name, value in values.items()}
    return list(found.values())


#: What stands before ``@`` in an address, after a user; and parameters that are named for a secret.
_SECRETS = (
    re.compile(r"(?<=://)([^/?#@:]*):[^/?#]*@"),
    re.compile(r"(?<=[?&])([^=&]*(?:pass|secret|token|key)[^=&]*)=[^&]*", re.IGNORECASE),
)


def without_secrets(value: object) -> str:
    """Return a value for people: the passwords in an address are left out."""
    text = _SECRETS[0].sub(r"\1:***@", str(value))
    return _SECRETS[1].sub(r"\1=***", text)


_TYPES = get_type_hints(Settings)
_NAMES = tuple(field.name for field in fields(Settings))
#: Lowest and highest value.
_BOUNDS = {
    "payload_bytes_max": (1, 1 << 30),
    "depth_max": (1, 1 << 20),
    "lease_ms": (100, 3_600_000),
    "stop_grace_ms": (0, 3_600_000),
    "dedup_window_s": (1, 3_153_600_000),
}

_CHOICES = {"durability": ("full", "normal"), "log_format": ("text", "json")}


def _check(name: str, value: Any, origin: str) -> None:
    """Raise `SettingInvalid` for a value that cannot work."""
    low, high = _BOUNDS.get(name, (0, 0))
    problem = ""
    if not isinstance(value, _TYPES[name]) or isinstance(value, bool):
        problem = _mistaken(value, _TYPES[name])
    elif high and not low <= value <= high:
        problem = f"it is {low:,} to {high:,}, not {value:,}"
    elif name in _CHOICES and value not in _CHOICES[name]:
        problem = f"it is {' or '.join(map(repr, _CHOICES[name]))}, not {value!r}"
    if problem:
        raise errors.SettingInvalid(name=name, origin=origin, problem=problem)


def check_arguments(where: str, **given: tuple[object, tuple[type[Any], ...], str]) -> None:
    """Raise `SettingInvalid` for an argument of the wrong kind: each with its kinds and how they are told."""
    for name, (value, kinds, wanted) in given.items():
        if not isinstance(value, kinds) or (str not in kinds and isinstance(value, str)):
            problem = f"it is {wanted}, not {value!r}"
            raise errors.SettingInvalid(name=name, origin=where, problem=problem, hint=f"see help({where})")


def _typed(name: str, value: Any, origin: str) -> Any:
    if name not in _NAMES:
        near = _nearest(name, _NAMES)
        problem = "there is no such setting" + (f"; the nearest is {near}" if near else "")
        raise errors.SettingInvalid(name=name, origin=origin, problem=problem)
    kind = _TYPES[name]
    try:
        typed = kind(value) if type(value) in (str, kind) else None
    except ValueError:
        typed = None
    if typed is None:
        raise errors.SettingInvalid(name=name, origin=origin, problem=_mistaken(value, kind))
    _check(name, typed, origin)
    return typed


def _mistaken(value: object, kind: type) -> str:
    return f"{value!r} is not {'a whole number' if kind is int else 'text'}"


def _nearest(name: str, known: Iterable[str]) -> str | None:
    from difflib import get_close_matches

    near = get_close_matches(name, list(known), 1)
    return near[0] if near else None


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings of the environment; other ``HEADRACE_*`` names belong to other parts."""
    named = ((name, environment.get(ENVIRONMENT + name.upper())) for name in _NAMES)
    return {name: value for name, value in named if value is not None}


def mistyped(environment: Mapping[str, str] | None = None) -> list[tuple[str, str]]:
    """Return the ``HEADRACE_*`` names of the environment that mean nothing, each with the nearest that does.

    One that resembles none is somebody else's (an orchestrator names its own after the service).
    """
    given = os.environ if environment is None else environment
    known = {*(name.upper() for name in _NAMES), *_OTHERS}
    unknown = sorted(
        name.removeprefix(ENVIRONMENT)
        for name in given
        if name.startswith(ENVIRONMENT) and name.removeprefix(ENVIRONMENT) not in known
    )
    pairs = ((name, _nearest(name, known)) for name in unknown)
    return [(ENVIRONMENT + name, ENVIRONMENT + near) for name, near in pairs if near is not None]


def _files(folder: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the settings of the nearest ``headrace.toml`` or ``pyproject.toml`` that has any."""
    for place in (folder, *folder.parents):
        own = place / "headrace.toml"
        if own.is_file():
            return [(str(own), _toml(own))]
        project = place / "pyproject.toml"
        if project.is_file():
            tools: Any = _toml(project).get("tool")
            table: Any = cast("dict[str, Any]", tools).get("headrace", {}) if isinstance(tools, dict) else {}
            if not isinstance(table, dict):
                problem = "it is a table of settings"
                raise errors.SettingInvalid(name="tool.headrace", origin=str(project), problem=problem)
            return [(str(project), cast("dict[str, Any]", table))]
    return []


def _toml(path: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        problem = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        raise errors.SettingsUnreadable(path=str(path), problem=problem) from None


_SQLITE = "sqlite://"


def path_of(url: str) -> str:
    """Return the file of a journal address; raises `JournalUrlInvalid`."""
    if url.startswith(_SQLITE):
        rest = url.removeprefix(_SQLITE)
        path = rest[1:] if rest.startswith("/") and not rest.startswith("//") else rest.removeprefix("/")
    elif "://" in url:
        raise errors.JournalUrlInvalid(url=url)
    else:
        path = url
    if not path or "\0" in path:
        raise errors.JournalUrlInvalid(url=url)
    return path
