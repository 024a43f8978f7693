"""Headrace: run models on events; every event is handled exactly once per model version."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.app import App
    from headrace.event.contract import Event
    from headrace.event.envelope import Envelope
    from headrace.event.label import Label
    from headrace.gate.retention import Retention
    from headrace.gate.retry import RetryPolicy
    from headrace.model import Model
    from headrace.runtime.context import Context
    from headrace.runtime.outlet import Published
    from headrace.runtime.publish import Options

#: Where each public name lives; loaded when it is first used, so that a small app starts quickly.
_HOME = {
    "App": "headrace.app",
    "Context": "headrace.runtime.context",
    "Envelope": "headrace.event.envelope",
    "Event": "headrace.event.contract",
    "Label": "headrace.event.label",
    "Model": "headrace.model",
    "Options": "headrace.runtime.publish",
    "Published": "headrace.runtime.outlet",
    "Retention": "headrace.gate.retention",
    "RetryPolicy": "headrace.gate.retry",
}

__version__ = "0.1.0"
__all__ = [
    "App",
    "Context",
    "Envelope",
    "Event",
    "Label",
    "Model",
    "Options",
    "Published",
    "Retention",
    "RetryPolicy",
]


def __getattr__(name: str) -> Any:
    """Load a public name when it is first asked for."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)
