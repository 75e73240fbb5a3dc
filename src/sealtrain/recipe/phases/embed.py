"""``embed``: an encoder that puts texts which belong together close to each other."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sealtrain.recipe.columns import Columns
from sealtrain.recipe.fields import ColumnName
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.trainers import Batch, Length, TrainerArguments


class EmbedColumns(Columns):
    """Two texts that belong together and, if given, one that looks alike but does not."""

    kind: ClassVar[Literal["pair"]] = "pair"
    anchor: ColumnName
    positive: ColumnName
    negative: ColumnName | None = None


class EmbedArguments(TrainerArguments):
    """Sentence Transformers' training arguments, and its ``MultipleNegativesRankingLoss``.

    All other positives of a batch, and all negatives, are what an anchor must tell its own from.
    """

    max_length: Length = Field(default=256, description="Tokens of text read from one column.")
    scale: float = Field(
        default=20.0, gt=0, le=1000, description="Factor of the similarity: 1 / temperature."
    )
    mini_batch_size: Batch | None = Field(
        default=None,
        description="Texts encoded at a time, so that large batches fit; all when null.",
    )
    matryoshka_dims: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] | None = Field(
        default=None,
        min_length=1,
        max_length=16,
        description="Lengths that an embedding may be cut to; each is trained.",
    )

    @model_validator(mode="after")
    def _every_setting_counts(self) -> Self:
        if self.label_smoothing_factor or self.neftune_noise_alpha is not None:
            raise ValueError("label_smoothing_factor and neftune_noise_alpha do nothing here")
        if self.per_device_train_batch_size < 2:
            raise ValueError("per_device_train_batch_size must be at least 2: the rest of a batch "
                             "is what an anchor is told from")  # fmt: skip
        return self


class EmbedRecipe(PhaseRecipe):
    """Contrastive training of a text encoder."""

    phase: Literal["embed"]
    columns: EmbedColumns
    trainer: EmbedArguments
    pooling: Literal["mean", "cls", "max", "lasttoken"] | None = Field(
        default=None, description="From tokens to a text; the folder's own when null, else mean."
    )
    normalize: bool | None = Field(
        default=None, description="Embeddings of length 1; the folder's own when null, else true."
    )

    @model_validator(mode="after")
    def _encoder_reads_text(self) -> Self:
        if self.peft is not None and not self.peft.changes_weights:
            raise ValueError(f"{self.peft.method} adds tokens that a text does not have")
        return self
