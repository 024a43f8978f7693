"""The stored form of the envelope and of its stamp: one msgpack array each."""

from __future__ import annotations

import msgspec
import xxhash

from headrace.event.envelope import Head, Stamp

encode_head = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(Head).decode
_encode_stamp = msgspec.msgpack.Encoder().encode
decode_stamp = msgspec.msgpack.Decoder(Stamp).decode


def encode_stamp(stamp: Stamp) -> bytes:
    """Return a stamp as it is stored; what is live has no word of a side."""
    return _encode_stamp(stamp if stamp.side is not None else stamp[:-1])


#: xxh3-128 of payload bytes, 16 bytes: what `input_hash` holds.
payload_hash = xxhash.xxh3_128_digest


xxh3_64 = xxhash.xxh3_64_intdigest
#: SQLite's integers are signed: a checksum has 63 bits.
SUM_MASK = 0x7FFFFFFFFFFFFFFF


def checksum(event_id: bytes, head: bytes, body: bytes) -> int:
    """Return the checksum of one stored event: 63 bits of xxh3-64."""
    return xxh3_64(event_id + head + body) & SUM_MASK
