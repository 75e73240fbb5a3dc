"""One text for one value: encodings are not malleable."""

from __future__ import annotations

import pytest
from carrying import carries
from hypothesis import given, settings
from hypothesis import strategies as st
from variants import examples

from sealtrain.base.encoding import from_base64, from_hex, to_base64
from sealtrain.errors import DataInvalid


@settings(max_examples=examples(50), deadline=None)
@given(st.binary(max_size=80))
def test_bytes_survive_both_encodings(data: bytes) -> None:
    assert from_base64(to_base64(data), length=len(data)) == data
    assert from_hex(data.hex(), length=len(data)) == data


@settings(max_examples=examples(50), deadline=None)
@given(st.text("AB+/-_= \nab01=", max_size=12))
def test_an_accepted_base64_text_is_the_only_text_of_its_value(text: str) -> None:
    try:
        data = from_base64(text)
    except DataInvalid:
        return
    assert to_base64(data) == text


@settings(max_examples=examples(50), deadline=None)
@given(st.text("0aAfFx g", max_size=8))
def test_an_accepted_hex_text_is_the_only_text_of_its_value(text: str) -> None:
    try:
        data = from_hex(text)
    except DataInvalid:
        return
    assert data.hex() == text


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("QQ", id="no-padding"),
        pytest.param("QQ==\n", id="newline"),
        pytest.param("QR==", id="stray-bits"),
        pytest.param("-_-_", id="url-alphabet"),
        pytest.param("Q Q=", id="space"),
        pytest.param("ÄÄÄÄ", id="not-ascii"),
    ],
)
def test_loose_base64_is_refused(text: str) -> None:
    with pytest.raises(DataInvalid):
        from_base64(text)


@pytest.mark.parametrize("text", ["0xab", "AB", "a", "ab cd", "zz", "\uff41\uff42"])
def test_loose_hex_is_refused(text: str) -> None:
    with pytest.raises(DataInvalid):
        from_hex(text)


def test_another_length_than_asked_for_is_refused() -> None:
    with pytest.raises(DataInvalid, check=carries(got="2 bytes", expected="3 bytes")):
        from_hex("abcd", length=3)
    with pytest.raises(DataInvalid, check=carries(got="2 bytes", expected="1 bytes")):
        from_base64("QUI=", length=1)
