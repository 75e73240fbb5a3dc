"""``classify``: a classifier on text, on images or on columns of numbers."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sealtrain.recipe.audit import Audit
from sealtrain.recipe.columns import Columns, Labelled
from sealtrain.recipe.fields import ColumnName, by_key, describe_keyword
from sealtrain.recipe.images import Augmentation, Preparation
from sealtrain.recipe.missing import MissingValues, find_gap_rule_fault, missing_field
from sealtrain.recipe.modelspec import ModelFromConfig
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.trainers import Length, TrainerArguments


class ClassifyTextColumns(Columns):
    """A text and its label."""

    kind: ClassVar[Literal["text"]] = "text"
    text: ColumnName
    label: ColumnName


class ClassifyImageColumns(Columns):
    """An encoded image (JPEG, PNG or WebP) and its label."""

    kind: ClassVar[Literal["image"]] = "image"
    image: ColumnName
    label: ColumnName


class ClassifyTabularColumns(Columns):
    """Numbers and their label."""

    kind: ClassVar[Literal["tabular"]] = "tabular"
    features: Annotated[tuple[ColumnName, ...], describe_keyword("uniqueItems", True)] = Field(
        min_length=1, max_length=4096
    )
    label: ColumnName

    @model_validator(mode="after")
    def _features_once(self) -> Self:
        if len({*self.features, self.label}) != len(self.features) + 1:
            raise ValueError("features and label name a column twice")
        return self


ClassifyColumns = Annotated[
    Annotated[ClassifyTextColumns, Tag("text")]
    | Annotated[ClassifyImageColumns, Tag("image")]
    | Annotated[ClassifyTabularColumns, Tag("tabular")],
    Discriminator(by_key("text", features="tabular", image="image")),
]


class ClassifyArguments(TrainerArguments):
    """``transformers.TrainingArguments`` of a classifier."""

    max_length: Length = Field(default=512, description="Tokens of text read from one record.")


class ClassifyRecipe(Labelled, PhaseRecipe):
    """Training of a classifier on text, on images or on columns of numbers."""

    phase: Literal["classify"]
    columns: ClassifyColumns
    trainer: ClassifyArguments
    preparation: Preparation | None = Field(
        default=None, description="Of images; the model folder's own when null."
    )
    augmentation: Augmentation | None = None
    calibration_share: float = Field(
        default=0.0,
        ge=0,
        le=0.5,
        description="Share of the test records that sets the temperature of the probabilities; "
        "the others are measured.",
    )

    audit: Audit | None = Field(
        default=None, description="Try what the model gives away of single records."
    )
    missing: MissingValues = missing_field()

    @model_validator(mode="after")
    def _gaps_can_be_filled(self) -> Self:
        problem = find_gap_rule_fault(self)
        if problem is not None:
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _model_reads_the_columns(self) -> Self:
        if self.columns.kind == "image":
            self._model_reads_images()
        elif self.columns.kind == "tabular":
            if not isinstance(self.model, ModelFromConfig) or self.model.tokenizer is not None:
                raise ValueError("features need model.config without a tokenizer")
            if self.peft is not None:
                raise ValueError("features need peft: null; small models train whole")
        return self

    @property
    def reads_text(self) -> bool:
        """Neither numbers nor images become tokens."""
        return self.columns.kind == "text"

    @model_validator(mode="after")
    def _changes_fit_the_columns(self) -> Self:
        if self.preparation is not None and self.columns.kind != "image":
            raise ValueError("preparation belongs to images")
        if self.augmentation is not None and self.augmentation.kind != self.columns.kind:
            raise ValueError(f"augmentation of {self.augmentation.kind}s needs such columns")
        if self.augmentation is not None and self.privacy.dp != "none":
            raise ValueError("augmentation and differential privacy do not go together")
        return self

    def _model_reads_images(self) -> None:
        if self.model.tokenizer is not None:
            raise ValueError("images need a model without a tokenizer; write tokenizer: null")
        if isinstance(self.model, ModelFromConfig) and self.preparation is None:
            raise ValueError("images and model.config need preparation: {size: …}")
        if self.peft is not None and (self.peft.method != "lora" or self.peft.quantization):
            raise ValueError("images train whole, or with peft.method lora in full precision")
