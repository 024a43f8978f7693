"""Every error as people and programs meet it: code, family, words, pickled and back."""

from __future__ import annotations

import pickle
import re
from string import Formatter
from typing import Any

import pytest

import headrace
from headrace import errors
from headrace.errors.tree import Fault, HeadraceError, catalogue, headline

CATALOGUE = {code: kind for code, kind in catalogue().items() if kind.__module__.startswith("headrace.")}
CONCRETE = [kind for kind in CATALOGUE.values() if kind is not HeadraceError]
FAMILIES = {
    errors.EventError: "1",
    errors.JournalError: "2",
    errors.ModelError: "3",
    errors.HandlerError: "4",
    errors.UsageError: "5",
}
EACH = pytest.mark.parametrize("kind", CONCRETE, ids=lambda kind: kind.__name__)


def names(kind: type[HeadraceError]) -> set[str]:
    """Return the names in braces of an error's text."""
    return {name for _, name, _, _ in Formatter().parse(kind.__doc__ or "") if name}


def paragraphs(kind: type[HeadraceError]) -> list[str]:
    """Return the paragraphs of an error's text, each on one line."""
    return [" ".join(part.split()) for part in (kind.__doc__ or "").split("\n\n") if part.strip()]


def test_every_code_is_in_the_catalogue_once() -> None:
    """No class hides another by taking its code."""
    queue, coded = [HeadraceError], list[type[HeadraceError]]()
    while queue:
        kind = queue.pop()
        queue += kind.__subclasses__()
        if "code" in vars(kind) and kind.__module__.startswith("headrace."):
            coded.append(kind)
    assert len({kind.code for kind in coded}) == len(coded) == len(CATALOGUE)


@EACH
def test_a_code_stands_in_the_hundred_of_its_family(kind: type[HeadraceError]) -> None:
    """HR-E1xx events, 2xx the journal, 3xx models, 4xx handlers, 5xx use; one family each."""
    families = [digit for family, digit in FAMILIES.items() if issubclass(kind, family)]
    assert len(families) == 1
    assert re.fullmatch(rf"HR-E{families[0]}\d\d", kind.code)
    assert "code" in vars(kind)
    assert "fault" in vars(kind)
    assert isinstance(kind.fault, Fault)


@EACH
def test_an_error_says_what_happened_and_what_to_do(kind: type[HeadraceError]) -> None:
    """A sentence with a stop, and a hint; between them what happens next, where anything could."""
    first, *rest = paragraphs(kind)
    assert first == headline(kind)
    assert first.endswith(".")
    assert rest
    assert rest[-1].startswith("Hint: ")
    only_asked = issubclass(kind, errors.UsageError | errors.EventNotFound)
    assert len(rest) > 1 or only_asked
    assert len(first) <= 110


@EACH
def test_an_error_is_written_with_and_without_its_context(kind: type[HeadraceError]) -> None:
    """What was not given is a question mark; what was given stands in the text, then the detail."""
    bare = kind()
    assert "{" not in bare.message + bare.hint
    assert str(bare) == bare.message

    context = {name: f"<{name}>" for name in names(kind)}
    full = kind("And more.", **context)
    told = full.message + full.hint
    assert all(f"<{name}>" in told for name in names(kind))
    assert full.message.endswith(" And more.")
    assert full.context == context
    assert kind(hint="do this").hint == "do this"


@EACH
def test_an_error_crosses_a_process_whole(kind: type[HeadraceError]) -> None:
    """Pickled and back it has the same class, words, hint and context."""
    before = kind("detail", hint="own hint", **dict.fromkeys(names(kind), 7))
    after = pickle.loads(pickle.dumps(before))
    assert type(after) is kind
    assert (str(after), after.hint, after.context, after.detail) == (
        str(before),
        before.hint,
        before.context,
        "detail",
    )
    assert pickle.loads(pickle.dumps(kind())).hint == kind().hint


@EACH
def test_every_error_can_be_imported(kind: type[HeadraceError]) -> None:
    """`headrace.errors` exports it, so that it can be caught by name."""
    assert getattr(errors, kind.__name__) is kind
    assert kind.__name__ in errors.__all__


def test_who_retries_is_told_by_the_class() -> None:
    """Only what may pass by itself is tried again: a lock, a disk, a deadline, a handler's own failure."""
    assert {kind.__name__ for kind in CONCRETE if kind.retryable} >= {
        "JournalBusy",
        "JournalUnavailable",
        "DiskFull",
        "DeadlineExceeded",
        "HandlerFailed",
        "PoolCrashed",
    }
    assert not any(kind.retryable for kind in CONCRETE if issubclass(kind, errors.EventError))


def test_families_have_no_code_of_their_own() -> None:
    """They are for `except`; the base has the code of a fault that is ours."""
    assert not any("code" in vars(family) for family in FAMILIES)
    assert (HeadraceError.code, HeadraceError.fault) == ("HR-E000", Fault.OURS)
    assert all(issubclass(family, HeadraceError) for family in FAMILIES)


def test_braces_in_a_value_are_left_alone() -> None:
    """A context that looks like a format is text."""
    found = errors.TypeUnknown("{detail}", type="{topic}", topic="{0}")
    assert "{topic} (topic {0})" in str(found)
    assert str(found).endswith("{detail}")


@pytest.mark.parametrize("long", ["x" * 100_000, ["y" * 99_996]], ids=["text", "list"])
def test_what_is_long_is_cut_in_every_error(long: object) -> None:
    """A name of 100 kB is told by its ends; the context keeps it whole, here and in another process."""
    for kind in CONCRETE:
        context: dict[str, Any] = dict.fromkeys(names(kind), long)
        found = pickle.loads(pickle.dumps(kind(str(long), hint=str(long), **context)))
        assert len(str(found)) < 5_000, kind.code
        assert len(found.hint) < 5_000, kind.code
        assert "characters left out) ..." in str(found)
        assert found.context == context
        assert len(kind(**context).hint) < 5_000, kind.code
    assert str(errors.TopicInvalid(topic="x" * 1_000)) == (
        f"Topic name '{'x' * 374}... (502 characters left out) ...{'x' * 124}' is not usable."
    )


def test_the_base_is_caught_from_the_package() -> None:
    """`headrace.errors` is what the package itself raises."""
    with pytest.raises(errors.HeadraceError):
        headrace.App("no spaces allowed")
