"""What a classifier says about one input."""

from __future__ import annotations

import msgspec


class Label(msgspec.Struct, frozen=True):
    """The likeliest class, and how sure the model is of it."""

    name: str
    #: 0 to 1: the softmax of the logits, divided by the model's temperature.
    confidence: float
