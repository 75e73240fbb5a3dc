"""An owner's side of a cut model: records in, activations out, on its own machine.

    reading = Reading.of(recipe, base_dir)
    rows = reading.rows(records)

Records and tokens stay here. The front is frozen and has no dropout, so a record's activations are
made once, whatever the number of epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from sealtrain.errors import RecordInvalid
from sealtrain.training.inputs.classifier import text_encoder
from sealtrain.training.models.base import build_causal_model, build_model, build_tokenizer
from sealtrain_collab.cut.activations import Expected, Form, Row, rows_of
from sealtrain_collab.cut.cut import Front

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.schema import Recipe

__all__ = ["DEFAULT_MAX_TOKENS", "Encode", "Reading", "expected_of", "token_encoder"]

Encode = Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]
"""Records to ``input_ids`` and ``attention_mask``, int64 (records, tokens), and ``labels``."""

DEFAULT_MAX_TOKENS: Final = 1024
_UNLEARNED: Final = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How records become activations.

    Attributes:
        front: The front of the model.
        encode: Records to tokens and labels.
        form: How activations travel.
        batch: Records that the front reads at a time.
    """

    front: Front
    encode: Encode
    form: Form
    batch: int = 16

    @classmethod
    def of(cls, recipe: Recipe, base_dir: Path) -> Reading:
        """As a recipe of kind ``cut`` says.

        Args:
            recipe: Phase ``classify`` of text, or ``sft``.
            base_dir: Folder that the recipe's paths start from.

        Raises:
            ModelInvalid: The model cannot be built, or not be cut there.
        """
        settings: Any = recipe.collaboration
        tokenizer = build_tokenizer(recipe, base_dir)
        if recipe.phase == "sft":
            model = build_causal_model(recipe, base_dir, tokenizer)
            encode: Encode = token_encoder(recipe, tokenizer)
        else:
            model = build_model(
                recipe, base_dir, "AutoModelForSequenceClassification", num_labels=2
            )
            encode = text_encoder(recipe, tokenizer)
        return cls(front=Front(model, settings.layers), encode=encode, form=settings.wire)

    def rows(self, records: Sequence[dict[str, Any]]) -> list[Row]:
        """Activations and labels of records, in their order.

        Raises:
            RecordInvalid: A record is not as the recipe says.
        """
        rows: list[Row] = []
        for start in range(0, len(records), self.batch):
            encoded = self.encode(list(records[start : start + self.batch]))
            ids, mask = encoded["input_ids"], encoded["attention_mask"]
            rows += rows_of(self.front(ids, mask), mask, encoded["labels"], self.form)
        return rows


def expected_of(recipe: Recipe, *, width: int, vocabulary: int) -> Expected:
    """Expected content of a message of activations under a recipe.

    Args:
        recipe: Of kind ``cut``.
        width: Numbers of one token's activation.
        vocabulary: Tokens that the model knows.
    """
    settings: Any = recipe.collaboration
    trainer: Any = recipe.trainer
    per_token = recipe.phase == "sft"
    labels: Any = vocabulary if per_token else getattr(recipe, "num_labels", None)
    return Expected(
        form=settings.wire,
        width=width,
        max_tokens=trainer.max_length or DEFAULT_MAX_TOKENS,
        labels=labels,
        per_token=per_token,
    )


def token_encoder(recipe: Any, tokenizer: PreTrainedTokenizerBase) -> Encode:
    """Reads texts, or prompts and completions, of which the completion is learned.

    A record ends with the end token, and is cut to ``trainer.max_length`` tokens at its end.

    Args:
        recipe: Phase ``sft``.
        tokenizer: Its tokenizer.
    """
    columns, longest = recipe.columns, recipe.trainer.max_length or DEFAULT_MAX_TOKENS
    paired = columns.kind == "prompt-completion"
    learned_before = paired and recipe.trainer.completion_only_loss is False

    def tokens(text: str) -> list[int]:
        found: list[int] = tokenizer(text, add_special_tokens=not paired)["input_ids"]
        return found

    def encode(records: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        rows, starts = [], []
        for record in records:
            before = record[columns.prompt] if paired else ""
            text = record[columns.completion] if paired else record[columns.text]
            if not isinstance(before, str) or not isinstance(text, str):
                raise RecordInvalid("a record has no text in its columns", check="columns")
            rows.append([*tokens(before + text), tokenizer.eos_token_id][:longest])
            starts.append(len(tokens(before)) if paired and not learned_before else 0)
        shape = len(rows), max(map(len, rows))
        ids = torch.full(shape, int(tokenizer.pad_token_id or 0))
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, _UNLEARNED)
        for number, (row, start) in enumerate(zip(rows, starts, strict=True)):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
            labels[number, start : len(row)] = ids[number, start : len(row)]
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    return encode
