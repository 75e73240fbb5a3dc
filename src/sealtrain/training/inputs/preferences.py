"""Preference records for TRL's trainers: checked, and streamed under TRL's column names.

A record with a wrong type or an empty conversation would make a trainer fail with an error of its
own, which may quote the record. So columns are checked before the first record is read, and every
record before a trainer reads it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.conversations import TOOLS, holds_tools, kind_of
from sealtrain.recipe.recordcolumns import EITHER
from sealtrain.recipe.records import one_kind_only
from sealtrain.sealing.errors import RecordInvalid, SchemaMismatch
from sealtrain.training.data.conversations import (
    check_conversation,
    check_tokenizer,
    check_tools,
    field_names,
)
from sealtrain.training.data.hugging import Positioned, as_iterable_dataset
from sealtrain.training.data.rendered_record import compares_only, differs

if TYPE_CHECKING:
    import pyarrow as pa
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.columns import Columns
    from sealtrain.recipe.phases.dpo import DpoRecipe
    from sealtrain.recipe.phases.reward import RewardRecipe
    from sealtrain.recipe.trainers import TrainerArguments
    from sealtrain.training.context import TrainingContext
    from sealtrain.training.data.sources import Source

import datasets

_LABEL = "label"


class InOneGo:
    """A stream for a trainer that maps its data as if they lay in memory, with ``num_proc``.

    It offers the trainer ``map`` alone. The trainer's own reads go to ``rows``.

    Attributes:
        rows: The stream, with every map that was asked for.
    """

    def __init__(self, rows: datasets.IterableDataset) -> None:
        self.rows = rows

    def map(self, function: Any, *, num_proc: None = None, **settings: Any) -> InOneGo:
        """As ``datasets.IterableDataset.map``, lazily and in this process."""
        return InOneGo(self.rows.map(function, **settings))


def preference_rows(
    work: TrainingContext[DpoRecipe | RewardRecipe], tokenizer: PreTrainedTokenizerBase
) -> tuple[datasets.IterableDataset, datasets.IterableDataset | None]:
    """The endless training rows, and every test record once.

    Args:
        work: Recipe and sources; the recipe's columns have the names that TRL looks for.
        tokenizer: Turns the rows into tokens later.

    Returns:
        Training rows and test rows, ``None`` without test data.

    Raises:
        SchemaMismatch: A column is missing, or holds neither text nor messages.
        ModelInvalid: The tokenizer has no end token, or no chat template where messages need one.
        ValidationFailed: All unpaired answers are desirable, or none is.
    """
    columns = work.recipe.columns
    names = field_names(columns)
    training = work.training_stream(names)
    _check_columns(training.stream.schema, columns, tokenizer)
    if columns.kind == "unpaired":
        _require_both(work.train_sources, columns.label)
    test = None
    if work.test_sources:
        test = _check_rows(work.test_stream(names))
    return _check_rows(training), test


def leave_equal_pairs_out(trainer: Any, recipe: DpoRecipe | RewardRecipe) -> None:
    """Let a trainer read the pairs that teach something, where their difference alone does.

    Args:
        trainer: Its training rows have become tokens.
        recipe: Of the run.
    """
    if not compares_only(recipe):
        return
    most = recipe.trainer.max_length

    def teaches(row: dict[str, Any]) -> bool:
        asked = row.get("prompt_ids", [])
        return differs(asked + row["chosen_ids"], asked + row["rejected_ids"], most)

    trainer.train_dataset = trainer.train_dataset.filter(teaches)


def own_arguments(arguments: TrainerArguments) -> dict[str, Any]:
    """The settings that a phase adds to every trainer's, as its trainer's arguments."""
    from sealtrain.recipe.trainers import TrainerArguments

    chosen = {
        name: getattr(arguments, name)
        for name in type(arguments).model_fields
        if name not in TrainerArguments.model_fields
    }
    return {
        name: list(value) if isinstance(value, tuple) else value for name, value in chosen.items()
    }


def batches(trainer: Any) -> Iterator[tuple[int, dict[str, Any]]]:
    """The trainer's prepared test rows as its own collator batches them.

    Yields the number of rows and the batch, with its tensors on the model's device.
    """
    rows = iter(trainer.eval_dataset)
    while chunk := list(islice(rows, trainer.args.per_device_eval_batch_size)):
        batch = trainer.data_collator(chunk)
        yield (
            len(chunk),
            {
                name: value.to(trainer.args.device) if hasattr(value, "to") else value
                for name, value in batch.items()
            },
        )


def _check_columns(schema: pa.Schema, columns: Columns, tokenizer: PreTrainedTokenizerBase) -> None:
    import pyarrow as pa

    kinds = set()
    for field in schema:
        column = getattr(columns, field.name)
        if field.name == _LABEL:
            if not pa.types.is_boolean(field.type):
                raise SchemaMismatch(
                    f"column {column} is not a boolean, so no answer is marked as desirable",
                    check="columns",
                    column=column,
                    got=field.type,
                    expected="true or false",
                )
            continue
        if field.name == TOOLS and holds_tools(field.type):
            continue
        kind = kind_of(field.type)
        if kind is None:
            raise SchemaMismatch(
                f"column {column} holds neither text nor messages",
                check="columns",
                column=column,
                got=field.type,
                expected=EITHER,
            )
        kinds.add(kind)
    if len(kinds) > 1:
        raise SchemaMismatch(
            "the columns mix text and messages", check="columns", expected="one of the two"
        )
    tools = getattr(columns, TOOLS)
    if tools is not None and kinds != {"messages"}:
        raise SchemaMismatch(
            f"column {tools} has tools, and the others are plain text",
            check="columns",
            column=tools,
            got="text",
            expected="messages",
        )
    check_tokenizer(tokenizer, conversations="messages" in kinds)


def _require_both(sources: Sequence[Source], label: str) -> None:
    """Read labels until both kinds were seen: without a contrast nothing is learned."""
    seen: set[bool] = set()
    for source in sources:
        for number in range(len(source.dataset.batch_rows)):
            batch = source.rename(source.dataset.batch(number))
            seen |= set(batch.column(label).unique().to_pylist())
            if {True, False} <= seen:
                return
    if sources:
        raise one_kind_only(label)


def _check_rows(positioned: Positioned) -> datasets.IterableDataset:
    return as_iterable_dataset(positioned).map(_check_record)


def _check_record(record: dict[str, Any]) -> dict[str, Any]:
    for name, value in record.items():
        if name == TOOLS:
            check_tools(value)
        elif isinstance(value, list):
            check_conversation(name, value)
        elif value == "" and name != "prompt":
            raise RecordInvalid(f"a record's {name} is empty", check="columns")
    return record
