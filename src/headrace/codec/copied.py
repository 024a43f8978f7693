"""How far the copy of one journal into another has come, and the checksum that both must agree on."""

from __future__ import annotations

import msgspec
import xxhash

from headrace.codec.head import encode_head, encode_stamp
from headrace.event.envelope import Head, Stamp

DIGEST_BYTES = 8


class CopyState(msgspec.Struct, array_like=True, gc=False):
    """Written in every transaction of a copy: after a kill it goes on behind what was committed."""

    #: Offset of the source up to which events are copied, and number of the last dead letter.
    events_upto: int = 0
    letters_upto: int = 0
    #: What the source had come to when its positions were copied; empty before.
    finished: tuple[int, ...] = ()
    #: The form of this record; a newer one is refused.
    form: int = 1


write_state = msgspec.msgpack.Encoder().encode
read_state = msgspec.msgpack.Decoder(CopyState).decode


def digest(event_id: bytes, depth: int, head: Head, stamp: Stamp, body: bytes) -> int:
    """Return a checksum of one event that does not depend on how a journal stores it."""
    number, head.stamp = head.stamp, 0
    headers, head.headers = head.headers, head.headers or None
    try:
        told = encode_head(head)
    finally:
        head.stamp, head.headers = number, headers
    return xxhash.xxh3_64_intdigest(
        b"".join((event_id, depth.to_bytes(4, "big"), told, encode_stamp(stamp), body))
    )


def chained(before: int, following: int) -> int:
    """Return the checksum of a list that is one longer."""
    both = before.to_bytes(DIGEST_BYTES, "big") + following.to_bytes(DIGEST_BYTES, "big")
    return xxhash.xxh3_64_intdigest(both)
