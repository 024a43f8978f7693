"""What the replays of a handler on Kafka were allotted: one record each, JSON, so that people can read it.

The topic is compacted and the key is the replay's name, so the last record of a replay is all there is to
say.
"""

from __future__ import annotations

import msgspec

#: The form of an allotment; of a newer one nobody knows what to make.
FORM = 1


class Allotment(msgspec.Struct, omit_defaults=True, kw_only=True):
    """One replay: which history goes through which version, and where its results lie."""

    #: The number of the replay, 16 digits of base 16: group and topics are named by it.
    replay: str
    #: The name of the version.
    version: str
    #: The cluster's id of the topic: of one that was deleted and made again this says nothing.
    topic: str
    #: Beside the live results under this name; ``None`` = among them.
    side: str | None
    #: A ledger of its own under this name.
    again: str | None
    #: What else tells the order from others, as JSON.
    wanted: str
    at_us: int
    #: Intervals of offsets by partition: the first that is in it, and the first that is not.
    parts: dict[int, list[tuple[int, int]]]
    #: How many events that are, and of the others how many for which reason.
    allotted: int
    skipped: dict[str, int]
    follow: bool = False
    #: For one that follows: the first offset of each partition that was not looked at.
    looked: dict[int, int] = {}
    form: int = FORM


def grown(
    one: Allotment, parts: dict[int, list[tuple[int, int]]], looked: dict[int, int], count: int
) -> Allotment:
    """Return an allotment that has more: all its intervals, how far was looked, and how many events came."""
    return msgspec.structs.replace(one, parts=parts, looked=looked, allotted=one.allotted + count)


write_allotment = msgspec.json.Encoder().encode
_allotments = msgspec.json.Decoder(Allotment)


def read_allotment(value: bytes) -> Allotment | None:
    """Return an allotment, or ``None`` for a record that is none."""
    try:
        return _allotments.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
