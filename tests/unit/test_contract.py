"""What is compiled from an event class: refusals when it is declared, keys, bytes there and back."""

from __future__ import annotations

import math
import sys
from datetime import UTC, date, datetime
from typing import Annotated, Any, ClassVar
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, PlainSerializer, SecretStr, ValidationError, field_serializer, field_validator

from headrace import Event, errors
from headrace.event.contract import FAULTS_SHOWN_MAX, KEY_BYTES_MAX, check_key, contract_of


class ContractFlat(Event, topic="contract.flat", key="name"):
    """Only scalars."""

    name: str
    count: int = 0
    share: float = 0.0
    on: bool = False
    at: datetime | None = None
    day: date | None = None
    ref: UUID | None = None


class ContractRich(Event, topic="contract.rich", key="number", type="Rich", version=3):
    """Lists, objects, bytes, names of its own."""

    number: int | None = None
    parts: list[ContractFlat] = Field(default_factory=list)
    table: dict[str, float] = Field(default_factory=dict)
    raw: bytes = b""
    plain: str = Field(default="", alias="wire")


FLAT, RICH = contract_of(ContractFlat), contract_of(ContractRich)

TEXT = st.text(max_size=20, alphabet=st.characters(exclude_categories=("Cs",)))
FLATS = st.builds(
    ContractFlat,
    name=TEXT,
    count=st.integers(),
    share=st.floats(allow_nan=False, allow_infinity=False),
    on=st.booleans(),
    at=st.none() | st.datetimes(timezones=st.just(UTC)),
    day=st.none() | st.dates(),
    ref=st.none() | st.uuids(),
)
RICHES = st.builds(
    ContractRich,
    number=st.none() | st.integers(),
    parts=st.lists(FLATS, max_size=2),
    table=st.dictionaries(TEXT, st.floats(allow_nan=False, allow_infinity=False), max_size=2),
    raw=st.binary(max_size=9),
    wire=TEXT,
)


# ----------------------------------------------------------------------------------------- declaring


def declared(**arguments: Any) -> type[Event]:
    """Make an event class inside a function, with one field `a`."""

    class Local(Event, **arguments):
        a: str = ""

    return Local


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"topic": "a b"}, "The topic 'a b' has characters that are not allowed"),
        ({"topic": "t" * 201}, "The topic"),
        ({"topic": "t", "type": "a/b"}, "The type 'a/b' has characters"),
        ({"topic": "t", "version": 0}, "starts at 1"),
        ({"topic": "t", "key": "b"}, "The key field 'b' does not exist; fields: a."),
    ],
)
def test_a_class_that_cannot_be_used_is_refused_when_it_is_made(arguments: dict[str, Any], said: str) -> None:
    """Topic, type, version and key are checked by the class statement, with what is wrong."""
    with pytest.raises(errors.ContractInvalid) as refused:
        declared(**arguments)
    assert said in str(refused.value)
    assert refused.value.code == "HR-E101"


def test_a_contract_says_what_was_declared() -> None:
    """Type, topic, key, version and place come from the class statement; the type is the name by default."""
    told = (FLAT.type, FLAT.topic, FLAT.key_field, FLAT.schema_version)
    assert told == ("ContractFlat", "contract.flat", "name", 1)
    assert (RICH.type, RICH.schema_version) == ("Rich", 3)
    assert __file__ in FLAT.where


def test_a_class_without_a_topic_is_abstract() -> None:
    """It has no contract, and neither has the base class; asking for one says so."""
    for cls in (declared(), Event):
        with pytest.raises(errors.ContractInvalid, match="It has no topic"):
            contract_of(cls)


def test_topic_and_key_are_inherited_type_and_version_are_not() -> None:
    """A subclass shares topic and key, under a name and a version of its own; it may override both."""

    class Parent(Event, topic="family", key="who", type="parent", version=7):
        who: str
        to: str = ""

    class Child(Parent):
        more: int = 0

    class Moved(Parent, topic="elsewhere", key="to"):
        pass

    child, moved = contract_of(Child), contract_of(Moved)
    assert (child.type, child.topic, child.key_field, child.schema_version) == ("Child", "family", "who", 1)
    assert (moved.topic, moved.key_field) == ("elsewhere", "to")
    assert contract_of(Parent).cls is Parent


def test_an_abstract_parent_lends_its_fields() -> None:
    """A common base without a topic gives its fields to concrete classes, keys included."""

    class Common(Event):
        tenant: str

    class Concrete(Common, topic="concrete", key="tenant"):
        pass

    assert contract_of(Concrete).key_of(Concrete(tenant="t")) == "t"


def test_one_name_has_one_meaning() -> None:
    """A second class of the same type name is refused with both places, and the first goes on."""
    module = sys.modules[__name__]
    source = "from headrace import Event\nclass Twin(Event, topic='twin', type='ContractFlat'): pass\n"
    with pytest.raises(errors.TypeTwice) as refused:
        exec(compile(source, "twin.py", "exec"), {"__name__": "twin_module"})
    said = str(refused.value)
    assert f"{module.__name__}.ContractFlat ({__file__})" in said
    assert "twin_module.Twin (interactive)" in said
    assert contract_of(ContractFlat) is FLAT


def test_a_module_may_be_loaded_again() -> None:
    """The same class of the same module is no second meaning: reloading is harmless."""
    source = "from headrace import Event\nclass Again(Event, topic='again', type='ContractAgain'): pass\n"
    for _ in range(2):
        exec(compile(source, "again.py", "exec"), {"__name__": "again_module"})


def test_classes_of_functions_may_share_a_name() -> None:
    """Local classes, as tests make them, are compared by the app that uses them, not here."""
    first, second = declared(topic="a"), declared(topic="b")
    assert contract_of(first).type == contract_of(second).type == "Local"


# ---------------------------------------------------------------------------------------------- keys


def test_a_key_is_the_text_of_its_field() -> None:
    """Text is passed on, numbers and ids are written out, None stays None; no key field, no key."""
    assert FLAT.key_of(ContractFlat(name="ada")) == "ada"
    assert RICH.key_of(ContractRich(number=12)) == "12"
    assert RICH.key_of(ContractRich()) is None
    assert contract_of(declared(topic="t")).key_of(object()) is None


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("", "it is empty"),
        ("\ud800", "lone surrogate"),
        ("x" * 1025, "1,025 bytes, 1 to 1,024 may be"),
        ("ä" * 513, "1,026 bytes, 1 to 1,024 may be"),
    ],
)
def test_an_unusable_key_is_refused(key: str, problem: str) -> None:
    """Empty, not UTF-8 or longer than 1,024 bytes: `KeyInvalid` says which."""
    with pytest.raises(errors.KeyInvalid, match=problem):
        check_key("T", key)


def test_the_bounds_of_a_key_are_inclusive() -> None:
    """None, one byte and 1,024 bytes pass."""
    for key in (None, "x", "x" * KEY_BYTES_MAX, "ä" * (KEY_BYTES_MAX // 2)):
        check_key("T", key)


# ------------------------------------------------------------------------------------- there and back


@given(FLATS)
def test_a_flat_event_comes_back_as_it_was(event: ContractFlat) -> None:
    """Decoding what was encoded gives an equal event, and equal bytes again."""
    assert FLAT.flat
    assert FLAT.decode(FLAT.encode(event)) == event
    assert FLAT.encode(FLAT.decode(FLAT.encode(event))) == FLAT.encode(event)


@given(RICHES)
def test_a_rich_event_comes_back_as_it_was(event: ContractRich) -> None:
    """Lists, objects, bytes and aliases survive the way through JSON; the alias is what is written."""
    assert not RICH.flat
    body = RICH.encode(event)
    assert b'"wire":' in body
    assert RICH.decode(body) == event


@pytest.mark.parametrize("text", ["NaN", '"Infinity', "a\\", '-Infinity\\"NaN'])
def test_a_text_may_say_infinity(text: str) -> None:
    """Only the bare constants are refused, not a string that spells them, whatever its quotes."""
    event = ContractRich(plain=text, table={text: 1.0})  # pyright: ignore[reportCallIssue] - by its name
    assert RICH.decode(RICH.encode(event)) == event


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_nan_and_infinity_are_refused_wherever_they_get_in(number: float) -> None:
    """By construction, by a changed dict inside, by bytes: each is refused with a coded error."""
    with pytest.raises(ValidationError):
        ContractFlat(name="n", share=number)
    event = ContractRich(table={"x": 1.0})
    event.table["x"] = number
    with pytest.raises(errors.PayloadInvalid, match="is not JSON"):
        RICH.encode(event)
    with pytest.raises(errors.EventError):
        FLAT.decode(b'{"name": "n", "share": %s}' % str(number).replace("nan", "NaN").encode())


def test_what_became_wrong_inside_is_refused_when_it_is_written() -> None:
    """A list that was changed after validation no longer fits: `PayloadInvalid`, nothing is guessed."""
    event = ContractRich(parts=[ContractFlat(name="a")])
    event.parts.append("no event")  # type: ignore[arg-type]
    with pytest.raises(errors.PayloadInvalid):
        RICH.encode(event)


@pytest.mark.parametrize("kind", [list[str], dict[str, int], bytes, Any, tuple[int, ...], str | list[str]])
def test_only_immutable_scalars_are_flat(kind: Any) -> None:
    """Whatever can change, or is written in another form, takes the careful way."""

    class Local(Event, topic="t"):
        a: kind  # pyright: ignore[reportInvalidTypeForm]

    assert not contract_of(Local).flat


def test_a_way_of_its_own_is_not_flat() -> None:
    """An alias, a serializer, a changed configuration: the careful way, and the bytes come back."""

    class Aliased(Event, topic="t"):
        a: str = Field(alias="b")

    class Serialized(Event, topic="t"):
        a: int

        @field_serializer("a")
        def _a(self, value: int) -> str:
            return f"{value}"

    class Changed(Event, topic="t"):
        model_config: ClassVar[Any] = {"allow_inf_nan": True}
        a: float

    assert not any(contract_of(cls).flat for cls in (Aliased, Serialized, Changed))
    assert contract_of(Aliased).encode(Aliased(b="x")) == b'{"b":"x"}'  # type: ignore[call-arg]
    assert contract_of(Serialized).encode(Serialized(a=1)) == b'{"a":"1"}'
    with pytest.raises(errors.PayloadInvalid, match="NaN is not JSON"):
        contract_of(Changed).encode(Changed(a=float("nan")))


def test_values_that_nobody_has_validated_are_not_flat() -> None:
    """Defaults of another kind, NaN, what a validator returns, what is left out or written anew."""

    class Wrong(Event, topic="local"):
        count: int = None  # type: ignore[assignment]

    class NoNumber(Event, topic="local"):
        share: float = math.nan

    class Allowed(Event, topic="local"):
        share: Annotated[float, Field(allow_inf_nan=True)]

    class Made(Event, topic="local"):
        count: int = Field(default_factory=lambda: 0)

    class Hidden(Event, topic="local"):
        count: Annotated[int, Field(exclude=True)]

    class Written(Event, topic="local"):
        name: Annotated[str, PlainSerializer(str.upper)]

    class Returned(Event, topic="local"):
        count: int

        @field_validator("count")
        @classmethod
        def other(cls, _value: int) -> Any:
            return []

    classes = (Wrong, NoNumber, Allowed, Made, Hidden, Written, Returned)
    assert [cls.__name__ for cls in classes if contract_of(cls).flat] == []


# ------------------------------------------------------------------------------------------ refusals


def test_every_fault_is_told_at_once_with_its_path() -> None:
    """One error lists all faults: path, what is wrong, what was there."""
    with pytest.raises(errors.PayloadInvalid) as refused:
        RICH.decode(b'{"number": "x", "parts": [{"name": 5}], "more": 1, "table": {"k": "v"}}')
    said = str(refused.value)
    for part in ("number:", "(got 'x')", "parts[0].name:", "(got 5)", "more:", "table.k:", "Rich"):
        assert part in said


def test_many_faults_are_counted() -> None:
    """Twenty are told, the rest is a number."""
    with pytest.raises(errors.PayloadInvalid, match=r"\.\.\. and 5 more"):
        RICH.build({f"x{n}": n for n in range(FAULTS_SHOWN_MAX + 5)})


def test_a_secret_is_not_shown() -> None:
    """A refused value is masked where its name or its type says secret, also deep inside; others are cut."""

    class Login(Event, topic="t"):
        user: int
        api_key: int
        pin: SecretStr
        nested: dict[str, int]

    contract = contract_of(Login)
    with pytest.raises(errors.PayloadInvalid) as refused:
        contract.decode(
            b'{"user": "%s", "api_key": "hidden1", "pin": ["hidden2"], "nested": {"password": "hidden3"}}'
            % (b"u" * 500)
        )
    said = str(refused.value)
    assert "hidden" not in said
    assert said.count("a value that is not shown") == 3
    assert "u" * 59 + "..." in said
    assert "u" * 61 not in said


def test_a_missing_field_does_not_show_its_neighbours() -> None:
    """Pydantic reports the whole object as the input: only its size is told."""
    with pytest.raises(errors.PayloadInvalid) as refused:
        FLAT.build({"count": 7, "share": 0.123})
    assert "name: Field required (got an object with 2 fields)" in str(refused.value)
    assert "0.123" not in str(refused.value)


@pytest.mark.parametrize("body", [b"", b"{", b"nope", b'{"name": "a"} x', b"\xff"])
def test_bytes_that_are_no_json_are_told_apart(body: bytes) -> None:
    """`PayloadUndecodable` with the position, not `PayloadInvalid`."""
    with pytest.raises(errors.PayloadUndecodable, match=r"line|column|invalid|EOF"):
        FLAT.decode(body)


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"text"'])
def test_json_that_is_no_object_is_invalid(body: bytes) -> None:
    """The path of the whole is called the payload."""
    with pytest.raises(errors.PayloadInvalid, match=r"\(payload\)"):
        FLAT.decode(body)


def test_unknown_fields_are_refused_in_code_and_in_bytes() -> None:
    """No field is lost silently, whichever way it comes."""
    with pytest.raises(ValidationError):
        ContractFlat(name="a", other=1)  # type: ignore[call-arg]
    with pytest.raises(errors.PayloadInvalid, match="other"):
        FLAT.decode(b'{"name": "a", "other": 1}')
    with pytest.raises(errors.PayloadInvalid, match="other"):
        ContractFlat.of(name="a", other=1)


def test_an_event_is_frozen_and_every_way_to_make_one_validates() -> None:
    """model_construct and model_copy refuse what the constructor refuses; a copy may change valid values."""
    event = ContractFlat(name="a", count=1)
    with pytest.raises(ValidationError):
        event.count = 2  # type: ignore[misc]
    with pytest.raises(ValidationError):
        ContractFlat.model_construct(name=5)
    with pytest.raises(ValidationError):
        event.model_copy(update={"count": "x"})
    with pytest.raises(ValidationError):
        event.model_copy(update={"other": 1})
    assert event.model_copy(update={"count": 2}) == ContractFlat(name="a", count=2)
    assert event.model_copy() == event
    assert ContractFlat.model_construct(name="a", count=1) == ContractFlat.of(name="a", count=1) == event
