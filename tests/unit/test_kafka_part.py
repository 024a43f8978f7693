"""What a worker keeps in mind of a partition of Kafka."""

from __future__ import annotations

from headrace.codec.ledger import Position, Range
from headrace.journal.kafka.part import part_of


def test_a_range_in_which_nothing_was_finished_gives_way() -> None:
    """A worker claimed under a version and died; after a roll-back no two ranges begin at one offset."""
    position = Position(high=41, start=0, topic_id=b"t", ranges=[Range(-1, "1"), Range(41, "2")])
    part = part_of(3, 3, 1, position)

    part.claim_under("1")
    assert part.ranges == [Range(-1, "1")]
    part.claim_under("2")
    part.claim_under("2")
    assert part.ranges == [Range(-1, "1"), Range(41, "2")]
    part.claim_under("3")
    assert [part.version_of(41), part.version_of(42)] == ["1", "3"]
