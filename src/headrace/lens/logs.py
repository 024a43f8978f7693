"""Log records as lines: of text for people, of JSON for programs; which event they speak of is kept apart."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime
from typing import Any

#: What a record of ours may know beside its message; `ctx.log` sets all of it.
ABOUT = ("event_id", "trace_id", "handler")
#: What every record has; all else was given as ``extra``.
_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object per record: time, level, logger, message, what it is about, and all ``extra``.

    For the logs of an app in one's own process: ``handler.setFormatter(JsonLines())``.
    """

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        found: dict[str, Any] = {
            "time": time.removesuffix("+00:00") + "Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        found |= {name: value for name, value in vars(record).items() if name not in _PLAIN | found.keys()}
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str, ensure_ascii=False)


class TextLines(logging.Formatter):
    """A line for people; the event and the trace stand at its end, to be copied."""

    def __init__(self, prefix: str = "") -> None:
        super().__init__(f"{prefix}%(asctime)s %(levelname)s %(name)s: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - the name of the standard library
        about = [f"{name}={value}" for name in ABOUT if (value := getattr(record, name, None)) is not None]
        line = super().formatMessage(record)
        return f"{line} ({', '.join(about)})" if about else line
