"""``reward``: a model that scores answers, learned from preferences."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sealtrain.recipe.columns import PreferenceColumns
from sealtrain.recipe.fields import Text
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.trainers import Length, TrainerArguments


class RewardArguments(TrainerArguments):
    """``trl.RewardConfig``."""

    learning_rate: float = Field(default=1e-4, gt=0, le=10)
    max_length: Length | None = Field(
        default=1024, description="Pairs with a longer text are left out."
    )
    center_rewards_coefficient: float | None = Field(
        default=None, gt=0, le=1000, description="Pulls rewards towards a mean of zero."
    )
    disable_dropout: bool = True
    eos_token: Text | None = None
    pad_to_multiple_of: int | None = Field(default=None, ge=1, le=65_536)

    @property
    def compares_only(self) -> bool:
        """Whether the loss is of the difference of two scores: equal texts teach nothing."""
        return self.center_rewards_coefficient is None

    @model_validator(mode="after")
    def _every_setting_counts(self) -> Self:
        if self.label_smoothing_factor:
            raise ValueError("label_smoothing_factor does nothing here: a reward has no labels")
        return self


class RewardRecipe(PhaseRecipe):
    """Training of a reward model on pairs."""

    phase: Literal["reward"]
    columns: PreferenceColumns
    trainer: RewardArguments

    @model_validator(mode="after")
    def _head_and_base_share_a_type(self) -> Self:
        quantized = self.peft is not None and self.peft.quantization is not None
        if quantized and not self.trainer.bf16:
            raise ValueError("peft.quantization needs trainer.bf16: the score is in bfloat16 then")
        return self
