"""What the runtime asks of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class LoadedModel(Protocol):
    """One set of weights in memory, in the process that uses it."""

    name: str
    #: sha256 (hex) over weights, labels, pre- and post-processing and calibration.
    digest: str
    declared: str | None

    def infer(self, inputs: Sequence[object]) -> list[object]:
        """Return one result per input, in order.  Blocking, thread-safe, called off the event loop.

        A model with a true attribute ``on_loop`` is called on it once it is known to take a fraction of a
        millisecond.
        """
        ...

    def close(self) -> None:
        """Free the memory."""
        ...


class Model(Protocol):
    """What a user declares: a recipe.  Holds no session, so it can be pickled and survives a fork."""

    name: str
    batch_max: int
    batch_wait_ms: float

    def load(self, like: LoadedModel | None = None) -> LoadedModel:
        """Build and warm up; blocking.  Raises the `ModelError` family.

        ``like`` is the model it is to replace: one with other inputs or outputs is refused.
        """
        ...

    def fingerprint(self) -> object:
        """Return a cheap value that changes when the file may have changed."""
        ...
