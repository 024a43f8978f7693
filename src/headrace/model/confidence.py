"""From the outputs of a model to answers and to how sure it is of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from headrace.errors import ModelOutput
from headrace.event.label import Label
from headrace.model.encoders import Array, Part

Floats = NDArray[np.floating[Any]]

#: Temperatures that are tried: 0.1 to 10 in steps of 2 %; beyond that it is the training that needs mending.
TEMPERATURES = np.geomspace(0.1, 10.0, 233)
#: Of the threshold, while fitting: an input counts by degrees, so that one among few does not decide.
SOFTNESS = 0.1


def top1(logits: Floats, temperature: float) -> tuple[NDArray[np.intp], Floats]:
    """Return the likeliest class of each row and its share of the softmax."""
    scaled = logits.astype(np.float64) / temperature
    best = scaled.max(axis=1, keepdims=True)
    return scaled.argmax(axis=1), 1.0 / np.exp(scaled - best).sum(axis=1)


class Classes(Part):
    """Logits, one for each label, become the likeliest label with its confidence."""

    id = "softmax-top1/1"

    def __init__(self, labels: Sequence[str], temperature: float, model: str) -> None:
        self.parameters = {"labels": list(labels), "temperature": temperature}
        self._labels = tuple(labels)
        self._temperature = temperature
        self._model = model

    def __call__(self, outputs: Sequence[Array]) -> list[Label]:
        """Return one label for each row."""
        logits = self._checked(outputs[0])
        numbers, shares = top1(logits, self._temperature)
        names: list[str] = [self._labels[number] for number in numbers.tolist()]
        return list(map(Label, names, shares.tolist()))

    def _checked(self, logits: Array) -> Floats:
        wanted = len(self._labels)
        if logits.ndim != 2 or logits.shape[1] != wanted or logits.dtype.kind != "f":  # noqa: PLR2004 - rows, classes
            problem = f"{logits.dtype} of shape {logits.shape} are no logits of {wanted} labels"
            raise ModelOutput(model=self._model, problem=problem)
        if not np.isfinite(logits).all():
            raise ModelOutput(model=self._model, problem="some logits are not finite")
        return cast("Floats", logits)


class Rows(Part):
    """The rows of the one output as they are; a row of one number becomes that number."""

    id = "rows/1"

    def __init__(self, model: str) -> None:
        self.parameters = {}
        self._model = model

    def __call__(self, outputs: Sequence[Array]) -> list[object]:
        """Return one value for each row."""
        output = outputs[0]
        if output.dtype.kind == "f" and np.isnan(output).any():
            raise ModelOutput(model=self._model, problem="it holds NaN")
        rows = output if output.ndim else output[None]
        return rows.ravel().tolist() if rows.size == len(rows) else list(rows)


#: What a temperature can be fitted for.
SEPARATION, LIKELIHOOD = "separation", "likelihood"


def fit_temperature(
    logits: Floats, targets: NDArray[np.integer[Any]], threshold: float = 0.5, goal: str | None = None
) -> float:
    """Return the temperature under which confidence tells best what the model knows.

    ``targets`` holds the number of the right class, and -1 for an input that belongs to none. ``separation``
    (where there are such inputs, unless told otherwise) makes the two shares that count large together: right
    and above ``threshold``; foreign and below it. ``likelihood`` is the classic one, the least negative
    log-likelihood: confidence is then about the share of right answers; of a foreign input every class is
    expected alike.
    """
    goal = goal or (SEPARATION if (targets < 0).any() else LIKELIHOOD)
    scores = [
        _separation(logits, targets, threshold, float(one))
        if goal == SEPARATION
        else likelihood(logits, targets, float(one))
        for one in TEMPERATURES
    ]
    return float(TEMPERATURES[int(np.argmax(scores))])


def likelihood(logits: Floats, targets: NDArray[np.integer[Any]], temperature: float) -> float:
    """Return the mean log-likelihood of the targets."""
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    logs = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    known = logs[np.arange(len(targets)), np.maximum(targets, 0)]
    inside = targets >= 0
    return float((known[inside].sum() + logs[~inside].mean(axis=1).sum()) / len(targets))


def _separation(
    logits: Floats, targets: NDArray[np.integer[Any]], threshold: float, temperature: float
) -> float:
    number, share = top1(logits, temperature)
    above = 1 / (1 + np.exp((threshold - share) / SOFTNESS))
    foreign = targets < 0
    kept = (above * (number == targets))[~foreign].mean()
    return float(kept + (1 - above)[foreign].mean())
