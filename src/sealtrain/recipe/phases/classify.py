"""``classify``: a classifier on text or on columns of numbers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sealtrain.recipe.columns import Columns
from sealtrain.recipe.fields import ColumnName, Text, by_key
from sealtrain.recipe.modelspec import ModelFromConfig
from sealtrain.recipe.recipe import Recipe
from sealtrain.recipe.trainers import Length, TrainerArguments

__all__ = [
    "ClassifyArguments",
    "ClassifyRecipe",
    "ClassifyTabularColumns",
    "ClassifyTextColumns",
]


class ClassifyTextColumns(Columns):
    """A text and its label."""

    kind: ClassVar[Literal["text"]] = "text"
    text: ColumnName
    label: ColumnName


class ClassifyTabularColumns(Columns):
    """Numbers and their label."""

    kind: ClassVar[Literal["tabular"]] = "tabular"
    features: tuple[ColumnName, ...] = Field(min_length=1, max_length=4096)
    label: ColumnName

    @model_validator(mode="after")
    def _features_once(self) -> Self:
        if len({*self.features, self.label}) != len(self.features) + 1:
            raise ValueError("features and label name a column twice")
        return self


ClassifyColumns = Annotated[
    Annotated[ClassifyTextColumns, Tag("text")] | Annotated[ClassifyTabularColumns, Tag("tabular")],
    Discriminator(by_key("text", features="tabular")),
]


class ClassifyArguments(TrainerArguments):
    """``transformers.TrainingArguments`` of a classifier."""

    max_length: Length = Field(default=512, description="Tokens of text read from one record.")


class ClassifyRecipe(Recipe):
    """Training of a classifier on text or on columns of numbers."""

    phase: Literal["classify"]
    columns: ClassifyColumns
    trainer: ClassifyArguments
    labels: tuple[Text, ...] | None = Field(
        default=None, description="Names in order; null when records carry 0 … num_labels - 1."
    )
    num_labels: int = Field(
        default_factory=lambda known: len(known.get("labels") or ()),
        validate_default=True,
        ge=2,
        le=65_536,
        description="Counted from labels when left out.",
    )

    @model_validator(mode="after")
    def _labels_agree(self) -> Self:
        if self.labels is not None:
            if len(set(self.labels)) != len(self.labels):
                raise ValueError("labels name one twice")
            if len(self.labels) != self.num_labels:
                raise ValueError("num_labels differs from the number of labels")
        return self

    @model_validator(mode="after")
    def _model_reads_the_columns(self) -> Self:
        if self.columns.kind == "tabular":
            if not isinstance(self.model, ModelFromConfig) or self.model.tokenizer is not None:
                raise ValueError("features need model.config without a tokenizer")
            if self.peft is not None:
                raise ValueError("features need peft: null; small models train whole")
        elif self.model.tokenizer is None:
            raise ValueError("model needs a tokenizer: {kind: bytes} or {path: …}")
        return self
