"""Prompts of reinforcement learning: checked, as text or conversations, and turned into tokens.

A record without a prompt would make a trainer fail with an error of its own, which may quote the
record. So columns are checked before the first record is read, and every record before it is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.conversations import kind_of, read_rows
from sealtrain.recipe.recordcolumns import EITHER
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.data.conversations import (
    check_conversation,
    check_tokenizer,
    field_names,
)
from sealtrain.training.data.stream import read_all

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.columns import Columns
    from sealtrain.recipe.phases.rlhf import RlhfRecipe
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.data.hugging import Positioned

Prompt = dict[str, Any]
"""A record: ``prompt`` (text, or a list of {role, content}), ``answer`` if the recipe has it."""


def training_prompts(
    work: TrainingContext[RlhfRecipe], tokenizer: PreTrainedTokenizerBase
) -> Positioned:
    """The endless, shuffled stream of training prompts; every record needs ``check_prompt``.

    Raises:
        SchemaMismatch: A column is missing or has another type.
        ModelInvalid: The tokenizer has no end token, or no chat template where one is needed.
    """
    positioned = work.training_stream(field_names(work.recipe.columns))
    _check_columns(positioned.stream.schema, work.recipe.columns, tokenizer)
    return positioned


def test_prompts(work: TrainingContext[RlhfRecipe]) -> list[Prompt]:
    """Every test record, checked."""
    names = field_names(work.recipe.columns)
    batches = read_all(work.test_sources, list(names), names=names)
    return [check_prompt(record) for batch in batches for record in read_rows(batch)]


def check_prompt(record: Prompt) -> Prompt:
    """Return the record if it is usable.

    Raises:
        RecordInvalid: Its prompt is missing or empty, or its answer is missing.
    """
    prompt = record["prompt"]
    if isinstance(prompt, list):
        check_conversation("prompt", prompt)
    elif not isinstance(prompt, str) or not prompt:
        raise RecordInvalid("a record's prompt is empty", check="columns")
    if "answer" in record and not isinstance(record["answer"], str):
        raise RecordInvalid("a record has no answer for the rule to compare", check="columns")
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


def _check_columns(schema: pa.Schema, columns: Columns, tokenizer: PreTrainedTokenizerBase) -> None:
    kinds = set()
    for field in schema:
        kind = kind_of(field.type)
        only_text = field.name == "answer"
        if kind is None or (only_text and kind != "text"):
            raise SchemaMismatch(
                f"column {getattr(columns, field.name)} holds no {field.name}",
                check="columns",
                column=getattr(columns, field.name),
                got=field.type,
                expected="text" if only_text else EITHER,
            )
        kinds.add(kind)
    check_tokenizer(tokenizer, conversations="messages" in kinds)
