"""Bytes that we did not write ourselves: checked whole before anything is made of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import isinf
from typing import Any, NoReturn

import msgspec

from headrace import errors

#: What some editors begin a file with: after its first bytes, as where files were joined, it is no JSON.
_MARK = "\ufeff"
#: Deep nesting serves nobody but those who look for a stack to overflow.
DEPTH_MAX = 64


def check_foreign(name: str, body: bytes, bytes_max: int) -> None:
    """Raise unless the bytes are JSON as RFC 8259 and RFC 7493 (I-JSON) have it.

    Raises `PayloadTooLarge`, or `PayloadUndecodable` for bad UTF-8, duplicate keys, NaN and Infinity, lone
    surrogates, and more than 64 levels.  Integers of any size are kept exact.
    """
    if len(body) > bytes_max:
        raise errors.PayloadTooLarge(type=name, size_bytes=len(body), limit_bytes=bytes_max)
    _check_depth(name, body)
    try:
        text = body.decode("utf-8")
        found = json.loads(
            text, object_pairs_hook=_no_twins, parse_constant=_no_constant, parse_int=str, parse_float=_finite
        )
    except (UnicodeDecodeError, ValueError, RecursionError) as fault:
        raise errors.PayloadUndecodable(_why(fault), type=name) from None
    if "\\u" in text:  # only an escape can bring a lone surrogate: valid UTF-8 holds none
        _check_surrogates(name, found)


def _why(fault: Exception) -> str:
    """Return what is wrong and where; the line is told where there are several."""
    if not isinstance(fault, json.JSONDecodeError):
        return str(fault)
    one_line = "\n" not in fault.doc.rstrip()
    where = f"column {fault.colno}" if one_line else f"line {fault.lineno} column {fault.colno}"
    if fault.doc.startswith(_MARK, fault.pos):
        return f"A byte order mark stands where JSON has none: {where}"
    return f"{fault.msg}: {where}"


def fields_of(name: str, body: bytes) -> dict[str, bytes]:
    """Return the fields of an object, each value as it is written; raises `PayloadUndecodable`."""
    try:
        return {key: bytes(value) for key, value in _OBJECT.decode(body).items()}
    except msgspec.DecodeError as fault:
        raise errors.PayloadUndecodable(str(fault), type=name) from None


def object_of(fields: Mapping[str, bytes]) -> bytes:
    """Return the object that has these fields."""
    return msgspec.json.encode({key: msgspec.Raw(value) for key, value in fields.items()})


_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])

_BRACKETS = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def _check_depth(name: str, body: bytes) -> None:
    """Count brackets outside of strings, before a parser that recurses sees them."""
    depth = 0
    for found in _BRACKETS.finditer(body):
        depth += (found[0] in (b"[", b"{")) - (found[0] in (b"]", b"}"))
        if depth > DEPTH_MAX:
            raise errors.PayloadUndecodable(f"It is more than {DEPTH_MAX} levels deep.", type=name)


def _no_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"The key {key[:60]!r} stands twice in one object.")
        found[key] = value
    return found


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError(f"{text[:60]} is beyond the numbers of JSON readers.")
    return number


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not JSON.")


def _check_surrogates(name: str, found: object) -> None:
    queue: list[Any] = [found]
    while queue:
        value: Any = queue.pop()
        if type(value) is dict:
            queue += [*value.keys(), *value.values()]
        elif type(value) is list:
            queue += value
        elif isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise errors.PayloadUndecodable("It holds a lone surrogate.", type=name) from None
