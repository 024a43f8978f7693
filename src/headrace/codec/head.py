"""The stored form of the envelope: one msgpack array."""

from __future__ import annotations

import msgspec
import xxhash

from headrace.event.envelope import Head

encode_head = msgspec.msgpack.Encoder().encode
decode_head = msgspec.msgpack.Decoder(Head).decode

#: xxh3-128 of payload bytes, 16 bytes: what `input_hash` holds.
payload_hash = xxhash.xxh3_128_digest


def checksum(event_id: bytes, head: bytes, body: bytes) -> int:
    """Return 63 bits (SQLite's integers are signed) of xxh3-64 over one stored event."""
    return xxhash.xxh3_64_intdigest(event_id + head + body) & 0x7FFFFFFFFFFFFFFF
