"""``cpt``: continued pre-training of a causal language model on text or on tokens."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from sealtrain.recipe.columns import Columns
from sealtrain.recipe.fields import ColumnName, by_key
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.trainers import TrainerArguments


class CptTextColumns(Columns):
    """Documents, turned into tokens in the guest."""

    kind: ClassVar[Literal["text"]] = "text"
    text: ColumnName


class CptTokensColumns(Columns):
    """Lists of token numbers: what token shards hold, or documents that are tokens already."""

    kind: ClassVar[Literal["tokens"]] = "tokens"
    tokens: ColumnName


CptColumns = Annotated[
    Annotated[CptTextColumns, Tag("text")] | Annotated[CptTokensColumns, Tag("tokens")],
    Discriminator(by_key("text", tokens="tokens")),
]


class CptArguments(TrainerArguments):
    """``transformers.TrainingArguments`` of continued pre-training."""

    block_size: int = Field(
        default=1024, ge=2, le=4_194_304, description="Tokens of one row of a batch, all used."
    )
    append_eos: bool | None = Field(
        default=None,
        description="End every record with the tokenizer's end token; null: text does, tokens "
        "do not, since whoever made them did.",
    )
    token_digest: bool = Field(
        default=True,
        description="Write SHA-256 over the tokens trained on into the manifest. Whoever has all "
        "of them can recompute it, so it confirms a guess of very small data.",
    )


class CptRecipe(PhaseRecipe):
    """Continued pre-training of a causal language model."""

    phase: Literal["cpt"]
    columns: CptColumns
    trainer: CptArguments

    @property
    def appends_eos(self) -> bool:
        """Every record ends with the tokenizer's end token."""
        chosen = self.trainer.append_eos
        return self.columns.kind == "text" if chosen is None else chosen

    @property
    def reads_text(self) -> bool:
        """Text has to become tokens, and the end token has to be known."""
        return self.columns.kind == "text" or self.appends_eos
