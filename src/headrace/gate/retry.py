"""What follows from a failed attempt: another one after a wait, or the dead letters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from headrace import errors
from headrace.ports import Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a handler tries an event.

    ``attempts_max`` counts every attempt, the first included.  The wait before attempt n + 1 is drawn from
    [0, min(``backoff_max_ms``, ``backoff_first_ms`` * 2**(n-1))] (full jitter: Brooker, "Exponential
    Backoff And Jitter", AWS Architecture Blog, 2015).  ``crash_attempts_max`` bounds the times that the
    process may die with the event in hand.
    """

    attempts_max: int = 5
    backoff_first_ms: float = 200.0
    backoff_max_ms: float = 60_000.0
    crash_attempts_max: int = 3

    def __post_init__(self) -> None:
        """Refuse numbers that mean no attempt at all, or a wait without bound."""
        for name in ("attempts_max", "crash_attempts_max"):
            if type(number := getattr(self, name)) is not int:
                problem = f"{name} is a whole number, not {number!r}"
                raise errors.SettingInvalid(name="retry", origin="code", problem=problem)
        for name in ("backoff_first_ms", "backoff_max_ms"):
            if not isinstance(number := getattr(self, name), (int, float)):
                problem = f"{name} is a number, not {number!r}"
                raise errors.SettingInvalid(name="retry", origin="code", problem=problem)
        if self.attempts_max < 1 or self.crash_attempts_max < 1:
            raise errors.SettingInvalid(name="retry", origin="code", problem="an event needs one attempt")
        if not 0 <= self.backoff_first_ms <= self.backoff_max_ms:
            raise errors.SettingInvalid(
                name="retry", origin="code", problem="0 <= backoff_first_ms <= backoff_max_ms must hold"
            )


class Retry(NamedTuple):
    """Try again after a wait."""

    after_ms: float


class Dead(NamedTuple):
    """Put it aside; ``reason`` is a word to filter by."""

    reason: str


#: Reasons that a code stands for; any other failure is ``failed``.
_REASONS: dict[type[BaseException], str] = {
    errors.PayloadInvalid: "invalid",
    errors.PayloadUndecodable: "undecodable",
    errors.HeadCorrupt: "undecodable",
    errors.ContentTypeRefused: "content_type_refused",
    errors.TypeUnknown: "unknown_type",
    errors.PayloadTooLarge: "too_large",
    errors.EmitRefused: "emit_refused",
    errors.DerivedConflict: "conflict",
    errors.DepthExceeded: "depth",
    errors.DeadlineExceeded: "deadline",
    errors.HandlerCrashed: "crash",
    errors.PoolCrashed: "crash",
    errors.InputRefused: "input_refused",
}


def reason_of(error: BaseException) -> str:
    """Return the word for a failure."""
    return next((word for kind, word in _REASONS.items() if isinstance(error, kind)), "failed")


def decide(error: BaseException, attempt: Attempt, policy: RetryPolicy, chance: float) -> Retry | Dead:
    """Return what to do after a failed attempt; ``chance`` in [0, 1) draws the wait."""
    if isinstance(error, errors.PoolCrashed):
        # As after the death of a worker: at once, alone, and counted apart.
        return Dead("crash") if attempt.crashes + 1 >= policy.crash_attempts_max else Retry(0.0)
    permanent = isinstance(error, errors.HeadraceError) and not error.retryable
    if permanent or attempt.number >= policy.attempts_max:
        return Dead(reason_of(error))
    ceiling = min(policy.backoff_max_ms, policy.backoff_first_ms * 2.0 ** min(attempt.number - 1, 60))
    return Retry(ceiling * chance)


def crashed_out(attempt: Attempt, policy: RetryPolicy) -> bool:
    """Return whether an event has taken the process with it too often to be tried again."""
    return attempt.crashes >= policy.crash_attempts_max
