"""What both kinds of index ask of the stretches of one look."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.ports.index import Stretch


def ordered(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches of a look in the order of their partitions; refuses what the port rules out."""
    wanted = sorted(stretches, key=_partition)
    if len({one.topic_id for one in wanted}) > 1 or len({one.partition for one in wanted}) < len(wanted):
        raise ValueError("A look is about one topic, with at most one stretch for each of its partitions.")
    for one in wanted:
        if one.records and not one.after <= one.records[0].offset <= one.records[-1].offset < one.upto:
            raise ValueError(f"The records of partition {one.partition} go beyond their stretch.")
    return wanted


def _partition(stretch: Stretch) -> int:
    return stretch.partition
