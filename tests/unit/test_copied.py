"""Copying a journal: what a topic has to keep, the checksum, positions in other offsets, what is refused."""

from __future__ import annotations

from array import array
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.unit.terminal import apart

from headrace.cli.output import Exit
from headrace.codec.copied import chained, digest
from headrace.codec.headers import Record, read_record, write_head, write_stamp
from headrace.codec.ledger import OpenEntry, Range
from headrace.event.envelope import Head, Stamp
from headrace.journal.kafka.match import Matched, position_of
from headrace.journal.kafka.target import DAY_MS, Wanted, settings_for, unfit
from headrace.journal.source import SourcePart

NOW_US = 1_700_000_000_000_000
#: Ten days old, 1 kB of 1 MB.
WANTED = Wanted("asked", 16, 1_000_000, 1_000, NOW_US - 10 * DAY_MS * 1_000)
KEPT = {
    "cleanup.policy": "delete",
    "retention.ms": "-1",
    "retention.bytes": "-1",
    "max.message.bytes": "1048588",
    "message.timestamp.before.max.ms": str((1 << 63) - 1),
}
STAMP = Stamp("Asked", "headrace/desk", 1, "application/json", "desk.tell@1", "intent@1:0123456789ab")


@dataclass
class Case:
    """One setting that is other than it should be, and what is said of it."""

    name: str
    value: str
    said: str


@pytest.mark.parametrize(
    "case",
    [
        Case("retention.ms", str(7 * DAY_MS), "delete it at once"),
        Case("retention.ms", str(10 * DAY_MS + 1), "delete it at once"),  # tomorrow is no better
        Case("retention.ms", str(12 * DAY_MS), ""),
        Case("retention.bytes", "999999", "retention.bytes keeps 999,999"),
        Case("retention.bytes", "1000000", ""),
        Case("cleanup.policy", "compact", "compacted"),
        Case("cleanup.policy", "compact,delete", "compacted"),
        Case("max.message.bytes", "5000", "its largest event may take 9,192"),
        Case("message.timestamp.before.max.ms", str(DAY_MS), "refuses what is so old"),
    ],
    ids=lambda case: f"{case.name}={case.value}",
)
def test_a_topic_has_to_keep_what_is_copied(case: Case) -> None:
    """A setting under which brokers would delete or refuse the history is told; one that keeps it is not."""
    assert unfit(WANTED, KEPT, NOW_US) == ""
    said = unfit(WANTED, KEPT | {case.name: case.value}, NOW_US)
    assert (said == "") is (case.said == "")
    assert case.said in said
    assert unfit(WANTED._replace(oldest_us=0), KEPT | {case.name: case.value}, NOW_US) == "", (
        "nothing to copy"
    )


def test_what_is_created_is_fit() -> None:
    """A topic with the settings that the copy gives keeps events of any age and size."""
    large = WANTED._replace(largest_bytes=5 << 20, oldest_us=1)
    assert unfit(large, KEPT | settings_for(large), NOW_US) == ""


def head(**more: Any) -> Head:
    """Return an envelope with everything in it."""
    given: dict[str, Any] = {
        "stamp": 3, "parents": (bytes(range(16)),), "root": bytes(range(16)), "trace": b"t" * 16,
        "span": b"s" * 8, "flags": 1, "input_hash": b"h" * 16, "time_us": NOW_US + 1, "principal": "me",
        "key": "kü", "confidence": 0.1 + 0.2, "lane": 2, "tracestate": "a=b", "headers": {"tenant": b"\xff"},
    }  # fmt: skip
    return Head(**(given | more))


@pytest.mark.parametrize(
    "one",
    [head(), head(headers={}, key=None, root=b"", parents=(), confidence=None, lane=None, tracestate="")],
)
def test_the_checksum_survives_the_way_through_headers(one: Head) -> None:
    """What was written as a record and read again has the same checksum."""
    before = digest(b"i" * 16, 4, one, STAMP, b"{}")
    headers = write_head(b"i" * 16, 4, one, write_stamp(STAMP))
    key = None if one.key is None else one.key.encode()
    found = read_record(Record("asked", b"t" * 16, 0, 0, 0, key, b"{}", headers), Stamp("", "", 0))
    assert digest(found.event_id, found.depth, found.head, found.stamp, found.body) == before
    assert one.stamp == 3, "as it was"


@pytest.mark.parametrize("name", [name for name in Head.__struct_fields__ if name != "stamp"])
def test_the_checksum_sees_every_field(name: str) -> None:
    """What differs in any field of the envelope, in id, depth, stamp or payload has another checksum."""
    changed = {"parents": (), "headers": None, "lane": 1, "flags": 0, "time_us": 1, "confidence": 0.5}
    value = changed.get(name, b"" if isinstance(getattr(head(), name), bytes) else "other")
    before = digest(b"i" * 16, 4, head(), STAMP, b"{}")
    assert digest(b"i" * 16, 4, head(**{name: value}), STAMP, b"{}") != before
    assert digest(b"j" * 16, 4, head(), STAMP, b"{}") != before
    assert digest(b"i" * 16, 5, head(), STAMP, b"{}") != before
    assert digest(b"i" * 16, 4, head(), STAMP._replace(model=None), b"{}") != before
    assert digest(b"i" * 16, 4, head(), STAMP, b"{ }") != before
    assert chained(chained(0, 1), 2) != chained(chained(0, 2), 1)


#: Offsets 3, 5, 8 and 9 of the source lie at 0, 1, 4 and 5: between them stands a marker.
MATCHED = Matched(array("q", [3, 5, 8, 9]), array("q", [0, 1, 4, 5]), 0)


def test_a_position_is_told_in_other_offsets() -> None:
    """High, start, open offsets and ranges are those of the same events; empty ranges fall away."""
    entry = OpenEntry(8, "retry", 2, 1, 0, ("no",), 7)
    ranges = [Range(3, "1"), Range(4, "2"), Range(6, "3")]
    found = position_of(SourcePart(0, 3, 8, 2, 1, 0, ranges, [entry]), MATCHED, b"t" * 16)
    assert (found.start, found.high, found.low()) == (1, 4, 4)
    assert (found.open[0].offset, found.open[0].number, found.open[0].errors) == (4, 2, ("no",))
    assert [(one.after, one.version) for one in found.ranges] == [(0, "2"), (1, "3")]
    assert (found.taken, found.done, found.dead) == (2, 1, 0)


def test_a_position_before_the_first_event() -> None:
    """Where nothing was taken, the first event of the partition is the next."""
    found = position_of(SourcePart(0, 0, 2, 0, 0, 0, [], []), MATCHED, b"t" * 16)
    assert (found.start, found.high, found.low()) == (0, -1, 0)


def test_what_cannot_be_copied_is_told(tmp_path: Path) -> None:
    """Another target than a cluster, a source that is not there: a coded error, and nothing is created."""
    ran = apart("copy", "--from", "a.db", "--to", "b.db", "--yes", cwd=tmp_path)
    assert (ran.code, "does not begin with kafka://" in ran.err) == (Exit.UNUSABLE, True)
    ran = apart("copy", "--from", "a.db", "--to", "kafka://127.0.0.1:1", "--yes", cwd=tmp_path)
    assert (ran.code, "HR-E213" in ran.err) == (Exit.UNREACHABLE, True)
    assert list(tmp_path.iterdir()) == []
