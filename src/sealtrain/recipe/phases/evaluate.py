"""``evaluate``: measure a model on sealed data that its makers never see; no model leaves."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sealtrain.recipe.columns import Labelled, label_count
from sealtrain.recipe.fields import by_key
from sealtrain.recipe.missing import MissingValues, find_gap_rule_fault, missing_field
from sealtrain.recipe.phases.classify import ClassifyTabularColumns, ClassifyTextColumns
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.trainers import Length, TrainerArguments

EvaluateColumns = Annotated[
    Annotated[ClassifyTextColumns, Tag("text")] | Annotated[ClassifyTabularColumns, Tag("tabular")],
    Discriminator(by_key("text", features="tabular")),
]


class EvaluateArguments(TrainerArguments):
    """What remains of a trainer's settings when nothing is trained."""

    max_steps: Literal[0] = 0
    max_length: Length = Field(default=512, description="Tokens of text read from one record.")

    @model_validator(mode="after")
    def _ends(self) -> Self:
        """In place of the training phases' rule: nothing is trained."""
        if self.num_train_epochs is not None:
            raise ValueError("an evaluation trains nothing: leave num_train_epochs out")
        return self


class EvaluateRecipe(Labelled, PhaseRecipe):
    """Evaluation of a classifier in a clean room."""

    phase: Literal["evaluate"]
    columns: EvaluateColumns
    trainer: EvaluateArguments = EvaluateArguments()
    num_labels: int = label_count(256)
    min_records: int = Field(
        default=20,
        ge=2,
        le=1_000_000,
        description="Without noise, no metric leaves unless each label that occurs has as many.",
    )
    missing: MissingValues = missing_field()

    @model_validator(mode="after")
    def _gaps_can_be_filled(self) -> Self:
        problem = find_gap_rule_fault(self)
        if problem is not None:
            raise ValueError(problem)
        return self

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
    def _a_trained_model_is_measured(self) -> Self:
        if self.model.kind == "config":
            raise ValueError("an evaluation needs model.path or model.sealed: a trained model")
        if not self.reads_text and self.model.tokenizer is not None:
            raise ValueError("text needs a tokenizer; features need tokenizer: null")
        if self.peft is not None or self.scripts:
            raise ValueError("an evaluation has neither peft nor scripts")
        return self

    @property
    def exports_model(self) -> bool:
        """Always false: metrics leave, the model does not."""
        return False

    @property
    def reads_text(self) -> bool:
        """Numbers do not become tokens."""
        return self.columns.kind == "text"
