"""Texts and conversations in columns: whether a record is whole, and a tokenizer can write it.

Checked here and not by a trainer, whose own error may quote the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sealtrain.recipe.conversations import conversation_fault, tools_fault
from sealtrain.recipe.errors import ModelInvalid
from sealtrain.recipe.templatemarks import changing_name, changing_template
from sealtrain.recipe.tokenizerfacts import without_end, without_template
from sealtrain.sealing.errors import RecordInvalid

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.columns import Columns


def field_names(columns: Columns) -> dict[str, str]:
    """Column of the data → name of the recipe's field, which is what TRL looks for."""
    fields = {field: getattr(columns, field) for field in type(columns).model_fields}
    return {column: field for field, column in fields.items() if column is not None}


def check_conversation(name: str, turns: list[Any]) -> None:
    """Refuse a conversation that cannot be rendered.

    Raises:
        RecordInvalid: It has no message, or one with neither text nor a tool call.
    """
    fault = conversation_fault(turns)
    if fault is not None:
        raise RecordInvalid(f"a record {fault} in {name}", check="columns")


def check_tools(tools: Any) -> None:
    """Refuse tools that a chat template cannot get.

    Raises:
        RecordInvalid: They are no list of function schemas, nor its JSON.
    """
    fault = tools_fault(tools)
    if fault is not None:
        raise RecordInvalid(f"a record {fault}", check="columns")


def check_template(tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a tokenizer that cannot write a conversation, or writes another one each day.

    Raises:
        ModelInvalid: It has no chat template, or one whose text changes by itself.
    """
    held: Any = tokenizer.chat_template  # a text, or several by name
    if held is None:
        raise without_template()
    for template in held.values() if isinstance(held, dict) else (held,):
        name = changing_name(template)
        if name is not None:
            raise changing_template(name)


def find_marked_template(tokenizer: PreTrainedTokenizerBase) -> str | None:
    """The chat template that marks the assistant's turns, where the tokenizer's own does not.

    Returns:
        TRL's twin of a template that it knows; ``None`` where the tokenizer's own has marks.

    Raises:
        ModelInvalid: The template has no marks, and no twin.
    """
    from trl.chat_template_utils import get_training_chat_template, has_generation_markers

    if has_generation_markers(tokenizer.chat_template):
        return None
    try:
        return get_training_chat_template(tokenizer)
    except ValueError:
        raise ModelInvalid(
            "the chat template does not mark the assistant's turns",
            check="tokenizer",
            expected="{% generation %} … {% endgeneration %} around them",
            hint="add the marks, or leave assistant_only_loss out",
        ) from None


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, *, conversations: bool) -> None:
    """Refuse a tokenizer that cannot end an answer, or write a conversation where there are some.

    Raises:
        ModelInvalid: Which of the two.
    """
    if conversations:
        check_template(tokenizer)
    if tokenizer.eos_token is None:
        raise without_end()
