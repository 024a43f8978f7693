"""What is to happen in one run of `kafka_chaos.py`, drawn from a seed."""

from __future__ import annotations

import random
from typing import NamedTuple

#: Where an owner stands still past its session, and then goes on: in the middle of a transaction above all.
FREEZES = ("settle.begin", "settle.records", "settle.offsets", "claim.noted", "take.ledger")
#: Few of these happen in a run; of the others the first would always come at the same moment.
HITS_MAX = {"version": 1, "release": 1, "take": 4, "claim": 8, "settle": 10, "handle": 30}
RELOADS = ("new", "new", "broken", "back", "back", "back", "both")
OUTAGES = ("none", "none", "broker", "broker", "index", "restore", "restore")


class Plan(NamedTuple):
    """What is to happen in one run."""

    number: int
    seed: int
    failpoint: str
    hit: int
    #: Does the worker stop at its failpoint, instead of dying there?
    freezes: bool
    protocol: str
    partitions: int
    unit: int
    pace_ms: float
    kills: int
    stops: int
    outage: str
    reload: str
    publisher_dies: bool


def draw(number: int, seed: int, points: tuple[str, ...]) -> Plan:
    """Return the plan of a run; all failpoints have their turn, to die or to stop at."""
    chance = random.Random(f"{seed}:{number}")
    turns = [(point, False) for point in points] + [(point, True) for point in FREEZES if point in points]
    point, freezes = turns[number % len(turns)]
    most = next(hits for name, hits in HITS_MAX.items() if point.startswith(name))
    return Plan(
        number=number,
        seed=chance.getrandbits(48),
        failpoint=point,
        hit=chance.randint(1, most),
        freezes=freezes,
        protocol=chance.choice(("classic", "classic", "consumer")),
        partitions=chance.choice((2, 4, 8)),
        unit=chance.choice((1, 1, 1, 3)),
        pace_ms=chance.choice((8.0, 12.0, 20.0)),
        kills=chance.choice((1, 2, 2, 3)),
        stops=chance.choice((0, 0, 1)),
        outage=OUTAGES[number % len(OUTAGES)],
        reload=chance.choice(RELOADS),
        publisher_dies=chance.random() < 0.2,
    )
