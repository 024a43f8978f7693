"""What is asked of a journal on Kafka, as records: JSON, so that people can read what was decided when."""

from __future__ import annotations

import msgspec


class _Made(msgspec.Struct, omit_defaults=True):
    """A version of a handler is named by what it is made of."""

    handler: str
    declared: str
    at_us: int
    model: str | None = None
    digest: str | None = None


class Activate(_Made, tag_field="command", tag="activate"):
    """Somebody made a known version the active one."""


class Offer(_Made, tag_field="command", tag="offer"):
    """A worker can run a version of a handler; one never offered before becomes the active one."""

    model_declared: str | None = None


class Trial(_Made, tag_field="command", tag="trial"):
    """A replay can run a version of a handler; it is known from then on, and what is active stays so."""

    model_declared: str | None = None


VersionCommand = Offer | Activate | Trial


class Decide(msgspec.Struct, tag_field="command", tag="decide"):
    """Somebody wants a dead letter redriven or dropped; its partition is that of the record."""

    #: ``redriven`` or ``dropped``.
    fate: str
    #: Offset of the event, and how often it had been redriven before it died.
    offset: int
    generation: int
    #: Offset of the dead letter.
    letter: int
    at_us: int


write_command = msgspec.json.Encoder().encode
_versions = msgspec.json.Decoder(VersionCommand)
_decisions = msgspec.json.Decoder(Decide)


def read_version_command(value: bytes) -> VersionCommand | None:
    """Return a command about versions, or ``None`` for a record that is none: it has no effect anywhere."""
    try:
        return _versions.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def read_decision(value: bytes) -> Decide | None:
    """Return a command about a dead letter, or ``None`` for a record that is none: it has no effect."""
    try:
        return _decisions.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
