"""``evaluate``: measure a model on sealed data that its makers never see; no model comes out."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sealtrain.recipe.fields import Text, by_key
from sealtrain.recipe.phases.classify import ClassifyTabularColumns, ClassifyTextColumns
from sealtrain.recipe.recipe import Recipe
from sealtrain.recipe.trainers import Length, TrainerArguments

__all__ = ["EvaluateArguments", "EvaluateRecipe"]

EvaluateColumns = Annotated[
    Annotated[ClassifyTextColumns, Tag("text")] | Annotated[ClassifyTabularColumns, Tag("tabular")],
    Discriminator(by_key("text", features="tabular")),
]


class EvaluateArguments(TrainerArguments):
    """What remains of a trainer's settings when nothing is trained."""

    max_steps: Literal[0] = 0
    max_length: Length = Field(default=512, description="Tokens of text read from one record.")


class EvaluateRecipe(Recipe):
    """Evaluation of a classifier in a clean room."""

    phase: Literal["evaluate"]
    columns: EvaluateColumns
    trainer: EvaluateArguments = EvaluateArguments()
    labels: tuple[Text, ...] | None = Field(
        default=None, description="Names in order; null when records carry 0 … num_labels - 1."
    )
    num_labels: int = Field(
        default_factory=lambda known: len(known.get("labels") or ()),
        validate_default=True,
        ge=2,
        le=256,
        description="Counted from labels when left out.",
    )
    min_records: int = Field(
        default=20,
        ge=2,
        le=1_000_000,
        description="Without noise, no metric leaves unless each label that occurs has as many.",
    )

    @model_validator(mode="after")
    def _datasets_differ_and_train(self) -> Self:
        """In place of the training phases' rule: here all data is for testing."""
        pairs = {(dataset.owner, dataset.name) for dataset in self.datasets}
        if len(pairs) != len(self.datasets):
            raise ValueError("datasets name one twice (owner and name)")
        roles = {dataset.role for dataset in self.datasets}
        if "train" in roles or "test" not in roles:
            raise ValueError("datasets of an evaluation have role test, a sealed model role model")
        return self

    @model_validator(mode="after")
    def _labels_agree(self) -> Self:
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            raise ValueError("labels name one twice")
        if self.labels is not None and len(self.labels) != self.num_labels:
            raise ValueError("num_labels differs from the number of labels")
        return self

    @model_validator(mode="after")
    def _a_trained_model_is_measured(self) -> Self:
        if self.model.kind == "config":
            raise ValueError("an evaluation needs model.path or model.sealed: a trained model")
        if (self.columns.kind == "tabular") != (self.model.tokenizer is None):
            raise ValueError("text needs a tokenizer; features need tokenizer: null")
        if self.peft is not None or self.script is not None:
            raise ValueError("an evaluation has neither peft nor script")
        return self
