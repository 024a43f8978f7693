"""One tree of errors: the docstring of a class is the message, the reference and the hint.

The first line is the message and may name context in braces; the body says what happens next; the
paragraph that starts with ``Hint:`` says what you can do.  ``headrace explain CODE`` prints it.
"""

from __future__ import annotations

import enum
from functools import partial
from string import Formatter
from typing import Any, ClassVar

#: What a message quotes, a name or a value, and a whole message with its detail: what a person reads.
QUOTED_CHARS_MAX, MESSAGE_CHARS_MAX = 500, 4_000


def bounded(text: str, chars_max: int) -> str:
    """Return text of which the middle is left out where it is longer than a message may quote."""
    if len(text) <= chars_max:
        return text
    tail = chars_max // 4
    head = chars_max - tail
    return f"{text[:head]}... ({len(text) - chars_max:,} characters left out) ...{text[-tail:]}"


class Fault(enum.Enum):
    """Who has to act."""

    YOURS = "yours: the app, its settings or the call"
    THEIRS = "theirs: an input, a disk, a model file or another program"
    OURS = "ours: a fault in Headrace; please report it"


class _Lenient(Formatter):
    """Formats a message even where a name in braces was not given."""

    def get_value(self, key: int | str, args: Any, kwargs: Any) -> Any:
        """Return the context value, or ``?`` where there is none."""
        return kwargs.get(key, "?") if isinstance(key, str) else super().get_value(key, args, kwargs)

    def format_field(self, value: Any, format_spec: str) -> str:
        """Return a value as text that is no longer than a message may quote."""
        return bounded(str(super().format_field(value, format_spec)), QUOTED_CHARS_MAX)


_FORMAT = _Lenient()


class HeadraceError(Exception):
    """Something went wrong in Headrace.

    Every error has a ``code``, a ``fault`` (whose it is), a ``hint`` and a ``context``.
    """

    code: ClassVar[str] = "HR-E000"
    fault: ClassVar[Fault] = Fault.OURS
    #: May the same attempt succeed later without a change of code or configuration?
    retryable: ClassVar[bool] = False

    def __init__(self, detail: str = "", *, hint: str | None = None, **context: object) -> None:
        self.detail = detail
        self.context = context
        self._hint = hint
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle with the context, so that an error crosses a process pool whole."""
        return partial(type(self), self.detail, hint=self._hint, **self.context), ()

    @property
    def message(self) -> str:
        """One sentence: what happened, with the context filled in, then the detail; long ones are cut."""
        told = _FORMAT.vformat(headline(type(self)), (), self.context)
        return bounded(f"{told} {self.detail}".rstrip(), MESSAGE_CHARS_MAX)

    @property
    def hint(self) -> str:
        """What you can do, or an empty string."""
        if self._hint is not None:
            return bounded(self._hint, MESSAGE_CHARS_MAX)
        return _FORMAT.vformat(_paragraph(type(self), "Hint:"), (), self.context)


def headline(kind: type[HeadraceError]) -> str:
    """Return the first line of the docstring (the class name under ``python -OO``)."""
    return (kind.__doc__ or kind.__name__).strip().splitlines()[0]


def _paragraph(kind: type[HeadraceError], start: str) -> str:
    for part in (kind.__doc__ or "").split("\n\n"):
        text = " ".join(part.split())
        if text.startswith(start):
            return text.removeprefix(start).strip()
    return ""


def catalogue() -> dict[str, type[HeadraceError]]:
    """Return every error class by its code."""
    found: dict[str, type[HeadraceError]] = {}
    queue: list[type[HeadraceError]] = [HeadraceError]
    while queue:
        kind = queue.pop()
        # A family without a code of its own inherits one; only the class that names it counts.
        if "code" in vars(kind):
            found[kind.code] = kind
        queue.extend(kind.__subclasses__())
    return dict(sorted(found.items()))
