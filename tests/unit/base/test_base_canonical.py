"""Canonical JSON out, strict JSON in."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rfc8785
from carrying import carries
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.base.canonical import canonical_json, parse_canonical, parse_json
from sealtrain.errors import DataInvalid, LimitExceeded

JCS_NAMES = ["arrays", "french", "structures", "unicode", "values", "weird"]

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
ASCII = st.text(st.characters(max_codepoint=127), max_size=12)
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-1e15, 1e15)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@pytest.mark.parametrize("name", JCS_NAMES)
def test_canonical_form_equals_the_published_vector(shared: Path, name: str) -> None:
    folder = shared / "vectors/jcs/testdata"
    value = json.loads((folder / f"input/{name}.json").read_bytes())
    expected = (folder / f"output/{name}.json").read_bytes()
    assert canonical_json(value) == expected
    hexadecimal = "".join((folder / f"outhex/{name}.txt").read_text().split())
    assert canonical_json(value).hex() == hexadecimal


@settings(max_examples=examples(50), deadline=None)
@given(JSON_VALUES)
def test_canonical_bytes_parse_back_to_an_equal_value_and_are_a_fixed_point(value: object) -> None:
    data = canonical_json(value)
    assert parse_canonical(data) == value
    assert canonical_json(parse_json(data)) == data


@settings(max_examples=examples(200), deadline=None)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | TEXT | ASCII,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(ASCII, inner, max_size=4),
        max_leaves=20,
    )
    | JSON_VALUES
)
def test_the_fast_way_writes_what_the_library_for_rfc_8785_writes(value: object) -> None:
    assert canonical_json(value) == rfc8785.dumps(value)


@settings(max_examples=200, deadline=None)
@given(
    st.floats(allow_nan=False, allow_infinity=False) | st.floats(1e-5, 1e-3) | st.floats(1e15, 1e17)
)
def test_a_number_is_written_as_the_library_for_rfc_8785_writes_it(value: float) -> None:
    for deep in (value, [value, 0.5], {"a": {"b": [value, {"c": 0.5, "\u00e9": value}]}}):
        assert canonical_json(deep) == rfc8785.dumps(deep)


def test_an_odd_number_below_every_split_is_written_the_same() -> None:
    value: object = [5e-05, *range(1000)]
    for _ in range(60):
        value = [value]
    assert canonical_json(value) == rfc8785.dumps(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(
            {"\U0001f600": 1, "\ufb33": 2}, '{"\U0001f600":1,"\ufb33":2}', id="utf-16-order"
        ),
        pytest.param({"a": [1.0, 1e21]}, '{"a":[1,1e+21]}', id="floats"),
        pytest.param("\x00\x1f\x7f\u2028/", '"\\u0000\\u001f\x7f\u2028/"', id="escapes"),
        pytest.param(((), {}), "[[],{}]", id="empty"),
    ],
)
def test_what_the_standard_library_would_write_otherwise(value: object, expected: str) -> None:
    assert canonical_json(value) == expected.encode()


@settings(max_examples=examples(50), deadline=None)
@given(st.dictionaries(TEXT, st.integers(0, 9), min_size=2, max_size=6))
def test_the_order_of_keys_makes_no_difference(value: dict[str, int]) -> None:
    assert canonical_json(dict(reversed(value.items()))) == canonical_json(value)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(float("nan"), id="nan"),
        pytest.param(float("inf"), id="infinity"),
        pytest.param(2**53, id="integer-beyond-double"),
        pytest.param({1: "a"}, id="key-not-text"),
        pytest.param("\ud800", id="lone-surrogate"),
        pytest.param({"\ud800": 1}, id="lone-surrogate-key"),
        pytest.param(b"bytes", id="bytes"),
        pytest.param({"a": {1, 2}}, id="set"),
    ],
)
def test_a_value_json_cannot_carry_exactly_is_refused(value: object) -> None:
    with pytest.raises(DataInvalid):
        canonical_json(value)


@pytest.mark.parametrize("value", [2.0**53, 1e16, -1e17, 123456789012345680000.0, 1e21])
def test_a_double_that_is_written_as_an_integer_is_read_back(value: float) -> None:
    """A loss of 1e17 has no exponent in RFC 8785."""
    data = canonical_json({"loss": value})
    assert parse_canonical(data) == {"loss": value}
    assert canonical_json(parse_canonical(data)) == data


@pytest.mark.parametrize(
    "number",
    ["9007199254740993", "1.0", "1e2", "-0", "1E21", "01", "1" * 400, "100000000000000000001"],
)
def test_a_number_in_another_spelling_is_not_canonical(number: str) -> None:
    with pytest.raises(DataInvalid):
        parse_canonical(f'{{"a":{number}}}'.encode())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"a":1,"a":2}', id="duplicate-key"),
        pytest.param(b'[{"a":1,"a":1}]', id="duplicate-key-inside"),
        pytest.param(b"NaN", id="nan"),
        pytest.param(b"-Infinity", id="infinity"),
        pytest.param(b"\xff\xfe", id="not-utf8"),
        pytest.param(b"\xef\xbb\xbf1", id="byte-order-mark"),
        pytest.param(b"{'a':1}", id="not-json"),
        pytest.param(b"", id="empty"),
        pytest.param(b"1 2", id="two-documents"),
        pytest.param(b'"open', id="string-without-end"),
    ],
)
def test_loose_json_is_refused(data: bytes) -> None:
    with pytest.raises(DataInvalid):
        parse_json(data)


def test_the_length_limit_is_exact() -> None:
    data = b"[1,2,3]"
    assert parse_json(data, max_bytes=len(data)) == [1, 2, 3]
    with pytest.raises(LimitExceeded):
        parse_json(data, max_bytes=len(data) - 1)


def test_the_depth_limit_is_exact() -> None:
    assert parse_json(b"[" * 5 + b"]" * 5, max_depth=5) == [[[[[]]]]]
    with pytest.raises(LimitExceeded):
        parse_json(b"[" * 6 + b"]" * 6, max_depth=5)


def test_brackets_inside_a_string_are_not_depth() -> None:
    data = b'"' + b"[" * 100 + b'\\"' + b"{" * 100 + b'"'
    assert parse_json(data, max_depth=1) == "[" * 100 + '"' + "{" * 100


def _shape(value: object) -> tuple[int, int]:
    """Depth of arrays and objects, and how many values ``parse_json`` counts at most."""
    inner = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(inner, list):
        return 0, 1
    shapes = [_shape(process) for process in inner]
    return 1 + max((deep for deep, _ in shapes), default=0), 1 + sum(many for _, many in shapes)


@settings(max_examples=examples(100), deadline=None)
@given(JSON_VALUES)
def test_what_is_counted_before_parsing_is_what_is_there(value: object) -> None:
    """Brackets, commas, quotes and backslashes inside a text count for nothing."""
    deep, many = _shape(value)
    data = json.dumps({"\\": value, '\\"': '\\\\"[{,'}, separators=(",", ":")).encode()
    assert parse_json(data, max_depth=deep + 1, max_values=2 * many + 4)
    with pytest.raises(LimitExceeded):
        parse_json(data, max_depth=deep)
    with pytest.raises(LimitExceeded):
        parse_json(data, max_values=many)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'["' + b'\\"' * 4_000_000, id="a-string-without-an-end"),
        pytest.param(b'{"a":' * 1_600_000, id="objects-in-objects"),
        pytest.param(b'""' * 4_000_000, id="texts-without-commas"),
        pytest.param(b"]" * 8_000_000, id="only-ends"),
    ],
)
def test_looking_takes_time_that_is_linear_in_the_length(data: bytes) -> None:
    begun = time.process_time()
    with pytest.raises(DataInvalid):
        parse_json(data)
    assert time.process_time() - begun < 5


def test_half_of_a_character_is_refused() -> None:
    assert parse_json(b'"\\ud83d\\ude00"') == "\U0001f600"
    for half in (b'"\\ud83d"', b'{"\\uDE00":1}', b'["\\ude00\\ud83d"]'):
        with pytest.raises(DataInvalid):
            parse_json(half)


def test_a_megabyte_of_opening_brackets_ends_in_a_refusal_and_not_in_a_crash() -> None:
    with pytest.raises(LimitExceeded):
        parse_json(b"[" * (1 << 20))


def test_what_others_wrote_ends_no_process_whose_limit_of_recursion_a_library_raised() -> None:
    program = (
        "import sys; sys.setrecursionlimit(100_000)\n"
        "from sealtrain.base.canonical import parse_foreign\n"
        "assert parse_foreign(b'[' * 250 + b']' * 250)\n"
        "try: parse_foreign(b'[' * 90_000)\n"
        "except ValueError: print('refused')\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert told.stdout == "refused\n"


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b'{"b":1,"a":2}', id="key-order"),
        pytest.param(b'{"a": 1}', id="space"),
        pytest.param(b"1.0", id="number-form"),
        pytest.param(b'"\\u0041"', id="needless-escape"),
        pytest.param(b"1\n", id="newline"),
    ],
)
def test_a_document_in_another_form_than_the_canonical_one_is_refused(data: bytes) -> None:
    parse_json(data)
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        parse_canonical(data)


@pytest.mark.parametrize("data", [b"1e999", b"[-1e400]"])
def test_a_number_that_overflows_to_infinity_is_refused(data: bytes) -> None:
    with pytest.raises(DataInvalid, check=carries(code="data-invalid")):
        parse_json(data)


def test_an_integer_with_thousands_of_digits_is_refused_with_a_typed_error() -> None:
    with pytest.raises(DataInvalid):
        parse_json(b"9" * 5000)


@settings(max_examples=examples(50), deadline=None)
@given(st.binary(max_size=40))
def test_arbitrary_bytes_parse_or_are_refused_with_a_typed_error(data: bytes) -> None:
    with contextlib.suppress(DataInvalid):
        parse_json(data)
