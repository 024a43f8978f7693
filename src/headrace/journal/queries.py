"""Reads the named queries of a ``.sql`` file, so that no SQL stands in Python."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

_NAME = "-- name: "


def read(name: str) -> str:
    """Return the text of a ``.sql`` file of this package."""
    return files(__package__ or "headrace.journal").joinpath(name).read_text(encoding="utf-8")


@cache
def load(name: str) -> Any:
    """Return the queries of a file, one attribute each."""
    found: dict[str, str] = {}
    for part in read(name).split(_NAME)[1:]:
        title, _, body = part.partition("\n")
        lines = [line for line in body.splitlines() if not line.startswith("--")]
        found[title.strip()] = " ".join("\n".join(lines).split()).rstrip(";")
    return SimpleNamespace(**found)
