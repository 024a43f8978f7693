"""What an ONNX file says about itself, read from its protobuf bytes before a runtime is trusted with them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

DEPTH_MAX = 100  # of nested messages: the limit of protobuf itself; a subgraph takes three
PROPERTY_BYTES_MAX = 4 * 1024 * 1024  # all metadata: 100,000 labels of 40 bytes

#: Message -> field number -> message inside, from onnx.proto. What is not named here is skipped unread.
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 14: "property", 20: "training", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute", 7: "domain used"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 10: "domain defined"},
}
_LENGTHS = {1: 8, 5: 4}  # wire type -> bytes of a number of fixed size
_VARINT, _BYTES = 0, 2
_VARINT_BYTES_MAX = 10


class Malformed(ValueError):
    """The bytes are no ONNX model."""


@dataclass(slots=True)
class About:
    """The parts of a model that matter before it is loaded."""

    properties: dict[str, str] = field(default_factory=dict[str, str])
    #: Where external data lies: file names as written in the model.
    locations: set[str] = field(default_factory=set[str])
    #: Families of operators that are used, and those that the model defines itself.
    domains_used: set[str] = field(default_factory=set[str])
    domains_defined: set[str] = field(default_factory=set[str])


def inspect(data: bytes) -> About:
    """Read a whole model; raises `Malformed`.

    Every external location is found, also in places where a runtime would not look: what is listed here is
    what gets checked.
    """
    about = About()
    # A list in place of recursion: the depth is the file's choice, and so bounded here.
    todo = [("model", memoryview(data), 0)]
    while todo:
        kind, content, depth = todo.pop()
        if depth > DEPTH_MAX:
            raise Malformed("its parts are nested too deep")
        inside = _INSIDE.get(kind)
        if inside is None:
            _note(about, kind, content)
            continue
        todo += [(inside[n], value, depth + 1) for n, value in _fields(content) if n in inside]
    return about


def _note(about: About, kind: str, content: memoryview) -> None:
    match kind:
        case "property":
            key, value = _entry(content)
            about.properties[key] = value
            if sum(map(len, about.properties.values())) > PROPERTY_BYTES_MAX:
                raise Malformed("its metadata is too large")
        case "external":
            key, value = _entry(content)
            if key == "location":
                about.locations.add(value)
        case "domain used":
            about.domains_used.add(_text(content))
        case _:
            about.domains_defined.add(_text(content))


def _entry(content: memoryview) -> tuple[str, str]:
    parts = {number: _text(value) for number, value in _fields(content)}
    return parts.get(1, ""), parts.get(2, "")


def _text(value: memoryview) -> str:
    try:
        return str(value, "utf-8")
    except UnicodeDecodeError as error:
        raise Malformed("a name in it is not UTF-8") from error


def _fields(content: memoryview) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of each field; plain numbers are skipped, nothing here needs them."""
    return ((number, value) for number, value, _ in _parts(content) if value is not None)


def _parts(content: memoryview) -> Iterator[tuple[int, memoryview | None, int]]:
    """Yield number, content (``None`` for a plain number) and end of each field."""
    at, end = 0, len(content)
    while at < end:
        key, at = _varint(content, at)
        wire = key & 7
        if wire == _VARINT:
            _, at = _varint(content, at)
            yield key >> 3, None, at
            continue
        size = _LENGTHS.get(wire, -1)
        if wire == _BYTES:
            size, at = _varint(content, at)
        if size < 0 or at + size > end:
            raise Malformed("it is cut off or is no protobuf")
        value = content[at : at + size] if wire == _BYTES else None
        at += size
        yield key >> 3, value, at


#: The number of the metadata of a model, in onnx.proto.
_PROPERTY = 14


def with_property(content: bytes, key: str, value: str) -> bytes:
    """Return a model with an entry of its metadata set; all else is kept byte for byte."""
    view, kept, at = memoryview(content), list[bytes | memoryview](), 0
    for number, inner, end in _parts(view):
        if not (number == _PROPERTY and inner is not None and _entry(inner)[0] == key):
            kept.append(view[at:end])
        at = end
    entry = _field(1, key.encode()) + _field(2, value.encode())
    return b"".join([*kept, _field(_PROPERTY, entry)])


def _field(number: int, content: bytes) -> bytes:
    size, rest = bytearray(), len(content)
    while rest > 0x7F:  # noqa: PLR2004 - the last byte of a number has no high bit
        size.append(rest & 0x7F | 0x80)
        rest >>= 7
    return bytes([number << 3 | _BYTES, *size, rest]) + content


def _varint(content: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for shift, byte in enumerate(content[at : at + _VARINT_BYTES_MAX]):
        value |= (byte & 0x7F) << 7 * shift
        if byte < 0x80:  # noqa: PLR2004 - the last byte of a number has no high bit
            return value, at + shift + 1
    raise Malformed("it is cut off or is no protobuf")
