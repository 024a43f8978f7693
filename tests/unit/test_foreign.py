"""Foreign bytes: what passes is JSON that every reader understands in the same way."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace import errors
from headrace.codec.foreign import DEPTH_MAX, check_foreign

TEXT = st.text(max_size=10, alphabet=st.characters(exclude_categories=("Cs",)))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=12,
)


@given(value=VALUES, ascii_only=st.booleans())
def test_json_of_any_writer_passes(value: object, ascii_only: bool) -> None:
    """Objects, lists, numbers, texts, escaped or not: nothing is refused that is JSON."""
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    check_foreign("T", body, len(body))


@given(st.binary(max_size=40) | TEXT.map(str.encode))
def test_bytes_pass_only_if_they_are_json(body: bytes) -> None:
    """Whatever comes in, the answer is a coded error or a body that Python's reader takes too."""
    try:
        check_foreign("T", body, 1_000)
    except errors.PayloadUndecodable:
        return
    json.loads(body)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b"{} {}", "Extra data: column 4$"),  # of one line no other is told: it may be the tenth of a file
        (b"{}\n {}\n", "Extra data: line 2 column 2$"),
        (b"{'a': 1}", "Expecting property name"),
        (b'{"a": 1,}', "trailing comma|Expecting property name"),
        (b"\xff", "utf-8"),
        (b'"\xed\xa0\x80"', "utf-8"),  # a surrogate in bytes
        (b'"\xc0\xaf"', "utf-8"),  # an overlong form
        (b"\xef\xbb\xbf{}", "A byte order mark stands where JSON has none: column 1$"),
        (b"{}\xef\xbb\xbf{}", "A byte order mark stands where JSON has none: column 3$"),
        (b"{}\n\xef\xbb\xbf{}", "JSON has none: line 2 column 1$"),
        ('{"a": 1}'.encode("utf-16"), "utf-8"),
        (b'"tab\there"', "control character"),
        (b"NaN", "NaN is not JSON"),
        (b"[-Infinity]", "-Infinity is not JSON"),
        (b'{"a": 1e999}', "1e999 is beyond"),
        (b'{"a": -1e999}', "-1e999 is beyond"),
        (b'{"a": 1, "a": 1}', "'a' stands twice"),
        (b'[{"b": {"a": 1, "\\u0061": 2}}]', "'a' stands twice"),  # the same name, written in two ways
        (b'"\\ud800"', "lone surrogate"),
        (b'{"\\udc00": 1}', "lone surrogate"),
        (b'[[{"a": ["\\udc00\\ud800"]}]]', "lone surrogate"),
    ],
)
def test_what_readers_understand_differently_is_refused(body: bytes, said: str) -> None:
    """RFC 8259 and RFC 7493: each with its own word, and the type in front."""
    with pytest.raises(errors.PayloadUndecodable, match=said) as refused:
        check_foreign("Order", body, 1_000)
    assert "Order" in str(refused.value)


@pytest.mark.parametrize(
    "body",
    [
        b'"\\ud83d\\ude00"',  # a pair is a character
        b'"\\\\ud800"',  # a backslash, then letters
        b'[{"a": 1}, {"a": 1}]',
        b'{"a": {"a": 1}}',
        b'"NaN Infinity"',
        b" \t\r\n{ } ",
        b"12345678901234567890123456789012345678901234567890",
        b"1e308",
        b"9" * 900,  # an integer of any size is exact
    ],
)
def test_what_only_looks_bad_passes(body: bytes) -> None:
    """Pairs of surrogates, the same name in two objects, words in texts, long integers."""
    check_foreign("T", body, 1_000)


@pytest.mark.parametrize("pair", ["[]", "{}"])
def test_the_depth_is_bounded(pair: str) -> None:
    """64 levels pass, 65 do not; brackets in texts do not count, also behind escaped quotes."""
    left = "[" if pair == "[]" else '{"a":'

    def nested(levels: int) -> bytes:
        return (left * (levels - 1) + pair + pair[1] * (levels - 1)).encode()

    check_foreign("T", nested(DEPTH_MAX), 1_000)
    with pytest.raises(errors.PayloadUndecodable, match="more than 64 levels"):
        check_foreign("T", nested(DEPTH_MAX + 1), 1_000)
    check_foreign("T", json.dumps(["[" * 500, '"[\\"' * 100]).encode(), 2_000)


def test_a_very_deep_body_is_no_danger() -> None:
    """A million brackets are refused before a parser recurses into them."""
    with pytest.raises(errors.PayloadUndecodable, match="levels deep"):
        check_foreign("T", b"[" * 1_000_000, 1 << 20)


def test_the_size_is_bounded() -> None:
    """As many bytes as are allowed pass, one more is `PayloadTooLarge` with both numbers."""
    check_foreign("T", b"12345", 5)
    with pytest.raises(errors.PayloadTooLarge) as refused:
        check_foreign("T", b"123456", 5)
    assert refused.value.context == {"type": "T", "size_bytes": 6, "limit_bytes": 5}


def test_a_long_key_is_cut_in_the_message() -> None:
    """A message does not repeat what may be a megabyte."""
    body = b'{"%s": 1, "%s": 2}' % (b"k" * 400, b"k" * 400)
    with pytest.raises(errors.PayloadUndecodable) as refused:
        check_foreign("T", body, 1_000)
    assert len(str(refused.value)) < 250
