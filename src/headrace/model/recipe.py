"""What `Model.onnx` keeps: the values of a declaration, checked, and nothing that is alive."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self, cast

from headrace.errors import ModelLive, ModelMissing, SettingInvalid
from headrace.model import metadata
from headrace.model.metadata import Unfit
from headrace.model.weights import Stamp

BATCH_MAX = 1_024  # inputs at once; beyond it latency grows and throughput does not
BATCH_WAIT_MS_MAX = 10_000.0  # a batch that waits longer is a job for a scheduler
THREADS_MAX = 1_024  # more than any machine has cores

Encode = Callable[[list[Any]], Mapping[str, Any]]
Decode = Callable[[list[Any]], Sequence[object]]


@dataclass(slots=True, eq=False)  # not frozen: the port has plain attributes
class Recipe:
    """The parts of a declaration; `Model.onnx` tells what each means."""

    path: str
    name: str
    version: str | None
    labels: tuple[str, ...] | None
    encode: Encode | None
    decode: Decode | None
    temperature: float | None
    batch_max: int
    batch_wait_ms: float
    folder: str | None
    allow_custom_ops: bool
    threads: int | None
    workers: int = 1
    #: The names of the files beside the model, by the stamp of the model that names them (one entry).
    _beside: dict[Stamp, list[str]] = field(default_factory=dict[Stamp, list[str]], init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            _check(self)
        except Unfit as error:
            raise _bad_setting(error) from None

    def for_workers(self, count: int) -> Self:
        """Return the recipe for one of ``count`` processes that share the cores."""
        return dataclasses.replace(self, workers=max(1, count))

    def thread_count(self) -> int:
        """Return how many threads one inference uses."""
        return self.threads or max(1, _cores() // self.workers)


def checked_path(path: object) -> str:
    """Return a path as text; raises `ModelLive` or `ModelMissing`."""
    if hasattr(path, "run") or hasattr(path, "SerializeToString"):
        raise ModelLive
    if not isinstance(path, str | os.PathLike):
        raise ModelMissing("A path is text.", path=repr(path))
    file = os.fsdecode(cast("str | os.PathLike[str]", path))
    try:
        usable = b"\0" not in os.fsencode(file)
    except UnicodeEncodeError:
        usable = False
    if not file or not usable:
        raise ModelMissing("That is no path.", path=ascii(file))
    return file


def checked_labels(labels: Sequence[str] | None) -> tuple[str, ...] | None:
    """Return labels that nobody can change; raises `SettingInvalid`."""
    try:
        return None if labels is None else metadata.check_labels(labels)
    except Unfit as error:
        raise _bad_setting(error) from None


def name_of(path: str) -> str:
    """Return the name of a file without its ending, as far as it can stand in a version."""
    plain = re.sub(r"[^\w.-]+", "-", Path(path).stem, flags=re.ASCII)
    return plain[: metadata.WORD_CHARS_MAX] or "model"


def _bad_setting(error: Unfit) -> SettingInvalid:
    return SettingInvalid(name="model", origin="Model.onnx", problem=str(error))


def _check(recipe: Recipe) -> None:
    metadata.check_word("name", recipe.name)
    if recipe.version is not None:
        metadata.check_word("version", recipe.version)
    if recipe.temperature is not None:
        metadata.check_temperature(recipe.temperature)
    for key, value, least, most in (
        ("batch_max", recipe.batch_max, 1, BATCH_MAX),
        ("batch_wait_ms", recipe.batch_wait_ms, 0, BATCH_WAIT_MS_MAX),
        ("threads", recipe.threads or 1, 1, THREADS_MAX),
    ):
        if not least <= value <= most:
            raise Unfit(f"{key} must be {least} to {most}")


def _cores() -> int:
    # What this process may use, where the system tells; a container is often given less than the machine has.
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
