"""The judge of `kafka_chaos.py` finds every fault that is put into sound topics: it is able to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from tests.fault._chaos_judge import DOOMED_EVERY, FAULTS, Seen, judge

EVENTS = 2 * DOOMED_EVERY


class Made(NamedTuple):
    """A record."""

    given: dict[str, Any]
    headers: dict[str, bytes]

    def body(self) -> dict[str, Any]:
        """Return the payload."""
        return self.given


def made(number: int, weights: float = 1.0, epoch: int = 0) -> Made:
    """Return the result of a step, by default of the version whose turn it was."""
    headers = {"ce_handler": b"a.weigh@1", "ce_model": b"plus@%d:abc" % (epoch or weights)}
    return Made({"number": number, "who": f"c{number % 7}", "weights": weights}, headers)


def sound() -> dict[str, list[Made]]:
    """Return topics without a fault: copies, two versions one after the other, dead letters."""
    asked = [made(number) for number in range(EVENTS)]
    copies = [made(number) for number in range(0, EVENTS, 5)]
    weighed = [made(number, 1.0 if number < EVENTS // 2 else 2.0) for number in range(EVENTS)]
    filed = [one for one in weighed if one.given["number"] % DOOMED_EVERY]
    refused = [one for one in weighed if not one.given["number"] % DOOMED_EVERY]
    return {"asked": asked + copies, "weighed": weighed, "filed": filed, "unweighed": [], "refused": refused}


Topics = dict[str, list[Made]]


def swap(topics: Topics) -> None:
    """Have two results of one key in each other's place."""
    line = topics["filed"]
    line[0], line[7] = line[7], line[0]


#: What is done to the topics, and a fault that it is (it may be others as well).
TAMPERED: dict[str, tuple[str, Callable[[Topics], object]]] = {
    "an accepted event is gone": ("lost", lambda on: on["asked"].remove(made(7))),
    "a result is gone": ("lost", lambda on: on["weighed"].pop()),
    "a result of the second step is gone": ("lost", lambda on: on["filed"].pop(3)),
    "a dead letter is gone": ("lost", lambda on: on["refused"].pop()),
    "a result is there twice": ("doubled", lambda on: on["weighed"].append(made(3))),
    "a result of the second step is there twice": ("doubled", lambda on: on["filed"].append(made(3))),
    "a dead letter is there twice": ("doubled", lambda on: on["refused"].append(made(0))),
    "a result beside a dead letter": ("doubled", lambda on: on["filed"].append(made(0))),
    "a dead letter beside a result": ("doubled", lambda on: on["unweighed"].append(made(3))),
    "a result of nothing": ("doubled", lambda on: on["filed"].append(made(EVENTS + 1))),
    "a second version has handled it too": (
        "two_versions",
        lambda on: on["weighed"].append(made(3, 2.0)),
    ),
    "a version has answered with the weights of another": (
        "two_versions",
        lambda on: on["weighed"].__setitem__(3, made(3, 2.0, epoch=1)),
    ),
    "the same weights under two names": (
        "two_versions",
        lambda on: on["weighed"].__setitem__(3, made(3, 1.0, epoch=3)),
    ),
    "results of a key have changed places": ("reordered", swap),
}


def test_sound_topics_are_found_sound() -> None:
    """No fault is found where there is none: copies are none, nor is a version after another."""
    verdict = judge(range(EVENTS), Seen(**sound()))

    assert {fault: verdict.counts[fault] for fault in FAULTS} == dict.fromkeys(FAULTS, 0), verdict.notes


@pytest.mark.parametrize(("fault", "tamper"), TAMPERED.values(), ids=TAMPERED)
def test_a_fault_that_was_put_in_is_found(fault: str, tamper: Callable[[Topics], object]) -> None:
    """The judge blames the fault that was made."""
    topics = sound()
    tamper(topics)

    assert judge(range(EVENTS), Seen(**topics)).counts[fault] > 0


def test_an_order_is_that_of_first_places() -> None:
    """An event that was published before another of its key, and again after it, has its first place."""
    topics = sound()
    first, second = topics["asked"][0], topics["asked"][7]
    topics["asked"][:8] = [second, *topics["asked"][1:7], first, second]

    assert judge(range(EVENTS), Seen(**topics)).counts["reordered"] > 0


def test_what_a_broker_hides_excuses_nothing_else() -> None:
    """Where the end of a transaction was dropped events are missing; a second result is a fault still."""
    topics = sound()
    topics["filed"] = [topics["filed"][0], *topics["filed"][:40]]

    found = judge(range(EVENTS), Seen(**topics))

    assert found.counts["lost"] > 0
    assert found.without("lost").counts == {"doubled": 1}
    assert all(note.startswith("doubled") for note in found.without("lost").notes)
