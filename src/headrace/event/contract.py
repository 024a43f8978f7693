"""`Event`, the base class of what users publish, and the contract compiled from each subclass."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from functools import partial
from math import isfinite
from operator import attrgetter
from types import NoneType, UnionType
from typing import Any, ClassVar, Self, Union, cast, dataclass_transform, get_args, get_origin
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field, SecretBytes, SecretStr, ValidationError
from pydantic_core import PydanticSerializationError

from headrace import errors
from headrace.errors.tree import bounded

#: Kafka takes 249 characters in the name of a topic; the rest is room for what Headrace adds.
NAME_CHARS_MAX = 200
NAME = re.compile(rf"[A-Za-z0-9._-]{{1,{NAME_CHARS_MAX}}}")
#: Topics that Headrace makes itself: those that begin like this, the dead letters of a topic, and the sides
#: of its replays.
OWN, DEAD_SUFFIX, SIDE_INFIX = "headrace", ".dlq", ".side."
#: What a replay of a handler is called where a handler has its name: no handler may be called so.
REPLAY_NAME = re.compile(r"(.+)\.replay-([0-9a-f]{16})")
#: Kafka's metadata and most tools cope with short keys; a key is an identity, not data.
KEY_BYTES_MAX = 1_024
#: As much of a refused value as helps to find it, and no more of what may be private.
SHOWN_CHARS_MAX, PATH_CHARS_MAX = 60, 200
FAULTS_SHOWN_MAX = 20
_SECRET = re.compile(r"pass|secret|token|api_?key|auth|credential", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Contract:
    """What Headrace knows of one event class, compiled once when the class is made."""

    cls: type[Event]
    type: str
    topic: str
    key_field: str | None
    schema_version: int
    where: str
    #: Only immutable scalars inside: what was valid when it was made is valid still.
    flat: bool
    key_of: Callable[[Any], str | None]
    #: The payload bytes (UTF-8 JSON) of an event.  Raises `PayloadInvalid` when the value no longer fits its
    #: class (a list in it was changed, say) or holds NaN or Infinity.
    encode: Callable[[Event], bytes]
    #: The event of payload bytes.  Raises `PayloadInvalid` or `PayloadUndecodable`.
    decode: Callable[[bytes], Event]

    def build(self, values: dict[str, object]) -> Event:
        """Return the event of Python values, validated like any other."""
        try:
            return self.cls.model_validate(values)
        except ValidationError as fault:
            raise refusal(self.cls, self.type, fault) from None


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field,))
class Event(BaseModel):
    """Base class of events: a frozen pydantic model that knows its topic and key.

    ``class Ticket(Event, topic="tickets", key="customer")``.  Events with the same key keep their
    order; a key of ``None`` means no order.  ``type`` is the name under which it is stored (default: the
    class name), ``version`` the number of its schema.  A class without a topic is abstract: a place for
    common fields.

    Unknown fields are refused, in code and in stored payloads alike, so that no field is lost silently:
    upgrade readers before writers.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        validate_by_name=True,
        validate_by_alias=True,
        allow_inf_nan=False,
        # Written as bare constants so that `Contract.encode` can find and refuse them: the default
        # would turn them into null without a word.
        ser_json_inf_nan="constants",
        ser_json_bytes="base64",
        val_json_bytes="base64",
    )

    __contract__: ClassVar[Contract | None] = None

    def __init_subclass__(
        cls,
        *,
        topic: str | None = None,
        key: str | None = None,
        type: str | None = None,  # noqa: A002 - CloudEvents names it so
        version: int | None = None,
        **config: Any,
    ) -> None:
        """Take the class arguments, so that pydantic does not read them as configuration."""
        super().__init_subclass__(**config)

    @classmethod
    def __pydantic_init_subclass__(
        cls,
        *,
        topic: str | None = None,
        key: str | None = None,
        type: str | None = None,  # noqa: A002 - CloudEvents names it so
        version: int | None = None,
        **config: Any,
    ) -> None:
        """Compile the contract once pydantic has built the class."""
        super().__pydantic_init_subclass__(**config)
        inherited = cls.__contract__
        if inherited is not None:
            topic, key = (inherited.topic if topic is None else topic), (key or inherited.key_field)
        if topic is None:
            return
        name = cls.__name__ if type is None else type
        cls.__contract__ = _compile(cls, name, topic, key, 1 if version is None else version)
        _remember(cls.__contract__)

    @classmethod  # type: ignore[no-redef]  # pydantic's mypy plugin has made one already
    def model_construct(  # type: ignore[override]
        cls, _fields_set: set[str] | None = None, **values: Any
    ) -> Self:
        """Validate all the same: an event is a fact that others read."""
        return cls.model_validate(values)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy; unlike pydantic's, the updated values are validated."""
        copied = super().model_copy(deep=deep)
        return copied if not update else type(self).model_validate({**dict(copied), **update})

    @classmethod
    def of(cls, **values: object) -> Self:
        """Return a validated event, with Headrace's coded error in place of pydantic's."""
        try:
            return cls.model_validate(values)
        except ValidationError as fault:
            raise refusal(cls, contract_of(cls).type, fault) from None


def contract_of(cls: type[Event]) -> Contract:
    """Return the contract of an event class; raises `ContractInvalid` for an abstract one, or for none."""
    found: Contract | None = getattr(cls, "__contract__", None)
    if found is None or found.cls is not cls:
        raise _without(cls)
    return found


def _without(cls: object) -> errors.ContractInvalid:
    name = getattr(cls, "__name__", repr(cls))
    ours = isinstance(cls, type) and issubclass(cls, Event)
    return errors.ContractInvalid("It has no topic." if ours else "It is no class of events.", type=name)


def _compile(cls: type[Event], name: str, topic: str, key: str | None, version: int) -> Contract:
    _check(cls, name, topic, key, version)
    flat = _is_flat(cls)
    return Contract(
        cls=cls,
        type=name,
        topic=topic,
        key_field=key,
        schema_version=version,
        where=_where(cls),
        flat=flat,
        key_of=_key_reader(cls, name, key),
        encode=_encoder(cls, name, flat=flat),
        decode=_decoder(cls, name),
    )


def _check(cls: type[Event], name: object, topic: object, key: object, version: object) -> None:
    """Raise `ContractInvalid` for class arguments of the wrong kind, and for names that may not be."""
    for what, text in (("type", name), ("topic", topic)):
        if not isinstance(text, str):
            raise errors.ContractInvalid(f"The {what} is text, not {text!r}.", type=cls.__name__)
        if not NAME.fullmatch(text):
            problem = (
                f"The {what} {text!r} has characters that are not allowed."
                if text
                else f"Its {what} is empty."
            )
            raise errors.ContractInvalid(problem, type=name or cls.__name__)
    if not (key is None or isinstance(key, str)):
        raise errors.ContractInvalid(f"The key is the name of a field, not {key!r}.", type=name)
    if type(version) is not int:
        raise errors.ContractInvalid(f"The version is a whole number, not {version!r}.", type=name)
    if version < 1:
        raise errors.ContractInvalid("A schema version starts at 1.", type=name)
    ours = cls.__module__.startswith(f"{OWN}.")
    if not ours and (taken := _taken(str(topic))):
        hint = (
            'choose another, such as ``topic="support.tickets"``; what lies in those of Headrace is shown by'
        )
        hint += " ``headrace tail --side`` and ``headrace dlq``"
        raise errors.ContractInvalid(
            f"The topic {topic!r} is of Headrace itself: {taken}.", type=name, hint=hint
        )


def _taken(topic: str) -> str:
    """Say what Headrace would itself put into a topic of this name; nothing: it is free."""
    if topic.startswith(f"{OWN}."):
        return f"names that begin with {OWN}. are of its ledgers and records"
    if topic.endswith(DEAD_SUFFIX):
        return f"dead letters go into topics that end in {DEAD_SUFFIX}"
    _, found, side = topic.partition(SIDE_INFIX)
    return f"sides of replays go into topics that end in {SIDE_INFIX}NAME" if found and side else ""


def _encoder(cls: type[Event], name: str, *, flat: bool) -> Callable[[Event], bytes]:
    """Return `Contract.encode`: a function with everything at hand, because it is on the hot path."""
    plain = cls.__pydantic_serializer__.to_json
    # Looking for changed values costs 1 us an event, so it is done where values can change.
    to_json: Callable[[Event], bytes] = (
        plain if flat else partial(plain, by_alias=True, round_trip=True, warnings="error")
    )

    def encode(value: Event) -> bytes:
        try:
            body = to_json(value)
        except PydanticSerializationError as fault:
            raise errors.PayloadInvalid(str(fault), type=name) from fault
        if not flat and (b"NaN" in body or b"Infinity" in body):
            refuse_constants(name, body)
        return body

    return encode


def _decoder(cls: type[Event], name: str) -> Callable[[bytes], Event]:
    """Return `Contract.decode`."""
    validate: Callable[[bytes], Event] = cls.__pydantic_validator__.validate_json

    def decode(body: bytes) -> Event:
        try:
            return validate(body)
        except ValidationError as fault:
            raise refusal(cls, name, fault) from None

    return decode


_SCALARS: frozenset[Any] = frozenset({str, int, float, bool, NoneType, datetime, date, UUID})
_ALIASES = ("alias", "validation_alias", "serialization_alias")


def _is_flat(cls: type[Event]) -> bool:
    """Return whether a plain dump of valid fields is always right: only scalars, no names of their own."""
    own = cls.__pydantic_decorators__
    own_ways = (
        own.field_serializers
        or own.model_serializers
        or own.computed_fields
        # What a validator returns is not looked at again.
        or own.field_validators
        or own.model_validators
        or own.validators
        or own.root_validators
        or cls.model_config.get("ser_json_inf_nan") != "constants"
        or cls.model_config.get("allow_inf_nan")
        or not cls.model_config.get("frozen")
        or cls.model_config.get("extra") != "forbid"
    )
    return not own_ways and all(
        _scalars(field.annotation)
        and not any(getattr(field, name) for name in (*_ALIASES, "metadata", "exclude", "default_factory"))
        and (field.is_required() or _fits(field.default, field.annotation))
        for field in cls.model_fields.values()
    )


def _parts(annotation: object) -> tuple[Any, ...]:
    return get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)


def _scalars(annotation: object) -> bool:
    return all(part in _SCALARS for part in _parts(annotation))


def _fits(default: object, annotation: object) -> bool:
    """Return whether a default, which nobody validates, is what its annotation says."""
    return type(default) in _parts(annotation) and not (isinstance(default, float) and not isfinite(default))


def _no_key(_value: object) -> None:
    return None


def _key_reader(cls: type[Event], name: str, key: str | None) -> Callable[[Any], str | None]:
    if key is None:
        return _no_key
    field = cls.model_fields.get(key)
    if field is None:
        known = ", ".join(cls.model_fields) or "none"
        raise errors.ContractInvalid(f"The key field {key!r} does not exist; fields: {known}.", type=name)
    get = attrgetter(key)
    if field.annotation is str:
        return get

    def text(value: object) -> str | None:
        found = get(value)
        try:
            return None if found is None else str(found)
        except ValueError as fault:  # an int of more than 4,300 digits
            raise errors.KeyInvalid(type=name, problem=str(fault)) from None

    return text


def check_key(name: str, key: str | None) -> None:
    """Raise `KeyInvalid` unless the key is ``None`` or text of 1 to 1,024 bytes."""
    if key is None:
        return
    if not key:
        raise errors.KeyInvalid(type=name, problem="it is empty")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise errors.KeyInvalid(type=name, problem="it holds a lone surrogate") from None
    if size > KEY_BYTES_MAX:
        raise errors.KeyInvalid(type=name, problem=f"it has {size:,} bytes, 1 to {KEY_BYTES_MAX:,} may be")


#: Module-level event classes by type name.  Process-wide on purpose: the rule "one name, one meaning"
#: must hold for classes that never meet in one app.
_known: dict[str, tuple[str, str]] = {}


def _where(cls: type[Event]) -> str:
    module = sys.modules.get(cls.__module__)
    return f"{cls.__module__}.{cls.__qualname__} ({getattr(module, '__file__', None) or 'interactive'})"


def _remember(contract: Contract) -> None:
    name = f"{contract.cls.__module__}.{contract.cls.__qualname__}"
    if "<locals>" in name:  # a class made inside a function, as tests do; the app that uses it checks
        return
    identity, where = _known.setdefault(contract.type, (name, contract.where))
    if identity != name:
        raise errors.TypeTwice(type=contract.type, first=where, second=contract.where)


def refusal(cls: type[Event], name: str, fault: ValidationError) -> errors.EventError:
    """Turn pydantic's report into one coded error that lists every fault with its path."""
    found = fault.errors(include_url=False, include_context=False)
    if found[0]["type"] == "json_invalid":
        return errors.PayloadUndecodable(found[0]["msg"], type=name)
    lines = [
        f"{_path(one['loc'])}: {one['msg']} (got {_shown(cls, one['loc'], one.get('input'))})"
        for one in found[:FAULTS_SHOWN_MAX]
    ]
    if len(found) > FAULTS_SHOWN_MAX:
        lines.append(f"... and {len(found) - FAULTS_SHOWN_MAX} more")
    return errors.PayloadInvalid("; ".join(lines), type=name)


def _path(loc: tuple[int | str, ...]) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return bounded(text.lstrip("."), PATH_CHARS_MAX) or "(payload)"


def _shown(cls: type[Event], loc: tuple[int | str, ...], value: object) -> str:
    field = cls.model_fields.get(str(loc[0])) if loc else None
    secret = field is not None and any(field.annotation is kind for kind in (SecretStr, SecretBytes))
    if secret or any(isinstance(part, str) and _SECRET.search(part) for part in loc):
        return "a value that is not shown"
    if type(value) is dict:  # the whole object may hold secrets beside the field that is missing
        count = len(cast("dict[str, Any]", value))
        return f"an object with {count} field{'s' * (count != 1)}"
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS_MAX else text[:SHOWN_CHARS_MAX] + "..."


_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"')
_CONSTANT = re.compile(rb"-?(?:NaN|Infinity)")


def refuse_constants(name: str, body: bytes) -> None:
    """Raise `PayloadInvalid` when NaN or Infinity stands outside of a string."""
    found = _CONSTANT.search(_STRINGS.sub(lambda text: b" " * len(text[0]), body))
    if found:
        near = body[max(0, found.start() - 30) : found.end()].decode(errors="replace")
        raise errors.PayloadInvalid(f"{found[0].decode()} is not JSON (at ...{near})", type=name)
