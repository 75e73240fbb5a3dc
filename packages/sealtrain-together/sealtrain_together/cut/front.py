"""An owner's side of a cut model: records in, activations out, on its own machine.

    reading = Reading.of(recipe, base_dir)
    rows = reading.rows(records)

Records and tokens stay here. The front is frozen and has no dropout, so a record's activations are
made once, whatever the number of epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from sealtrain.sealing.errors import RecordInvalid
from sealtrain.training.inputs.classifier import text_encoder
from sealtrain.training.inputs.learnable import judge_for
from sealtrain.training.models.base import build_causal_model, build_model, build_tokenizer
from sealtrain_together.cut.activations import Expected, Form, Row, rows_of
from sealtrain_together.cut.cut import Front

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from sealtrain.recipe.schema import PhaseRecipe
    from sealtrain.training.inputs.learnable import Judge, Part

Encode = Callable[[list[dict[str, Any]]], dict[str, torch.Tensor]]
"""Records to ``input_ids`` and ``attention_mask``, int64 (records, tokens), and ``labels``."""

DEFAULT_MAX_TOKENS: Final = 1024
_UNLEARNED: Final = -100


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordEncoding:
    """How records become activations.

    Attributes:
        front: The front of the model.
        encode: Records to tokens and labels.
        judge: What records leave to learn; it takes them with the names of their columns.
        form: How activations travel.
        batch: Records that the front reads at a time.
    """

    front: Front
    encode: Encode
    judge: Judge
    form: Form
    batch: int = 16

    @classmethod
    def of(cls, recipe: PhaseRecipe, base_dir: Path) -> RecordEncoding:
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
            tokens = _Tokens(recipe, tokenizer)
            encode: Encode = tokens.encode
            judge: Judge = tokens.judge
        else:
            model = build_model(
                recipe, base_dir, "AutoModelForSequenceClassification", num_labels=2
            )
            encode = text_encoder(recipe, tokenizer)
            judge = _text_judge(recipe, tokenizer)
        front = Front(model, settings.layers)
        return cls(front=front, encode=encode, judge=judge, form=settings.wire)

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


def expect_messages(recipe: PhaseRecipe, *, width: int, vocabulary: int) -> Expected:
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


class _Tokens:
    """Reads texts, or prompts and completions, of which the completion is learned.

    A record ends with the end token, and is cut to ``trainer.max_length`` tokens at its end.

    Args:
        recipe: Phase ``sft``.
        tokenizer: Its tokenizer.
    """

    def __init__(self, recipe: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        self._columns, self._tokenizer = recipe.columns, tokenizer
        self._longest = recipe.trainer.max_length or DEFAULT_MAX_TOKENS
        self._paired = recipe.columns.kind == "prompt-completion"
        self._learned_before = self._paired and recipe.trainer.completion_only_loss is False

    def encode(self, records: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """As ``Encode``."""
        read = [self._read(record) for record in records]
        rows = [ids[: self._longest] for ids, _start in read]
        shape = len(rows), max(map(len, rows))
        ids = torch.full(shape, int(self._tokenizer.pad_token_id or 0))
        mask, labels = torch.zeros_like(ids), torch.full_like(ids, _UNLEARNED)
        for number, (row, (_ids, start)) in enumerate(zip(rows, read, strict=True)):
            ids[number, : len(row)] = torch.tensor(row)
            mask[number, : len(row)] = 1
            labels[number, start : len(row)] = ids[number, start : len(row)]
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}

    def judge(self, records: Sequence[Mapping[str, Any]]) -> list[Part]:
        """As ``Judge``: whether a token behind the first is learned before the cut."""
        found: list[Part] = []
        for record in records:
            ids, start = self._read(record)
            whole = len(ids) <= self._longest
            learns = max(start, 1) < min(len(ids), self._longest)
            found.append("empty" if not learns else ("whole" if whole else "truncated"))
        return found

    def _read(self, record: Mapping[str, Any]) -> tuple[list[int], int]:
        """All tokens of a record, and from which one on they are learned."""
        columns, paired = self._columns, self._paired
        before = record[columns.prompt] if paired else ""
        text = record[columns.completion] if paired else record[columns.text]
        if not isinstance(before, str) or not isinstance(text, str):
            raise RecordInvalid("a record has no text in its columns", check="columns")
        end: Any = self._tokenizer.eos_token_id
        start = len(self._ids(before)) if paired and not self._learned_before else 0
        return [*self._ids(before + text), end], start

    def _ids(self, text: str) -> list[int]:
        found: list[int] = self._tokenizer(text, add_special_tokens=not self._paired)["input_ids"]
        return found


def _text_judge(recipe: Any, tokenizer: PreTrainedTokenizerBase) -> Judge:
    """The judge of phase ``classify``, of records with the names of their columns."""
    judge, column = judge_for(recipe, tokenizer), recipe.columns.text

    def judge_records(records: Sequence[Mapping[str, Any]]) -> list[Part]:
        if any(not isinstance(record[column], str) for record in records):
            raise RecordInvalid("a record has no text", check="columns", column=column)
        return judge([{"text": record[column]} for record in records])

    return judge_records
