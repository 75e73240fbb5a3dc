"""Rows of a TRL trainer without those that leave nothing to learn, packed or not.

TRL leaves out rows whose every label is masked, where ``max_length`` cuts and nothing is packed.
Three kinds of rows remain, of which a batch alone has the loss 0 / 0: a row that learns its first
token only, which nothing before it predicts; a row of any length with ``max_length: null``; and a
packed row of prompts. Here all are left out, by the function that also counts them
(``training.inputs.learnable``).
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, Any

from sealtrain.training.data.conversations import field_names
from sealtrain.training.inputs.learnable import learns, make_supervised_rows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.schema import PhaseRecipe


def with_learnable_rows(trainer: type[Any]) -> type[Any]:
    """A subclass of TRL's ``SFTTrainer`` whose rows all have something to learn."""

    class LearnableRowsTrainer(trainer):  # type: ignore[misc]  # a class chosen at run time
        """Leaves out rows after they became tokens, and before and after they are packed."""

        def _prepare_dataset(
            self,
            dataset: Any,
            processing_class: Any,
            args: Any,
            packing: bool,
            formatting_func: Any,
            dataset_name: str,
        ) -> Any:
            unpacked = copy(args)
            if packing:
                unpacked.max_length = None
            rows = super()._prepare_dataset(
                dataset, processing_class, unpacked, False, formatting_func, dataset_name
            )
            if not packing:
                return rows.filter(_has_lesson)
            from trl.data_utils import pack_dataset

            cut = args.max_length if args.packing_strategy == "bfd" else None
            rows = rows.filter(lambda row: learns(row["labels"][:cut]))
            rows = rows.select_columns(["input_ids", "labels"])
            return pack_dataset(rows, args.max_length, args.packing_strategy).filter(_has_lesson)

    return LearnableRowsTrainer


def with_judged_rows(trainer: type[Any], recipe: PhaseRecipe) -> type[Any]:
    """A subclass of Unsloth's trainer that is given tokens and makes none.

    Unsloth tokenizes every record by what it finds in the first one: whether that begins with the
    token that begins a text, and whether it is a conversation. So what a record teaches would
    depend on another record. Here records become tokens by the function that also counts them.

    Args:
        trainer: Takes ``input_ids`` and ``labels``.
        recipe: Of phase ``sft``, without packing.
    """

    class JudgedRowsTrainer(trainer):  # type: ignore[misc]  # a class chosen at run time
        """Takes rows of ``judge_rows``."""

        def _prepare_dataset(
            self,
            dataset: Any,
            processing_class: Any,
            args: Any,
            packing: bool,
            formatting_func: Any,
            dataset_name: str,
        ) -> Any:
            return judge_rows(dataset, recipe, processing_class)

    return JudgedRowsTrainer


def judge_rows(dataset: Any, recipe: PhaseRecipe, tokenizer: PreTrainedTokenizerBase) -> Any:
    """Rows of a dataset's records that have something to learn, by each record's own tokens.

    Args:
        dataset: Has ``map`` and ``filter``; its columns are the recipe's fields.
        recipe: Of phase ``sft``, without packing.
        tokenizer: The recipe's.
    """
    make = make_supervised_rows(recipe, tokenizer)
    read = list(field_names(recipe.columns).values())
    return dataset.map(lambda record: make([record])[0], remove_columns=read).filter(_has_lesson)


def _has_lesson(row: dict[str, Any]) -> bool:
    return learns(row["labels"], row.get("seq_lengths"))
