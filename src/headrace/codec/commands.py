"""What is asked of a journal on Kafka, as records: JSON, so that people can read what was decided when."""

from __future__ import annotations

import msgspec


class Offer(msgspec.Struct, tag_field="command", tag="offer", omit_defaults=True):
    """A worker can run a version of a handler; one never offered before becomes the active one."""

    handler: str
    declared: str
    at_us: int
    model: str | None = None
    digest: str | None = None
    model_declared: str | None = None


class Activate(msgspec.Struct, tag_field="command", tag="activate", omit_defaults=True):
    """Somebody made a known version the active one; it is named by what it is made of."""

    handler: str
    declared: str
    at_us: int
    model: str | None = None
    digest: str | None = None


VersionCommand = Offer | Activate

write_command = msgspec.json.Encoder().encode
_versions = msgspec.json.Decoder(VersionCommand)


def read_version_command(value: bytes) -> VersionCommand | None:
    """Return a command about versions, or ``None`` for a record that is none: it has no effect anywhere."""
    try:
        return _versions.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
