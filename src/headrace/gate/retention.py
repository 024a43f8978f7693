"""How long a topic keeps the payload of its events."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

from headrace import errors
from headrace.event.contract import Contract, Event, contract_of
from headrace.ports import Keep

#: Shorter ages are mistakes: a second is what an event may take until it is handled.
AGE_MIN = timedelta(seconds=1)
#: Smaller bounds are mistakes too: one event may have a payload of 1 MiB.
BYTES_MIN = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long a topic keeps its events: for a time, up to a size, or both; the stricter one counts.

    ``Retention(age=timedelta(days=30), bytes_max=1 << 30)``.  An event is removed when it is older than
    ``age``, or the oldest of a topic whose events take more than ``bytes_max``, and never before every
    handler has finished it.  Its id, its causes and its time stay for the setting ``dedup_window_s``.
    """

    age: timedelta | None = None
    bytes_max: int | None = None

    def keep(self, topic: str) -> Keep:
        """Return the rule for a topic; raises `RetentionInvalid`."""
        if problem := _mistaken(self.age, self.bytes_max):
            raise errors.RetentionInvalid(topic=topic, problem=problem)
        if self.age is None and self.bytes_max is None:
            problem = "it says neither age nor bytes_max"
        elif self.age is not None and self.age < AGE_MIN:
            problem = f"an age is at least {AGE_MIN.seconds} s, not {self.age.total_seconds():g} s"
        elif self.bytes_max is not None and self.bytes_max < BYTES_MIN:
            problem = f"bytes_max is at least {BYTES_MIN:,}, not {self.bytes_max:,}"
        if problem:
            raise errors.RetentionInvalid(topic=topic, problem=problem)
        age_us = None if self.age is None else self.age // timedelta(microseconds=1)
        return Keep(topic, age_us, self.bytes_max)


def _mistaken(age: object, bytes_max: object) -> str:
    """Say which bound is of the wrong kind; nothing: none is."""
    if not (age is None or isinstance(age, timedelta)):
        return f"an age is a timedelta, not {age!r}"
    if not (bytes_max is None or type(bytes_max) is int):
        return f"bytes_max is a whole number, not {bytes_max!r}"
    return ""


def keeps(rules: Mapping[type[Event], Retention]) -> Iterator[tuple[Contract, Keep]]:
    """Yield the rule of each event class; raises `RetentionInvalid`, `ContractInvalid`."""
    told: dict[str, Keep] = {}
    for event, rule in rules.items():
        contract, kind = contract_of(event), type(rule)
        if kind is not Retention:
            problem = f"its rule is a Retention, not {rule!r}"
            raise errors.RetentionInvalid(topic=contract.topic, problem=problem)
        keep = rule.keep(contract.topic)
        if told.setdefault(contract.topic, keep) != keep:
            problem = "two event classes say different things"
            raise errors.RetentionInvalid(topic=contract.topic, problem=problem)
        yield contract, keep
