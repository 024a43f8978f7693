"""Ids and places that follow from other values: event ids, derived ids, partitions."""

from __future__ import annotations

import struct
from functools import lru_cache
from hashlib import blake2b
from uuid import UUID

from headrace import errors

ID_BYTES = 16
#: A name that a foreign source gives an event; CloudEvents sets no bound, tools do.
ID_CHARS_MAX = 512

#: RFC 9562: version in the high four bits of byte 6, variant 10 in the high two of byte 8.  The last 80
#: bits of an id hold both.
_FREE_80 = (1 << 80) - 1 ^ (0xF << 76 | 0x3 << 62)
_V7_80 = 0x7 << 76 | 0x2 << 62
_V8_80 = 0x8 << 76 | 0x2 << 62
_M = 0x5BD1E995
_32 = 0xFFFFFFFF
#: 48 bits of time, then version and variant of a UUIDv8 with 74 bits around them.
_pack = struct.Struct("6sBBB7s").pack
#: Ordinals as bytes, ready made: nearly every handler emits a few events for one.
_ORDINALS = tuple(f"#{number}".encode() for number in range(64))


def uuid7(time_us: int, chance: bytes) -> bytes:
    """Return the 16 bytes of a UUIDv7 from a time in microseconds and 10 bytes of chance."""
    return (time_us // 1000).to_bytes(6, "big") + (
        int.from_bytes(chance, "big") & _FREE_80 | _V7_80
    ).to_bytes(10, "big")


class Derivation:
    """Derived ids of one (subscription, handler version): stable over crashes, retries and machines.

    A derived id is a UUIDv8: the 48 time bits of the parent, then 74 of the first 80 bits of
    blake2b(prefix, parent id, name), the prefix being blake2b-256(subscription, version).  The time keeps the
    index on ids local (measured: 3x the commit rate of fully random ids); blake2b so that no publisher can
    forge a collision.
    """

    __slots__ = ("_prefix",)

    def __init__(self, subscription: str, version: str) -> None:
        self._prefix = blake2b(f"{subscription}\0{version}\0".encode(), digest_size=32).digest()

    def first(self, parent: bytes) -> bytes:
        """Return `child` of ordinal 0, as nearly every event has it; quicker by a look-up and a test."""
        drawn = blake2b(self._prefix + parent + b"#0").digest()
        return _pack(parent, drawn[0] & 0x0F | 0x80, drawn[1], drawn[2] & 0x3F | 0x80, drawn[3:10])

    def child(self, parent: bytes, ordinal: int) -> bytes:
        """Return the id of the ``ordinal``-th event emitted for ``parent`` (16 bytes)."""
        name = _ORDINALS[ordinal] if ordinal < len(_ORDINALS) else f"#{ordinal}".encode()
        drawn = blake2b(self._prefix + parent + name).digest()
        return _pack(parent, drawn[0] & 0x0F | 0x80, drawn[1], drawn[2] & 0x3F | 0x80, drawn[3:10])

    def named(self, parent: bytes, name: str) -> bytes:
        """Return the id of an event emitted under a name, whatever the order of the calls."""
        drawn = blake2b(self._prefix + parent + b"=" + name.encode()).digest()
        return _pack(parent, drawn[0] & 0x0F | 0x80, drawn[1], drawn[2] & 0x3F | 0x80, drawn[3:10])


def foreign_id(source: str, name: str) -> bytes:
    """Return the id (UUIDv8) of an event that its source names by something other than a UUID."""
    digest = blake2b(f"{source}\0{name}".encode(), digest_size=16).digest()
    return digest[:6] + (int.from_bytes(digest[6:], "big") & _FREE_80 | _V8_80).to_bytes(10, "big")


def id_at(topic_id: bytes, partition: int, offset: int) -> bytes:
    """Return the id (UUIDv8) of an event that has none, from where it lies."""
    where = partition.to_bytes(4, "big") + offset.to_bytes(8, "big")
    digest = blake2b(topic_id + where, digest_size=16).digest()
    return digest[:6] + (int.from_bytes(digest[6:], "big") & _FREE_80 | _V8_80).to_bytes(10, "big")


def murmur2(data: bytes) -> int:
    """Return Kafka's murmur2 of the bytes, as an unsigned 32-bit number."""
    size = len(data)
    value = 0x9747B28C ^ size
    whole = size & ~3
    for word in struct.unpack_from(f"<{whole >> 2}I", data):
        mixed = word * _M & _32
        value = value * _M & _32 ^ (mixed ^ mixed >> 24) * _M & _32
    if size & 3:
        value = (value ^ int.from_bytes(data[whole:], "little")) * _M & _32
    value = (value ^ value >> 13) * _M & _32
    return value ^ value >> 15


@lru_cache(maxsize=65_536)  # keys repeat; 65,536 short strings are a few MiB
def partition_of_key(key: str, partitions: int) -> int:
    """Return the partition of a key: murmur2 made positive as Kafka does, modulo the count."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partitions


def partition_of(key: str | None, event_id: bytes, partitions: int) -> int:
    """Return the partition of an event; without a key its id decides, so copies meet in one."""
    if key is None:
        return (murmur2(event_id) & 0x7FFFFFFF) % partitions
    return partition_of_key(key, partitions)


def text_of(event_id: bytes) -> str:
    """Return the usual text of a 16-byte id (quicker than `uuid.UUID`)."""
    digits = event_id.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def id_of(value: UUID | str | bytes, source: str, attribute: str = "event_id") -> bytes:
    """Return the 16 bytes of an id given by a user: a UUID in any form, else a name of the source.

    Raises `EnvelopeInvalid` with the attribute for bytes that are not 16, and for text that is empty, too
    long, or not UTF-8.
    """
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, bytes):
        if len(value) != ID_BYTES:
            raise errors.EnvelopeInvalid(attribute=attribute, problem=f"it has {len(value)} bytes, not 16")
        return value
    check_text(attribute, value, ID_CHARS_MAX)
    try:
        return UUID(value).bytes
    except ValueError:
        return foreign_id(source, value)


def check_text(attribute: str, text: object, chars_max: int) -> None:
    """Raise `EnvelopeInvalid` unless an attribute is text of 1 to ``chars_max`` characters in UTF-8."""
    if not isinstance(text, str):
        raise errors.EnvelopeInvalid(attribute=attribute, problem=f"it is {type(text).__name__}, not text")
    problem = "" if 1 <= len(text) <= chars_max else f"it has {len(text)} characters, 1 to {chars_max} may be"
    try:
        text.encode()
    except UnicodeEncodeError:
        problem = "it holds a lone surrogate"
    if problem:
        raise errors.EnvelopeInvalid(attribute=attribute, problem=problem)
