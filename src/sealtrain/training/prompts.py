"""Prompts of reinforcement learning: checked, as text or conversations, and turned into tokens.

A record without a prompt would make a trainer fail with an error of its own, which may quote it.
So columns are checked before the first record is read, and every record before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sealtrain.errors import ModelInvalid, RecordInvalid, SchemaMismatch
from sealtrain.training import quiet
from sealtrain.training.loaders.stream import read_all

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.columns import Columns
    from sealtrain.training.loaders.hugging import Positioned
    from sealtrain.training.workplace import Workplace

quiet.silence()

__all__ = ["Prompt", "check_prompt", "prompt_tokens", "test_prompts", "training_prompts"]

Prompt = dict[str, Any]
"""One record: ``prompt`` (text, or a list of {role, content}), ``answer`` if the recipe has it."""


def training_prompts(work: Workplace, tokenizer: PreTrainedTokenizerBase) -> Positioned:
    """The endless, shuffled stream of training prompts; every record needs ``check_prompt``.

    Raises:
        SchemaMismatch: A column is missing or holds something else.
        ModelInvalid: The tokenizer has no end token, or no chat template where one is needed.
    """
    positioned = work.training_stream(_names(work.recipe.columns))
    _check_columns(positioned.stream.schema, work.recipe.columns, tokenizer)
    return positioned


def test_prompts(work: Workplace) -> list[Prompt]:
    """Every test record, checked."""
    names = _names(work.recipe.columns)
    batches = read_all(work.test_sources, list(names), names=names)
    return [check_prompt(record) for batch in batches for record in batch.to_pylist()]


def check_prompt(record: Prompt) -> Prompt:
    """The record itself.

    Raises:
        RecordInvalid: Its prompt is absent or empty, or its answer absent.
    """
    prompt = record["prompt"]
    if isinstance(prompt, list):
        if not prompt or any(
            not isinstance(turn, dict) or not isinstance(turn.get("content"), str)
            for turn in prompt
        ):
            raise RecordInvalid("a record's prompt is an empty conversation", check="columns")
    elif not isinstance(prompt, str) or not prompt:
        raise RecordInvalid("a record's prompt is empty", check="columns")
    if "answer" in record and not isinstance(record["answer"], str):
        raise RecordInvalid("a record has no answer to compare with", check="columns")
    return record


def prompt_tokens(tokenizer: PreTrainedTokenizerBase, prompts: list[Any]) -> Iterator[list[int]]:
    """Token ids of each prompt; a conversation ends where the model's turn begins."""
    for prompt in prompts:
        if isinstance(prompt, str):
            yield list(tokenizer(prompt)["input_ids"])
            continue
        encoded: Any = tokenizer.apply_chat_template(
            prompt, add_generation_prompt=True, tokenize=True, return_dict=True
        )
        yield list(encoded["input_ids"])


def _names(columns: Columns) -> dict[str, str]:
    """Column of the data → name of the recipe's field, which is what TRL looks for."""
    fields = {field: getattr(columns, field) for field in type(columns).model_fields}
    return {column: field for field, column in fields.items() if column is not None}


def _check_columns(schema: pa.Schema, columns: Columns, tokenizer: PreTrainedTokenizerBase) -> None:
    for field in schema:
        column = getattr(columns, field.name)
        if _is_text(field.type):
            continue
        if field.name == "answer" or not _is_conversation(field.type):
            expected = "text" if field.name == "answer" else "text, or a list of {role, content}"
            raise SchemaMismatch(
                f"column {column} holds no {field.name}",
                check="columns",
                got=field.type,
                expected=expected,
            )
        if tokenizer.chat_template is None:
            raise ModelInvalid(
                "the tokenizer has no chat template, and the prompts are conversations",
                check="tokenizer",
                hint="set tokenizer.chat_template and save it, or seal prompts of plain text",
            )
    if tokenizer.eos_token is None:
        raise ModelInvalid(
            "the tokenizer has no end token, so no answer would end",
            check="tokenizer",
            hint="set tokenizer.eos_token and save it",
        )


def _is_text(found: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(found) or pa.types.is_large_string(found))


def _is_conversation(found: pa.DataType) -> bool:
    import pyarrow as pa

    if not (pa.types.is_list(found) or pa.types.is_large_list(found)):
        return False
    inner = found.value_type
    return pa.types.is_struct(inner) and {"role", "content"} <= {field.name for field in inner}
