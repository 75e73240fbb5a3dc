"""The recipe: everything a run does, in one document that owners read and approve.

A recipe has a common part and a part for its phase. Unknown fields are refused with a near name;
settings that would carry data out (trackers, hubs, telemetry, remote code) do not exist.
Format: spec/recipe.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, TypeAdapter, model_validator

from sealtrain.base.canonical import JsonValue
from sealtrain.base.files import read_bounded
from sealtrain.base.models import OwnerName, StrictModel, load_model
from sealtrain.errors import LimitExceeded, RecipeInvalid
from sealtrain.recipe.fields import ColumnName, RecipePath, Text, by_key
from sealtrain.recipe.modelspec import (
    BytesTokenizer,
    FolderTokenizer,
    Model,
    ModelFromConfig,
    ModelFromFolder,
)
from sealtrain.recipe.terms import Dataset, Hardware, ModelRelease, Privacy, ReleasePolicy
from sealtrain.recipe.trainers import ClassifyArguments, Lora, SftArguments, TrainerArguments
from sealtrain.recipe.yamltext import MAX_YAML_BYTES, parse_yaml

__all__ = [
    "AnyRecipe",
    "BytesTokenizer",
    "ClassifyArguments",
    "ClassifyRecipe",
    "ClassifyTabularColumns",
    "ClassifyTextColumns",
    "Dataset",
    "FolderTokenizer",
    "Hardware",
    "Lora",
    "MessagesColumns",
    "ModelFromConfig",
    "ModelFromFolder",
    "ModelRelease",
    "Privacy",
    "PromptCompletionColumns",
    "Recipe",
    "ReleasePolicy",
    "SftArguments",
    "SftRecipe",
    "TextColumns",
    "TrainerArguments",
    "json_schema",
    "load_recipe",
    "parse_recipe",
]


class TextColumns(StrictModel):
    """Plain text to continue."""

    kind: ClassVar[Literal["text"]] = "text"
    text: ColumnName

    @property
    def names(self) -> tuple[str, ...]:
        """Columns every record must have."""
        return (self.text,)


class PromptCompletionColumns(StrictModel):
    """A prompt and what the model should answer; only the answer is learned."""

    kind: ClassVar[Literal["prompt-completion"]] = "prompt-completion"
    prompt: ColumnName
    completion: ColumnName

    @property
    def names(self) -> tuple[str, ...]:
        """Columns every record must have."""
        return (self.prompt, self.completion)


class MessagesColumns(StrictModel):
    """Conversations: a list of {role, content}."""

    kind: ClassVar[Literal["messages"]] = "messages"
    messages: ColumnName

    @property
    def names(self) -> tuple[str, ...]:
        """Columns every record must have."""
        return (self.messages,)


class ClassifyTextColumns(StrictModel):
    """A text and its label."""

    kind: ClassVar[Literal["text"]] = "text"
    text: ColumnName
    label: ColumnName

    @property
    def names(self) -> tuple[str, ...]:
        """Columns every record must have."""
        return (self.text, self.label)


class ClassifyTabularColumns(StrictModel):
    """Numbers and their label."""

    kind: ClassVar[Literal["tabular"]] = "tabular"
    features: tuple[ColumnName, ...] = Field(min_length=1, max_length=4096)
    label: ColumnName

    @model_validator(mode="after")
    def _features_once(self) -> Self:
        if len({*self.features, self.label}) != len(self.features) + 1:
            raise ValueError("features and label name a column twice")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        """Columns every record must have."""
        return (*self.features, self.label)


SftColumns = Annotated[
    Annotated[TextColumns, Tag("text")]
    | Annotated[PromptCompletionColumns, Tag("prompt-completion")]
    | Annotated[MessagesColumns, Tag("messages")],
    Discriminator(
        by_key(
            "text",
            text="text",
            messages="messages",
            prompt="prompt-completion",
            completion="prompt-completion",
        )
    ),
]
ClassifyColumns = Annotated[
    Annotated[ClassifyTextColumns, Tag("text")] | Annotated[ClassifyTabularColumns, Tag("tabular")],
    Discriminator(by_key("text", features="tabular")),
]


class Recipe(StrictModel):
    """What every phase has. ``phase``, ``columns`` and ``trainer`` are narrowed by each phase."""

    version: Literal[1]
    name: OwnerName
    description: Text = ""
    phase: Literal["sft", "classify"]
    model: Model
    datasets: tuple[Dataset, ...] = Field(min_length=1, max_length=256)
    columns: (
        TextColumns
        | PromptCompletionColumns
        | MessagesColumns
        | ClassifyTextColumns
        | ClassifyTabularColumns
    )
    trainer: TrainerArguments
    peft: Lora | None = None
    script: RecipePath | None = Field(
        default=None, description="Your own training script, run in the guest instead of ours."
    )
    privacy: Privacy
    release_policy: ReleasePolicy
    hardware: Hardware

    @model_validator(mode="after")
    def _datasets_differ_and_train(self) -> Self:
        pairs = {(dataset.owner, dataset.name) for dataset in self.datasets}
        if len(pairs) != len(self.datasets):
            raise ValueError("datasets name one twice (owner and name)")
        if all(dataset.role != "train" for dataset in self.datasets):
            raise ValueError("datasets need at least one with role train")
        return self

    @property
    def owners(self) -> tuple[str, ...]:
        """Names of the owners whose data the recipe reads, sorted."""
        return tuple(sorted({dataset.owner for dataset in self.datasets}))


class SftRecipe(Recipe):
    """Supervised fine-tuning of a causal language model."""

    phase: Literal["sft"]
    columns: SftColumns
    trainer: SftArguments

    @model_validator(mode="after")
    def _text_needs_a_tokenizer(self) -> Self:
        if self.model.tokenizer is None:
            raise ValueError("model needs a tokenizer: {kind: bytes} or {path: …}")
        return self


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


AnyRecipe = Annotated[SftRecipe | ClassifyRecipe, Field(discriminator="phase")]
"""A recipe of any phase."""

_PHASES: dict[str, type[Recipe]] = {"sft": SftRecipe, "classify": ClassifyRecipe}


def parse_recipe(data: JsonValue) -> Recipe:
    """Validate a parsed recipe.

    Raises:
        RecipeInvalid: Names the first field that breaks the schema.
    """
    if not isinstance(data, dict):
        raise RecipeInvalid("recipe is not a mapping", check="recipe")
    phase = data.get("phase")
    if not isinstance(phase, str) or phase not in _PHASES:
        raise RecipeInvalid(
            "recipe names no known phase",
            check="recipe",
            got="none" if phase is None else repr(phase)[:40],
            expected=" or ".join(sorted(_PHASES)),
        )
    return load_model(_PHASES[phase], data, RecipeInvalid, "recipe")


def load_recipe(path: Path) -> Recipe:
    """Read and validate ``recipe.yaml``.

    Raises:
        RecipeInvalid: Not the YAML of yamltext.py, or it breaks the schema.
        DataInvalid: No such file.
    """
    try:
        data = read_bounded(path, MAX_YAML_BYTES)
    except LimitExceeded as error:
        raise RecipeInvalid(f"recipe is too long: {path}", expected=error.expected) from None
    return parse_recipe(parse_yaml(data, error=RecipeInvalid, what="recipe"))


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a recipe as written."""
    schema = TypeAdapter(AnyRecipe).json_schema(mode="validation")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "sealtrain recipe, version 1",
        **schema,
    }
