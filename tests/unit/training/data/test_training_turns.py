"""What columns of texts and conversations may hold, said before a trainer could quote a record."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from carrying import carries

from sealtrain.errors import SealtrainError
from sealtrain.recipe.conversations import kind_of
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.phases.rlhf import PromptColumns
from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.data.conversations import (
    check_conversation,
    check_tokenizer,
    field_names,
)
from sealtrain.training.inputs.prompts import check_prompt

TURN = pa.struct([("role", pa.string()), ("content", pa.string())])


@pytest.mark.parametrize(
    ("found", "kind"),
    [
        (pa.string(), "text"),
        (pa.large_string(), "text"),
        (pa.list_(TURN), "messages"),
        (pa.large_list(TURN), "messages"),
        (pa.list_(pa.struct([*TURN, ("name", pa.string())])), "messages"),
        (pa.list_(pa.struct([("role", pa.string()), ("content", pa.list_(TURN))])), None),
        (pa.list_(pa.struct([("role", pa.string()), ("content", pa.null())])), "messages"),
        (pa.list_(pa.string()), None),
        (pa.list_(pa.struct([("role", pa.string())])), None),
        (pa.int64(), None),
        (pa.binary(), None),
    ],
)
def test_a_column_holds_text_or_messages_or_neither(found: pa.DataType, kind: str | None) -> None:
    assert kind_of(found) == kind


@pytest.mark.parametrize(
    "turns", [[], [None], [{"role": "user", "content": None}], [{"role": "user"}]]
)
def test_a_conversation_in_which_nothing_is_said_is_refused(turns: list[Any]) -> None:
    with pytest.raises(RecordInvalid, match="chosen"):
        check_conversation("chosen", turns)
    with pytest.raises(RecordInvalid, match="prompt"):
        check_prompt({"prompt": turns})


@pytest.mark.parametrize(
    ("template", "end", "conversations"),
    [
        (None, "</s>", True),
        ("{{ messages }}", None, True),
        (None, None, False),
    ],
)
def test_a_tokenizer_that_cannot_write_an_answer_is_refused(
    template: str | None, end: str | None, conversations: bool
) -> None:
    tokenizer: Any = SimpleNamespace(chat_template=template, eos_token=end)
    with pytest.raises(ModelInvalid, check=carries(check="tokenizer")):
        check_tokenizer(tokenizer, conversations=conversations)


def test_a_tokenizer_needs_a_template_for_conversations_only() -> None:
    tokenizer: Any = SimpleNamespace(chat_template=None, eos_token="</s>")
    try:
        check_tokenizer(tokenizer, conversations=False)
    except SealtrainError:
        pytest.fail("plain text was refused")


def test_columns_get_the_names_of_the_recipes_fields() -> None:
    columns = PromptColumns(prompt="question", answer=None)
    assert field_names(columns) == {"question": "prompt"}
