"""What both kinds of index make of the stretches of one look, and of the bounds within which they count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.ports.index import Bound, Stretch

#: A partition, and an offset at which a bound begins or ends.
Cut = tuple[int, int]


def ordered(stretches: Sequence[Stretch]) -> list[Stretch]:
    """Return the stretches of a look in the order of their partitions; refuses what the port rules out."""
    wanted = sorted(stretches, key=_partition)
    if len({one.topic_id for one in wanted}) > 1 or len({one.partition for one in wanted}) < len(wanted):
        raise ValueError("A look is about one topic, with at most one stretch for each of its partitions.")
    for one in wanted:
        if one.records and not one.after <= one.records[0].offset <= one.records[-1].offset < one.upto:
            raise ValueError(f"The records of partition {one.partition} go beyond their stretch.")
    return wanted


def cuts_of(bounds: Sequence[Bound]) -> list[Cut]:
    """Return where bounds begin and end, in order, each once."""
    return sorted({(one.partition, end) for one in bounds for end in (one.after, one.upto)})


def counted(bounds: Sequence[Bound], befores: Mapping[Cut, int]) -> list[int]:
    """Return how many events lie within each bound, of how many lie before each cut."""
    return [max(0, befores.get((at, upto), 0) - befores.get((at, after), 0)) for at, after, upto in bounds]


def _partition(stretch: Stretch) -> int:
    return stretch.partition
