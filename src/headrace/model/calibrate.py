"""How far the confidence of a model can be trusted, by labelled inputs, and the temperature for it."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ModelMismatch, ModelMissing
from headrace.model.confidence import Floats, fit_temperature, likelihood, top1
from headrace.model.onnx import OnnxModel
from headrace.model.onnxfile import with_property
from headrace.model.weights import Place, read_model

#: Bins of equal width, as in Guo et al., "On Calibration of Modern Neural Networks" (ICML 2017).
BINS = 15
#: Inputs of one inference.
BATCH = 64
#: Every so many-th labelled input is kept from fitting, where no other file is given to measure with.
HELD_OUT_EVERY = 5

Targets = NDArray[np.integer[Any]]


class Bin(NamedTuple):
    """The inputs whose confidence lies in one stretch."""

    low: float
    high: float
    inputs: int
    #: Their mean confidence, and the share that was right; what belongs to no class is never right.
    confidence: float
    right: float


class Figures(NamedTuple):
    """What a temperature comes to; shares are ``None`` where there is nothing to count."""

    temperature: float
    #: Expected calibration error: over the inputs with a class, and over all.
    error: float | None
    error_all: float
    loss: float
    accuracy: float | None
    right_and_kept: float | None
    foreign_caught: float | None
    bins: tuple[Bin, ...]


class Labelled(NamedTuple):
    """Logits of inputs, and the number of the right class of each; -1 = none."""

    logits: Floats
    targets: Targets

    def parted(self) -> tuple[Labelled, Labelled]:
        """Return one part to fit with and one to measure with."""
        held = np.arange(len(self.targets)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
        return Labelled(self.logits[~held], self.targets[~held]), Labelled(
            self.logits[held], self.targets[held]
        )

    def fit(self, threshold: float, goal: str | None) -> float:
        """Return the temperature that reaches a goal best: see `fit_temperature`."""
        return round(fit_temperature(self.logits, self.targets, threshold, goal), 4)

    def figures(self, temperature: float, threshold: float) -> Figures:
        """Return what a temperature comes to."""
        number, share = top1(self.logits, temperature)
        right, inside = number == self.targets, self.targets >= 0
        kept = share >= threshold
        return Figures(
            temperature=temperature,
            error=_error(bins_of(share[inside], right[inside])) if inside.any() else None,
            error_all=_error(bins_of(share, right)),
            loss=-likelihood(self.logits, self.targets, temperature),
            accuracy=_share(right[inside]),
            right_and_kept=_share((right & kept)[inside]),
            foreign_caught=_share(~kept[~inside]),
            bins=tuple(bins_of(share, right)),
        )


def _share(found: NDArray[np.bool_]) -> float | None:
    return float(found.mean()) if len(found) else None


def bins_of(share: Floats, right: NDArray[np.bool_]) -> list[Bin]:
    """Return the inputs in bins of equal width; empty ones have zeros."""
    where = np.minimum((share * BINS).astype(int), BINS - 1)
    found: list[Bin] = []
    for number in range(BINS):
        mine = where == number
        count = int(mine.sum())
        means = (float(share[mine].mean()), float(right[mine].mean())) if count else (0.0, 0.0)
        found.append(Bin(number / BINS, (number + 1) / BINS, count, *means))
    return found


def _error(bins: Sequence[Bin]) -> float:
    total = sum(one.inputs for one in bins)
    return sum(one.inputs * abs(one.confidence - one.right) for one in bins) / total if total else 0.0


# --- the model --------------------------------------------------------------------------------


def labels_of(model: OnnxModel) -> tuple[tuple[str, ...], float]:
    """Return the labels of a model and its temperature; raises the `ModelError` family."""
    told = model.told()
    if told.labels is None or model.decode is not None:
        problem = "its answers are no labels with a confidence, so there is nothing to calibrate"
        raise ModelMismatch(path=model.path, problem=problem)
    return told.labels, told.temperature


def logits_of(model: OnnxModel, inputs: Sequence[object]) -> Floats:
    """Return the logits of inputs, encoded as a worker would."""
    loaded = dataclasses.replace(model, decode=_raw).load()
    try:
        batches = [loaded.infer(inputs[at : at + BATCH]) for at in range(0, len(inputs), BATCH)]
    finally:
        loaded.close()
    rows: list[Any] = [row for batch in batches for row in batch]
    return np.stack(rows)


def labelled(model: OnnxModel, inputs: Sequence[object], targets: Sequence[int]) -> Labelled:
    """Return inputs as the model sees them, each with the number of its class."""
    return Labelled(logits_of(model, inputs), np.array(targets))


def _raw(outputs: list[Any]) -> list[Any]:
    return list(outputs[0])


def calibrated(model: OnnxModel, temperature: float) -> bytes:
    """Return the file of a model with another temperature; all else stays byte for byte."""
    if model.temperature is not None:
        problem = "its temperature is given in the code, which wins over the file"
        hint = f"write Model.onnx(..., temperature={temperature}) there, or take it out"
        raise ModelMismatch(path=model.path, problem=problem, hint=hint)
    content, _, _ = read_model(Place(model.path, model.folder))
    return with_property(content, "headrace.temperature", repr(temperature))


def place_of(model: OnnxModel) -> Path:
    """Return the file itself, whatever links lead to it."""
    return Place(model.path, model.folder).model()


def put(path: Path, content: bytes) -> None:
    """Put a file in its place, whole or not at all, with the mode of the one before it."""
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o644
        handle, draft = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), mode)
                os.fsync(file.fileno())
            Path(draft).replace(path)
        except BaseException:
            with suppress(OSError):
                Path(draft).unlink()
            raise
    except OSError as fault:
        raise ModelMissing(f"({fault.strerror})", path=path) from fault
