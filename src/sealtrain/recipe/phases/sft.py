"""``sft``: supervised fine-tuning of a causal language model."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sealtrain.recipe.audit import Audit
from sealtrain.recipe.columns import Columns, tools_field
from sealtrain.recipe.fields import ColumnName, Text, by_key
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.trainers import Length, TrainerArguments


class TextColumns(Columns):
    """Plain text to continue."""

    kind: ClassVar[Literal["text"]] = "text"
    text: ColumnName


class PromptCompletionColumns(Columns):
    """A prompt and what the model should answer; only the answer is learned."""

    kind: ClassVar[Literal["prompt-completion"]] = "prompt-completion"
    prompt: ColumnName
    completion: ColumnName


class MessagesColumns(Columns):
    """Conversations: a list of {role, content}, and the tools that the assistant may call."""

    kind: ClassVar[Literal["messages"]] = "messages"
    messages: ColumnName
    tools: ColumnName | None = tools_field()


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


class SftArguments(TrainerArguments):
    """``trl.SFTConfig``."""

    max_length: Length | None = 1024
    truncation_mode: Literal["keep_start", "keep_end"] = "keep_start"
    packing: bool = False
    packing_strategy: Literal["bfd", "bfd_split", "wrapped"] = Field(
        default="bfd", description="With wrapped, records of one row see each other."
    )
    padding_free: bool = False
    pad_to_multiple_of: int | None = Field(default=None, ge=1, le=65_536)
    completion_only_loss: bool | None = None
    assistant_only_loss: bool = False
    loss_type: Literal["nll", "dft"] = "nll"
    eos_token: Text | None = None
    pad_token: Text | None = None

    @model_validator(mode="after")
    def _padding_free_needs_packing_or_no_cut(self) -> Self:
        if self.padding_free and not self.packing and self.max_length is not None:
            raise ValueError("padding_free without packing needs max_length: null")
        return self


class SftRecipe(PhaseRecipe):
    """Supervised fine-tuning of a causal language model."""

    phase: Literal["sft"]
    columns: SftColumns
    trainer: SftArguments
    audit: Audit | None = Field(
        default=None, description="Try what the model gives away of single records."
    )

    @model_validator(mode="after")
    def _losses_have_their_parts(self) -> Self:
        if self.trainer.assistant_only_loss and self.columns.kind != "messages":
            raise ValueError("assistant_only_loss needs columns: {messages: …}")
        if getattr(self.columns, "tools", None) and self.backend.name == "axolotl":
            raise ValueError("columns.tools is not rendered by backend axolotl: take backend trl")
        if self.trainer.completion_only_loss and self.columns.kind == "text":
            raise ValueError("completion_only_loss needs columns: {prompt: …, completion: …}")
        return self

    @model_validator(mode="after")
    def _check_learned_prompts(self) -> Self:
        peft = self.peft
        if peft is None or peft.changes_weights:
            return self
        if self.trainer.packing or self.trainer.padding_free:
            raise ValueError(f"{peft.method} reads one document a row: no packing")
        return self
