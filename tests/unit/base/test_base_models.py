"""Strict documents: every field known, nothing converted, values never in messages."""

from __future__ import annotations

import pytest
from carrying import carries
from pydantic import ValidationError

from sealtrain.base.models import (
    Base64,
    Hex32,
    Hex40,
    Hex64,
    OwnerName,
    StrictModel,
    Timestamp,
    load_model,
)
from sealtrain.errors import TrustInvalid
from sealtrain.recipe.errors import RecipeInvalid


class Inner(StrictModel):
    learning_rate: float


class Document(StrictModel):
    version: int
    inner: Inner
    names: tuple[str, ...] = ()


GOOD = {"version": 1, "inner": {"learning_rate": 0.1}}


def test_a_complete_document_loads_and_returns_every_field() -> None:
    document = load_model(Document, {**GOOD, "names": ["a", "b"]}, RecipeInvalid, "recipe")
    assert document.names == ("a", "b")
    assert document.to_dict() == {
        "version": 1,
        "inner": {"learning_rate": 0.1},
        "names": ["a", "b"],
    }


def test_a_document_cannot_be_changed() -> None:
    document = load_model(Document, GOOD, RecipeInvalid, "recipe")
    with pytest.raises(ValidationError):
        document.version = 2  # type: ignore[misc]


def test_an_unknown_field_names_its_likely_meaning() -> None:
    with pytest.raises(
        RecipeInvalid, check=carries(check="recipe", field="inner.learning_rat")
    ) as caught:
        load_model(
            Document, {"version": 1, "inner": {"learning_rat": 1.0}}, RecipeInvalid, "recipe"
        )
    assert "'learning_rate'" in str(caught.value.hint)


def test_an_unknown_field_like_no_other_gets_no_guess() -> None:
    with pytest.raises(RecipeInvalid) as caught:
        load_model(Document, {**GOOD, "zzzzzz": 1}, RecipeInvalid, "recipe")
    assert "'" not in (caught.value.hint or "")


def test_unknown_fields_are_named_all_at_once() -> None:
    given = {"version": 1, "zzzzzz": 1, "inner": {"learning_rat": 1.0, "yyyyyy": 2}}
    with pytest.raises(RecipeInvalid) as caught:
        load_model(Document, given, RecipeInvalid, "recipe")
    for field in ("'zzzzzz'", "'inner.learning_rat'", "'inner.yyyyyy'"):
        assert field in str(caught.value)
    assert "'learning_rate'" in str(caught.value.hint)


def test_a_field_of_another_place_is_not_what_was_meant() -> None:
    given = {"version": 1, "inner": {"learning_rate": 1.0}, "learning_rat": 1}
    with pytest.raises(RecipeInvalid, check=carries(field="learning_rat")) as caught:
        load_model(Document, given, RecipeInvalid, "recipe")
    assert "'" not in (caught.value.hint or "")


def test_a_missing_field_is_named() -> None:
    with pytest.raises(TrustInvalid, check=carries(check="trust file", field="inner")):
        load_model(Document, {"version": 1}, TrustInvalid, "trust file")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param({**GOOD, "version": "1"}, id="text-for-number"),
        pytest.param({**GOOD, "version": True}, id="bool-for-number"),
        pytest.param({**GOOD, "version": 1.5}, id="float-for-integer"),
        pytest.param({**GOOD, "names": "abc"}, id="text-for-list"),
        pytest.param({**GOOD, "inner": None}, id="null-for-object"),
        pytest.param([], id="list-at-top"),
        pytest.param(None, id="null-at-top"),
        pytest.param({**GOOD, "inner": {"learning_rate": float("nan")}}, id="nan"),
        pytest.param({**GOOD, "names": [b"x"]}, id="bytes"),
    ],
)
def test_nothing_is_converted(data: object) -> None:
    with pytest.raises(RecipeInvalid):
        load_model(Document, data, RecipeInvalid, "recipe")


def test_a_refused_value_is_not_in_the_error() -> None:
    with pytest.raises(RecipeInvalid) as caught:
        load_model(Document, {**GOOD, "version": "patient-4711"}, RecipeInvalid, "recipe")
    error = caught.value
    assert "patient-4711" not in f"{error} {error.to_dict()}"
    assert error.__suppress_context__


class Forms(StrictModel):
    hex32: Hex32 = "0" * 32
    hex40: Hex40 = "0" * 40
    hex64: Hex64 = "0" * 64
    owner: OwnerName = "a"
    blob: Base64 = ""
    at: Timestamp = "2025-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("hex32", "0" * 31),
        ("hex32", "0" * 33),
        ("hex32", "A" * 32),
        ("hex32", "0" * 32 + "\n"),
        ("hex40", "0x" + "0" * 38),
        ("hex64", "g" * 64),
        ("owner", "-a"),
        ("owner", "A"),
        ("owner", ""),
        ("owner", "a" * 64),
        ("owner", "a/b"),
        ("owner", "a\n"),
        ("blob", "-_"),
        ("blob", "QQ==\n"),
        ("at", "2025-01-01T00:00:00+00:00"),
        ("at", "2025-01-01T00:00:00Z\n"),
    ],
)
def test_the_forms_of_names_digests_and_times_are_exact(field: str, value: str) -> None:
    with pytest.raises(RecipeInvalid):
        load_model(Forms, {field: value}, RecipeInvalid, "form")


def test_the_longest_owner_name_is_63_characters() -> None:
    name = "a" + "-" * 62
    assert load_model(Forms, {"owner": name}, RecipeInvalid, "form").owner == name
