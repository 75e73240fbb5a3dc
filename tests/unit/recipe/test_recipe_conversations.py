"""Which conversations are refused, judged one by one and by a column as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from collecting import COLLECTING

from sealtrain.recipe.conversations import all_speak, conversation_fault
from sealtrain.recipe.learningmarks import find_broken_mark, may_be_marked

if not COLLECTING:
    import pyarrow as pa

pytestmark = pytest.mark.claim("C640")

ASKED = {"role": "user", "content": "a"}


def called(*calls: Any, content: str | None = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


GOOD: dict[str, list[dict[str, Any]]] = {
    "texts": [ASKED, {"role": "assistant", "content": ""}],
    "a call": [ASKED, called({"function": {"name": "beds", "arguments": "{}"}})],
    "calls beside each other": [ASKED, called(*[{"function": {"name": "beds"}}] * 2, content="b")],
    "a call that is a function": [ASKED, called({"name": "beds", "arguments": "{}"})],
    "no call": [ASKED, {"role": "assistant", "content": "b", "tool_calls": None}],
    "no call in the older form": [ASKED | {"function_call": None}],
}
BAD: dict[str, list[dict[str, Any]]] = {
    "the older form": [
        ASKED,
        {"role": "assistant", "content": "b", "function_call": {"name": "x"}},
    ],
    "no name": [ASKED, called({"function": {"arguments": "{}"}}, content="b")],
    "a blank name": [ASKED, called({"function": {"name": " "}}, content="b")],
    "one of two without a name": [
        ASKED,
        called({"function": {"name": "beds"}}, {"function": {"name": None}}, content="b"),
    ],
    "a call of nothing": [ASKED, called({"id": "1"}, content="b")],
    "a call that is text": [ASKED, called("beds", content="b")],
    "a role of white space": [ASKED, {"role": " ", "content": "b"}],
    "no content": [{"role": "user", "content": None}],
}


@pytest.mark.parametrize("name", GOOD)
def test_what_speaks_or_calls_is_taken(name: str) -> None:
    assert conversation_fault(GOOD[name]) is None


@pytest.mark.parametrize("name", BAD)
def test_what_a_template_would_leave_out_is_refused(name: str) -> None:
    assert conversation_fault(BAD[name]) is not None
    assert not all_speak(pa.array([GOOD["texts"], BAD[name]]))


@pytest.mark.parametrize("name", ["texts", "a call", "calls beside each other"])
def test_a_column_is_judged_as_a_whole_where_nothing_is_odd(name: str) -> None:
    assert all_speak(pa.array([GOOD[name]]))


SAYS = {"role": "assistant", "content": "b"}
MARKS: dict[str, tuple[list[dict[str, Any]], str | None, str | None]] = {
    "no mark": ([ASKED, SAYS], None, None),
    "learn": ([ASKED, SAYS | {"weight": 1, "train": True, "masked": False}], None, None),
    "nothing left out": ([ASKED, SAYS | {"train_detail": [], "loss": None}], None, None),
    "of a question": ([ASKED | {"weight": 0.0}, SAYS | {"weight": 1.0}], "weight", None),
    "of an answer": ([ASKED, SAYS | {"weight": 0}], "weight", "weight"),
    "behind nothing": ([None, SAYS | {"weight": 0}], "weight", "weight"),  # type: ignore[list-item]
    "half": ([ASKED, SAYS | {"weight": 0.5}], "weight", "weight"),
    "do not train": ([ASKED, SAYS | {"train": False}, ASKED, SAYS], "train", "train"),
    "no loss": ([ASKED, SAYS | {"loss": False}], "loss", "loss"),
    "masked": ([ASKED | {"masked": True}, SAYS], "masked", None),
    "a span": (
        [ASKED, SAYS | {"train_detail": [{"train": False}]}],
        "train_detail",
        "train_detail",
    ),
}


@pytest.mark.claim("C700")
@pytest.mark.parametrize("name", MARKS)
def test_a_mark_that_the_run_would_not_obey_is_found(name: str) -> None:
    turns, everything, assistant = MARKS[name]
    found = [find_broken_mark(turns, learned) for learned in ("all", "assistant", "none")]
    assert found == [everything, assistant, None]
    assert may_be_marked(pa.array([turns]).type) == (name != "no mark")
