"""Trainer and adapter settings under the names TRL, Transformers and PEFT give them.

Every accepted argument is a field here. Arguments that report to trackers, push to a hub, log
completions, run remote code or choose output folders do not exist, so no recipe can ask for them.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, StringConstraints, model_validator

from sealtrain.base.models import StrictModel
from sealtrain.recipe.fields import Text

__all__ = ["ClassifyArguments", "Lora", "SftArguments", "TrainerArguments"]

Steps = Annotated[int, Field(ge=1, le=10_000_000)]
Batch = Annotated[int, Field(ge=1, le=65_536)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Length = Annotated[int, Field(ge=1, le=4_194_304)]
ModuleName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.]{1,200}$")]


class TrainerArguments(StrictModel):
    """``transformers.TrainingArguments`` that every phase takes."""

    max_steps: Steps = Field(
        description="Optimizer steps. Streams of several owners have no natural epoch."
    )
    per_device_train_batch_size: Batch = 8
    per_device_eval_batch_size: Batch = 8
    gradient_accumulation_steps: Batch = 1
    learning_rate: float = Field(default=5e-5, gt=0, le=10)
    lr_scheduler_type: Literal[
        "linear",
        "cosine",
        "cosine_with_restarts",
        "cosine_with_min_lr",
        "polynomial",
        "constant",
        "constant_with_warmup",
        "inverse_sqrt",
        "warmup_stable_decay",
    ] = "linear"
    lr_scheduler_kwargs: dict[
        Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}$")], int | float
    ] = Field(default={}, max_length=8)
    warmup_steps: float = Field(
        default=0, ge=0, le=10_000_000, description="Steps, or below 1 a fraction of max_steps."
    )
    optim: Literal["adamw_torch", "adamw_torch_fused", "sgd", "adafactor", "adagrad", "rmsprop"] = (
        "adamw_torch"
    )
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    adam_epsilon: float = Field(default=1e-8, gt=0, le=1)
    max_grad_norm: float = Field(default=1.0, ge=0, le=1_000_000)
    label_smoothing_factor: float = Field(default=0.0, ge=0, lt=1)
    neftune_noise_alpha: float | None = Field(default=None, gt=0, le=100)
    bf16: bool = False
    activation_checkpointing: bool = False
    seed: Seed = 42
    data_seed: Seed | None = Field(default=None, description="Seed of the order; seed when null.")
    logging_steps: Steps = 10
    save_steps: Steps = 500

    @model_validator(mode="after")
    def _warmup_is_steps_or_fraction(self) -> Self:
        if self.warmup_steps >= 1 and self.warmup_steps != int(self.warmup_steps):
            raise ValueError("warmup_steps is a whole number of steps, or a fraction below 1")
        return self


class SftArguments(TrainerArguments):
    """``trl.SFTConfig``."""

    max_length: Length | None = 1024
    truncation_mode: Literal["keep_start", "keep_end"] = "keep_start"
    packing: bool = False
    packing_strategy: Literal["bfd", "bfd_split", "wrapped"] = "bfd"
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


class ClassifyArguments(TrainerArguments):
    """``transformers.TrainingArguments`` of a classifier."""

    max_length: Length = Field(default=512, description="Tokens of text read from one record.")


class Lora(StrictModel):
    """``peft.LoraConfig``."""

    method: Literal["lora"]
    r: int = Field(default=8, ge=1, le=4096)
    lora_alpha: int = Field(default=16, ge=1, le=65_536)
    lora_dropout: float = Field(default=0.0, ge=0, lt=1)
    target_modules: Literal["all-linear"] | Annotated[tuple[ModuleName, ...], Field(min_length=1)]
    modules_to_save: tuple[ModuleName, ...] | None = None
    bias: Literal["none", "all", "lora_only"] = "none"
    use_rslora: bool = False
    use_dora: bool = False
    init_lora_weights: bool | Literal["gaussian", "pissa", "olora"] = True
    layers_to_transform: tuple[Annotated[int, Field(ge=0, le=100_000)], ...] | None = None
