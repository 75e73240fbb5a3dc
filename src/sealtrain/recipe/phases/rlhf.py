"""``rlhf``: reinforcement learning on sealed prompts: PPO, RLOO, GRPO.

``trainer.algorithm`` chooses the method, and with it the settings.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Discriminator, Field, Tag, model_validator

from sealtrain.base.models import StrictModel
from sealtrain.recipe.columns import Columns
from sealtrain.recipe.fields import ColumnName, by_key
from sealtrain.recipe.modelspec import ModelFromFolder, SavedModel
from sealtrain.recipe.recipe import PhaseRecipe
from sealtrain.recipe.trainers import Batch, Length, Steps, TrainerArguments


class RewardModel(StrictModel):
    """A classifier with one output, which scores a prompt with its answer."""

    kind: ClassVar[Literal["model"]] = "model"
    model: SavedModel
    max_length: Length = Field(
        default=1024, description="Tokens it reads; of a longer text the last ones."
    )


class RewardRule(StrictModel):
    """A rule that anyone can check: 1 when the answer is right, else 0.

    ``exact-match``: apart from white space around it, it is the record's answer. ``contains``: the
    record's answer occurs in it.
    """

    kind: ClassVar[Literal["rule"]] = "rule"
    rule: Literal["exact-match", "contains"]


Reward = Annotated[
    Annotated[RewardModel, Tag("model")] | Annotated[RewardRule, Tag("rule")],
    Discriminator(by_key("rule", model="model")),
]
"""What training by reinforcement makes likelier."""


class PromptColumns(Columns):
    """A prompt, and what a rule compares the model's answer with."""

    kind: ClassVar[Literal["prompt"]] = "prompt"
    prompt: ColumnName
    answer: ColumnName | None = None


class _RlhfArguments(TrainerArguments):
    """What all three methods take."""

    learning_rate: float = Field(default=1e-6, gt=0, le=10)
    max_completion_length: Length = Field(default=256, description="Tokens of an answer.")
    temperature: float = Field(default=1.0, gt=0, le=100)
    disable_dropout: bool = True

    @model_validator(mode="after")
    def _every_setting_counts(self) -> Self:
        if self.label_smoothing_factor:
            raise ValueError("label_smoothing_factor does nothing here: answers have no labels")
        if self.neftune_noise_alpha is not None:
            raise ValueError("neftune_noise_alpha would also disturb the answers that are sampled")
        return self


class PpoArguments(_RlhfArguments):
    """Our own loop, under the names TRL's ``PPOConfig`` gave them.

    A step samples answers to ``per_device_train_batch_size`` * ``gradient_accumulation_steps`` *
    ``num_mini_batches`` prompts and learns from them ``num_ppo_epochs`` times.
    """

    algorithm: Literal["ppo"]
    num_ppo_epochs: int = Field(default=4, ge=1, le=1000)
    num_mini_batches: Batch = 1
    init_kl_coef: float = Field(
        default=0.2, ge=0, le=1000, description="Weight of the divergence from the reference."
    )
    kl_target: float | None = Field(
        default=6.0,
        gt=0,
        le=1_000_000,
        description="Divergence of an answer, in nats, the weight adapts to; null keeps it.",
    )
    kl_horizon: int = Field(
        default=10_000, ge=1, le=1_000_000_000, description="Answers over which it adapts."
    )
    target_kl: float | None = Field(
        default=None,
        gt=0,
        le=1000,
        description="End a step once the policy has moved so far from where it sampled.",
    )
    cliprange: float = Field(default=0.2, gt=0, lt=1)
    cliprange_value: float = Field(default=0.2, gt=0, le=1000)
    vf_coef: float = Field(default=0.1, ge=0, le=1000)
    gamma: float = Field(default=1.0, gt=0, le=1)
    lam: float = Field(default=0.95, ge=0, le=1)
    missing_eos_penalty: float | None = Field(
        default=None, gt=0, le=1_000_000, description="Taken off an answer that does not end."
    )


class _GroupArguments(_RlhfArguments):
    """What compares several answers to one prompt."""

    num_generations: int = Field(ge=2, le=65_536)
    num_iterations: Steps = Field(default=1, description="Steps on the same answers.")
    beta: float = Field(ge=0, le=1000, description="Weight of the divergence from the reference.")
    epsilon: float = Field(default=0.2, gt=0, lt=1)
    epsilon_high: float | None = Field(default=None, gt=0, le=1000)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0, le=1_000_000)
    min_p: float | None = Field(default=None, ge=0, le=1)
    repetition_penalty: float = Field(default=1.0, gt=0, le=100)
    mask_truncated_completions: bool = False

    @model_validator(mode="after")
    def _groups_are_whole(self) -> Self:
        answers = self.per_device_train_batch_size * self.gradient_accumulation_steps
        if answers % self.num_generations:
            raise ValueError(
                "per_device_train_batch_size * gradient_accumulation_steps is no multiple of "
                "num_generations"
            )
        return self

    @model_validator(mode="after")
    def _checkpoints_lie_between_answers(self) -> Self:
        # Answers are not kept in a checkpoint: a resumed run samples new ones.
        if self.save_steps % self.num_iterations:
            raise ValueError("save_steps is no multiple of num_iterations")
        if self.load_best_model_at_end and (self.eval_steps or 0) % self.num_iterations:
            raise ValueError("eval_steps is no multiple of num_iterations")
        return self


class RlooArguments(_GroupArguments):
    """``trl.RLOOConfig``."""

    algorithm: Literal["rloo"]
    num_generations: int = Field(default=2, ge=2, le=65_536)
    beta: float = Field(
        default=0.05, ge=0, le=1000, description="Weight of the divergence from the reference."
    )
    normalize_advantages: bool = False
    reward_clip_range: tuple[float, float] | None = None


class GrpoArguments(_GroupArguments):
    """``trl.GRPOConfig``."""

    algorithm: Literal["grpo"]
    num_generations: int = Field(default=8, ge=2, le=65_536)
    beta: float = Field(
        default=0.0, ge=0, le=1000, description="Weight of the divergence from the reference."
    )
    loss_type: Literal["grpo", "bnpo", "dr_grpo", "dapo"] = "dapo"
    scale_rewards: Literal["group", "batch", "none"] = "group"
    importance_sampling_level: Literal["token", "sequence"] = "token"
    delta: float | None = Field(default=None, gt=1, le=1000)


class RlhfRecipe(PhaseRecipe):
    """Reinforcement learning of a causal language model on prompts."""

    phase: Literal["rlhf"]
    columns: PromptColumns
    trainer: Annotated[
        PpoArguments | RlooArguments | GrpoArguments, Field(discriminator="algorithm")
    ]
    reward: Reward

    @model_validator(mode="after")
    def _a_rule_compares_with_an_answer(self) -> Self:
        if self.reward.kind == "rule" and self.columns.answer is None:
            raise ValueError("a rule needs columns.answer, which it compares with")
        if self.reward.kind == "model" and self.columns.answer is not None:
            raise ValueError("columns.answer is read by a rule; a reward model needs none")
        return self

    @model_validator(mode="after")
    def _adapters_change_weights(self) -> Self:
        if self.peft is not None and not self.peft.changes_weights:
            raise ValueError(f"{self.peft.method} puts tokens before a prompt; use lora or ia3")
        return self

    @property
    def further_models(self) -> dict[str, ModelFromFolder]:
        """The reward model, if a model gives the reward."""
        return {"reward": self.reward.model} if self.reward.kind == "model" else {}
