"""``vlm``: a language model that reads images, from pairs of image and text."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sealtrain.recipe.columns import Columns
from sealtrain.recipe.fields import ColumnName, by_key, describe_keyword
from sealtrain.recipe.images import AnyPreparation, ImageAugmentation
from sealtrain.recipe.modelspec import ModelFromConfig
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.trainers import Length, TrainerArguments

ARCHITECTURES: Final = {
    "idefics3": "square",
    "llava": "square",
    "mllama": "tiles",
    "qwen2_5_vl": "grid",
    "qwen2_vl": "grid",
    "qwen3_vl": "grid",
}
"""Values of ``model_type`` that train here, and the form in which each reads images."""
_WRITTEN: Final = {
    "square": "{size: …}",
    "tiles": "{size: …, max_image_tiles: …}",
    "grid": "{min_area: …, max_area: …}",
}

Part = Literal["vision", "projector", "language"]


class ImagePromptColumns(Columns):
    """An encoded image, a prompt about it and the answer; only the answer is learned."""

    kind: ClassVar[Literal["prompt-completion"]] = "prompt-completion"
    image: ColumnName
    prompt: ColumnName
    completion: ColumnName


class ImageTextColumns(Columns):
    """An encoded image and the text that belongs to it."""

    kind: ClassVar[Literal["text"]] = "text"
    image: ColumnName
    text: ColumnName


VlmColumns = Annotated[
    Annotated[ImagePromptColumns, Tag("prompt-completion")]
    | Annotated[ImageTextColumns, Tag("text")],
    Discriminator(by_key("prompt-completion", text="text")),
]


class VlmArguments(TrainerArguments):
    """``transformers.TrainingArguments`` of a model that reads images."""

    max_length: Length = Field(
        default=1024, description="Tokens of a record, those of its image included; text is cut."
    )

    @model_validator(mode="after")
    def _every_setting_counts(self) -> Self:
        if self.neftune_noise_alpha is not None:
            raise ValueError("neftune_noise_alpha would disturb images; leave it out")
        return self


class VlmRecipe(PhaseRecipe):
    """Training of a projector between a vision tower and a language model, and of these two."""

    phase: Literal["vlm"]
    columns: VlmColumns
    trainer: VlmArguments
    preparation: AnyPreparation | None = Field(
        default=None, description="Of images; the model folder's own when null."
    )
    augmentation: ImageAugmentation | None = None
    parts: Annotated[tuple[Part, ...], describe_keyword("uniqueItems", True)] = Field(
        default=("projector", "language"),
        min_length=1,
        description="What trains. With peft the language model and the vision tower train by "
        "adapters, the projector whole.",
    )

    @model_validator(mode="after")
    def _parts_once(self) -> Self:
        if len(set(self.parts)) != len(self.parts):
            raise ValueError("parts name one twice")
        return self

    @model_validator(mode="after")
    def _adapter_has_a_part(self) -> Self:
        if self.peft is None:
            return self
        if self.peft.method != "lora" or self.peft.quantization is not None:
            raise ValueError("vlm trains whole, or with peft.method lora in full precision")
        if not {"language", "vision"} & set(self.parts):
            raise ValueError("peft needs language or vision among the parts")
        if self.peft.modules_to_save is not None:
            raise ValueError("parts say what trains whole: leave modules_to_save out")
        return self

    @model_validator(mode="after")
    def _model_reads_images_and_text(self) -> Self:
        if isinstance(self.model, ModelFromConfig):
            form = ARCHITECTURES.get(str(self.model.config["model_type"]))
            if form is None:
                raise ValueError(f"model_type is one of {', '.join(ARCHITECTURES)}")
            if self.preparation is None or self.preparation.kind != form:
                raise ValueError(f"model.config needs preparation: {_WRITTEN[form]}")
        return self

    @model_validator(mode="after")
    def _private_training_has_no_changes(self) -> Self:
        if self.privacy.dp != "none":
            raise ValueError("vlm has no differential privacy: write privacy: {dp: none}")
        return self
