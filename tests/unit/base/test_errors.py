"""The error tree as callers use it; its completeness is tested in tests/meta."""

from __future__ import annotations

import pytest

from sealtrain import errors
from sealtrain.errors import (
    ApprovalsMissing,
    BrokerUnreachable,
    NotSealed,
    RecipeInvalid,
    Refused,
    SealtrainError,
    error_by_code,
)


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
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, SealtrainError):
            assert error_by_code(kind.code) is kind


def test_a_class_of_another_module_has_its_parents_code() -> None:
    class OfAScript(NotSealed):
        pass

    assert OfAScript.code == "not-sealed"
    assert error_by_code("not-sealed") is NotSealed


def test_a_code_this_version_does_not_know_is_still_a_refusal() -> None:
    assert error_by_code("invented-by-a-later-version") is Refused
