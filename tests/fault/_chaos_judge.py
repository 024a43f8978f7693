"""The judge of `kafka_chaos.py`: what plain committed readers see, against what was published.

It knows nothing of Headrace but the rules of the app in `_chaos_worker.py`, written out a second time, and
the two headers of CloudEvents that name handler and model.

* lost: an event that was published and has no result of a step (or no dead letter, where it must have one);
* doubled: a second result, or a second dead letter, or both;
* two_versions: results of one event by two versions; or a version with two weights, or weights that are two;
* reordered: results of a key that are not in the order in which its events stand in the topic before.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

FAULTS = ("lost", "doubled", "two_versions", "reordered")
DOOMED_EVERY = 41


class Record(Protocol):
    """A committed record, as `tests/services/reading.py` finds it."""

    @property
    def headers(self) -> dict[str, bytes]:
        """The headers."""
        ...

    def body(self) -> dict[str, Any]:
        """Return the payload."""
        ...


class Seen(NamedTuple):
    """The committed records of the topics of a run, those of a key in order."""

    asked: Sequence[Record] = ()
    weighed: Sequence[Record] = ()
    filed: Sequence[Record] = ()
    #: Dead letters of the first step, and of the second.
    unweighed: Sequence[Record] = ()
    refused: Sequence[Record] = ()


@dataclass
class Verdict:
    """The faults found, and in words where."""

    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def blame(self, fault: str, what: str, times: int = 1) -> None:
        """Note a fault."""
        self.counts[fault] += times
        self.notes.append(f"{fault}: {what}")

    def without(self, fault: str) -> Verdict:
        """Return what is left where one fault has a cause that is not ours."""
        counts = Counter({name: count for name, count in self.counts.items() if name != fault})
        return Verdict(counts, [note for note in self.notes if not note.startswith(f"{fault}:")])


def numbers(records: Iterable[Record]) -> list[int]:
    """Return the numbers of events."""
    return [record.body()["number"] for record in records]


def version_of(record: Record) -> str:
    """Return the version of handler and model that has made a result, as its headers name it."""
    _, _, declared = record.headers.get("ce_handler", b"").decode().rpartition("@")
    model = record.headers.get("ce_model", b"").decode()
    return f"{declared}+{model}" if model else declared


def judge(published: Iterable[int], seen: Seen, *, troubled: bool = True) -> Verdict:
    """Judge all: what was accepted has to be in the topic, and what is there has to come to something."""
    verdict = Verdict()
    asked = set(numbers(seen.asked))
    for number in set(published) - asked:
        verdict.blame("lost", f"event {number} was accepted and is not there")
    _judge_step(verdict, "weigh", asked, seen.weighed, seen.unweighed, frozenset())
    doomed = {number for number in asked if troubled and number % DOOMED_EVERY == 0}
    _judge_step(verdict, "file", asked, seen.filed, seen.refused, doomed)
    _judge_versions(verdict, seen.weighed)
    _judge_order(verdict, "weigh", seen.asked, seen.weighed)
    _judge_order(verdict, "file", seen.weighed, seen.filed)
    return verdict


def _judge_step(
    verdict: Verdict,
    step: str,
    events: set[int],
    results: Sequence[Record],
    dead: Sequence[Record],
    doomed: Iterable[int],
) -> None:
    made, put_aside = Counter(numbers(results)), Counter(numbers(dead))
    for number in events:
        right, wrong = (put_aside, made) if number in doomed else (made, put_aside)
        if not right[number]:
            verdict.blame("lost", f"{step}: {number} has {made[number]} results, {put_aside[number]} letters")
        many = right[number] + wrong[number] - 1
        if many > 0:
            told = f"{made[number]} results, {put_aside[number]} dead letters"
            verdict.blame("doubled", f"{step}: {number} has {told}", many)
    for number in (made | put_aside).keys() - events:
        verdict.blame("doubled", f"{step}: {number} has a result and was never published")


def _judge_versions(verdict: Verdict, results: Sequence[Record]) -> None:
    by_event: dict[int, set[str]] = defaultdict(set)
    by_version: dict[str, set[float]] = defaultdict(set)
    by_weights: dict[float, set[str]] = defaultdict(set)
    for record in results:
        version, body = version_of(record), record.body()
        by_event[body["number"]].add(version)
        by_version[version].add(body["weights"])
        by_weights[body["weights"]].add(version)
    for number, versions in by_event.items():
        if len(versions) > 1:
            verdict.blame("two_versions", f"{number} has results of {sorted(versions)}")
    for version, weights in by_version.items():
        if len(weights) > 1:
            verdict.blame("two_versions", f"{version} has answered with the weights {sorted(weights)}")
    for one, names in by_weights.items():
        if len(names) > 1:
            verdict.blame("two_versions", f"the weights {one} go by the names {sorted(names)}")


def _judge_order(verdict: Verdict, step: str, before: Sequence[Record], after: Sequence[Record]) -> None:
    """Compare with the first places of events: a copy is handled where it was first."""
    place = {number: at for at, number in reversed(list(enumerate(numbers(before))))}
    lines: dict[str, list[int]] = defaultdict(list)
    for record in after:
        body = record.body()
        if body["number"] in place:
            lines[body["who"]].append(body["number"])
    for who, line in lines.items():
        turned = [(one, two) for one, two in pairwise(line) if place[one] > place[two]]
        if turned:
            verdict.blame("reordered", f"{step}: of {who}, {turned[:5]}", len(turned))
