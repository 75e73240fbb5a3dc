"""The error tree as callers use it; its completeness is tested in tests/meta."""

from __future__ import annotations

import pytest

from sealtrain.client.errors import BrokerUnreachable
from sealtrain.consortium.errors import ApprovalsMissing
from sealtrain.errors import (
    ERROR_CODES,
    INTERNAL,
    Refused,
    SealtrainError,
    error_by_code,
    every_error,
)
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.sealing.errors import NotSealed


def test_an_error_says_what_was_got_and_what_was_expected() -> None:
    error = ApprovalsMissing("recipe is not approved", got="1 of 3", expected="2 of 3")
    assert str(error) == "recipe is not approved (got 1 of 3, expected 2 of 3)"


def test_an_error_without_values_is_its_message() -> None:
    assert str(SealtrainError("stop")) == "stop"


def test_falsy_values_are_still_shown() -> None:
    assert str(SealtrainError("empty", got=0, expected=1)) == "empty (got 0, expected 1)"


def test_a_dict_holds_only_what_is_set() -> None:
    error = NotSealed("not sealed", owner="hospital-a", hint="seal it")
    assert error.to_dict() == {
        "code": "not-sealed",
        "message": "not sealed",
        "owner": "hospital-a",
        "hint": "seal it",
    }


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (SealtrainError, 1),
        (RecipeInvalid, 2),
        (ApprovalsMissing, 3),
        (BrokerUnreachable, 4),
        (NotSealed, 5),
    ],
)
def test_exit_codes_follow_the_branch(kind: type[SealtrainError], exit_code: int) -> None:
    assert kind.exit_code == exit_code


def test_every_code_leads_back_to_its_class() -> None:
    for kind in every_error():
        assert error_by_code(kind.code) is kind


def test_a_class_of_another_module_has_its_parents_code() -> None:
    class OfAScript(NotSealed):
        pass

    assert OfAScript.code == "not-sealed"
    assert error_by_code("not-sealed") is NotSealed


def test_a_code_this_version_does_not_know_is_still_a_refusal() -> None:
    assert error_by_code("invented-by-a-later-version") is Refused


def test_an_error_is_read_as_it_was_written() -> None:
    for code in ERROR_CODES - {INTERNAL}:
        fields = {name: f"the {name}" for name in ("check", "owner", "dataset", "column", "hint")}
        error = error_by_code(code)("a message", got=1, expected=2, **fields)
        found = SealtrainError.from_dict(error.to_dict())
        assert type(found) is type(error)
        assert found.to_dict() == error.to_dict()


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, {"code": "refused", "message": "refused"}),
        ({"code": None, "message": None}, {"code": "refused", "message": "refused"}),
        ({"code": "wrong-key", "message": 7}, {"code": "wrong-key", "message": "7"}),
        (
            {"code": ["wrong-key"], "got": {}},
            {"code": "refused", "message": "refused", "got": "{}"},
        ),
        (
            {"code": "wrong-key", "message": "m", "field": "x", "args": (), "retry": "again"},
            {"code": "wrong-key", "message": "m"},
        ),
    ],
)
def test_what_a_peer_sends_besides_an_error_is_dropped(
    told: dict[str, object], expected: dict[str, str]
) -> None:
    assert SealtrainError.from_dict(told).to_dict() == expected


def test_each_text_of_a_peer_is_cleaned() -> None:
    fields = ("message", "check", "owner", "dataset", "column", "got", "expected", "hint")
    told = {"code": "wrong-key"} | dict.fromkeys(fields, "text")
    found = SealtrainError.from_dict(told, str.upper).to_dict()
    assert found == {"code": "wrong-key"} | dict.fromkeys(fields, "TEXT")
