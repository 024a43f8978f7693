"""What follows from a failed attempt: a wait within its bounds, or the dead letters with a word for why."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import RetryPolicy, errors
from headrace.gate.retry import Dead, Retry, crashed_out, decide, reason_of
from headrace.ports import Attempt

MS = st.floats(0, 1e9)
POLICIES = st.builds(
    lambda first, more, attempts, crashes: RetryPolicy(
        attempts_max=attempts,
        backoff_first_ms=first,
        backoff_max_ms=first + more,
        crash_attempts_max=crashes,
    ),
    MS,
    MS,
    st.integers(1, 10_000),
    st.integers(1, 10),
)
CHANCE = st.floats(0, 1, exclude_max=True)


@given(policy=POLICIES, number=st.integers(1, 10_000), chance=CHANCE)
def test_the_wait_is_drawn_below_a_ceiling_that_doubles(
    policy: RetryPolicy, number: int, chance: float
) -> None:
    """Full jitter: from nothing to the ceiling, never beyond the longest wait; the last is the last."""
    found = decide(ValueError("x"), Attempt(number), policy, chance)

    if number >= policy.attempts_max:
        assert found == Dead("failed")
    else:
        assert isinstance(found, Retry)
        assert 0 <= found.after_ms <= policy.backoff_max_ms
        assert found.after_ms <= policy.backoff_first_ms * 2.0 ** min(number - 1, 60)


def test_the_ceiling_doubles_up_to_the_longest_wait() -> None:
    """First, twice, four times the first wait, then the longest; chance takes its share."""
    policy = RetryPolicy(attempts_max=99, backoff_first_ms=100, backoff_max_ms=500)
    waits = [decide(ValueError(), Attempt(n), policy, 0.5) for n in (1, 2, 3, 4, 98)]

    assert waits == [Retry(50), Retry(100), Retry(200), Retry(250), Retry(250)]
    assert decide(ValueError(), Attempt(1), policy, 0.0) == Retry(0)


def test_attempts_count_the_first() -> None:
    """One attempt means no second one; five mean four retries."""
    one, five = RetryPolicy(attempts_max=1), RetryPolicy()
    assert decide(ValueError(), Attempt(), one, 0.5) == Dead("failed")
    assert [type(decide(ValueError(), Attempt(n), five, 0.5)) for n in range(1, 6)] == [Retry] * 4 + [Dead]


@pytest.mark.parametrize("kind", errors.catalogue().values(), ids=lambda kind: kind.__name__)
def test_a_permanent_error_is_not_tried_again(kind: type[errors.HeadraceError]) -> None:
    """Whether an error of Headrace is repeated is what its class says."""
    found = decide(kind(), Attempt(), RetryPolicy(), 0.5)
    assert isinstance(found, Retry if kind.retryable else Dead)


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (errors.PayloadInvalid(), "invalid"),
        (errors.PayloadUndecodable(), "undecodable"),
        (errors.HeadCorrupt(), "undecodable"),
        (errors.ContentTypeRefused(), "content_type_refused"),
        (errors.TypeUnknown(), "unknown_type"),
        (errors.PayloadTooLarge(), "too_large"),
        (errors.EmitRefused(), "emit_refused"),
        (errors.DerivedConflict(), "conflict"),
        (errors.DepthExceeded(), "depth"),
        (errors.DeadlineExceeded(), "deadline"),
        (errors.HandlerCrashed(), "crash"),
        (errors.InputRefused(), "input_refused"),
        (errors.ModelOutput(), "failed"),
        (ValueError(), "failed"),
        (KeyboardInterrupt(), "failed"),
    ],
)
def test_a_dead_letter_has_a_word_to_filter_by(error: BaseException, word: str) -> None:
    """The words are part of the command line: they do not change by accident."""
    assert reason_of(error) == word
    assert decide(error, Attempt(number=99), RetryPolicy(), 0.5) == Dead(word)


def test_a_crash_of_a_pool_is_counted_apart() -> None:
    """At once and alone until the process died as often as is allowed, whatever the attempt's number."""
    policy = RetryPolicy(attempts_max=1, crash_attempts_max=3)
    found = [decide(errors.PoolCrashed(), Attempt(9, crashes), policy, 0.9) for crashes in range(4)]
    assert found == [Retry(0.0), Retry(0.0), Dead("crash"), Dead("crash")]


def test_crashes_are_bounded() -> None:
    """As many as are allowed are enough; attempts have no say."""
    policy = RetryPolicy(crash_attempts_max=2)
    assert [crashed_out(Attempt(50, n), policy) for n in range(4)] == [False, False, True, True]


@pytest.mark.parametrize(
    "numbers",
    [
        {"attempts_max": 0},
        {"attempts_max": -1},
        {"crash_attempts_max": 0},
        {"backoff_first_ms": -1.0},
        {"backoff_first_ms": 2.0, "backoff_max_ms": 1.0},
        {"backoff_max_ms": float("nan")},
        {"backoff_first_ms": float("nan")},
    ],
)
def test_a_policy_without_sense_is_refused(numbers: dict[str, float]) -> None:
    """No attempt at all, or waits that do not fit each other: `SettingInvalid` when it is made."""
    with pytest.raises(errors.SettingInvalid, match="retry"):
        RetryPolicy(**numbers)  # type: ignore[arg-type]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1.5, True, "3"])
def test_attempts_are_whole_numbers(number: Any) -> None:
    """Compared with what is none of these an attempt would never be the last."""
    for name in ("attempts_max", "crash_attempts_max"):
        with pytest.raises(errors.SettingInvalid, match=f"{name} is a whole number"):
            RetryPolicy(**{name: number})
