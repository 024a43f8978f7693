"""What is to happen in one run, drawn from a seed."""

from __future__ import annotations

import random
from typing import NamedTuple

#: Few of these happen in a run; of the others the first would always come at the same moment.
HITS_MAX = {"version": 1, "release": 1, "balance": 2, "claim.committed": 3, "claim": 8}
RELOADS = ("none", "new", "new", "broken", "back", "back", "back", "both", "both")


class Plan(NamedTuple):
    """What is to happen in one run; drawn from the seed."""

    number: int
    seed: int
    failpoint: str
    hit: int
    durability: str
    workers: int
    lease_ms: int
    partitions: int
    events: int
    unit: int
    pace_ms: float
    kills: int
    stops: int
    reload: str
    restart: bool


def draw(number: int, seed: int, failpoints: tuple[str, ...]) -> Plan:
    """Return the plan of a run."""
    chance = random.Random(f"{seed}:{number}")
    point = failpoints[number % len(failpoints)]
    few = next((hits for name, hits in HITS_MAX.items() if point.startswith(name)), 12)
    burst = chance.random() < 0.3
    workers = chance.choice((2, 3))
    return Plan(
        number=number,
        seed=chance.getrandbits(48),
        failpoint=point,
        hit=chance.randint(1, few),
        durability="normal" if number % 3 == 2 else "full",
        workers=workers,
        lease_ms=chance.randint(500, 800),
        # Each worker has a share, also the one that is armed: ceil(partitions / workers) leaves some for all.
        partitions=chance.choice((1, 2, 4) if point.startswith("publish.") else (workers, 2 * workers, 8)),
        events=chance.randint(60, 140),
        unit=chance.choice((1, 1, 2, 3, 4)),
        pace_ms=0.5 if burst else chance.choice((4.0, 8.0, 16.0)),
        kills=chance.choice((1, 1, 2, 3)),
        stops=chance.choice((0, 0, 1, 1, 1, workers)),
        reload=chance.choice(RELOADS),
        restart=chance.random() < 0.3,
    )
