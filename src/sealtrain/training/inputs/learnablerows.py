"""Rows of a TRL trainer without those that leave nothing to learn, packed or not.

TRL leaves out rows whose every label is masked, where ``max_length`` cuts and nothing is packed.
Three kinds of rows remain, of which a batch alone has the loss 0 / 0: a row that learns its first
token only, which nothing before it predicts; a row of any length with ``max_length: null``; and a
packed row of prompts. Here all are left out, by the function that also counts them
(``training.inputs.learnable``).
"""

from __future__ import annotations

from copy import copy
from typing import Any

from sealtrain.training.inputs.learnable import learns

__all__ = ["with_learnable_rows"]


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


def _has_lesson(row: dict[str, Any]) -> bool:
    return learns(row["labels"], row.get("seq_lengths"))
