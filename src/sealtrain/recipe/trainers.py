"""Trainer settings that every phase takes, under the names Transformers gives them.

Every accepted argument is a field here. Arguments that report to trackers, push to a hub, log
completions, run remote code or choose output folders do not exist, so no recipe can ask for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from sealtrain.base.models import StrictModel
from sealtrain.recipe import words_instead
from sealtrain.recipe.fields import later
from sealtrain.recipe.terms import MetricName

Steps = Annotated[int, Field(ge=1, le=10_000_000)]
Batch = Annotated[int, Field(ge=1, le=65_536)]
Seed = Annotated[int, Field(ge=0, lt=1 << 32)]
Length = Annotated[int, Field(ge=1, le=4_194_304)]


def _check_optimizer(value: Any) -> Any:
    word = words_instead.OPTIMIZERS.get(value) if isinstance(value, str) else None
    if word is not None:
        raise ValueError(f"{value}: {word}")
    return value


class TrainerArguments(StrictModel):
    """``transformers.TrainingArguments`` that every phase takes.

    What becomes of each of them is in ``recipe.trainersettings``.
    """

    words_instead: ClassVar[Mapping[str, str]] = words_instead.TRAINER

    max_steps: Annotated[int, Field(ge=0, le=10_000_000)] = Field(
        default=0, description="Optimizer steps; 0 where num_train_epochs is written instead."
    )
    num_train_epochs: float | None = later(
        default=None,
        gt=0,
        le=10_000,
        description="How often training reads each sealed record; the guest counts the records, "
        "and the steps follow.",
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
        default=0, ge=0, le=10_000_000, description="Steps, or below 1 a fraction of all steps."
    )
    optim: Annotated[
        Literal[
            "adamw_torch",
            "adamw_torch_fused",
            "sgd",
            "adafactor",
            "adagrad",
            "rmsprop",
            "adamw_bnb_8bit",
            "paged_adamw_8bit",
            "paged_adamw_32bit",
            "adamw_torch_8bit",
            "adamw_torch_4bit",
        ],
        BeforeValidator(_check_optimizer),
    ] = "adamw_torch"
    weight_decay: float = Field(default=0.0, ge=0, le=1)
    adam_beta1: float = Field(default=0.9, ge=0, lt=1)
    adam_beta2: float = Field(default=0.999, ge=0, lt=1)
    adam_epsilon: float = Field(default=1e-8, gt=0, le=1)
    max_grad_norm: float = Field(default=1.0, ge=0, le=1_000_000)
    label_smoothing_factor: float = Field(default=0.0, ge=0, lt=1)
    neftune_noise_alpha: float | None = Field(default=None, gt=0, le=100)
    bf16: bool = False
    fp16: bool = later(
        default=False,
        description="Compute in float16 and scale the loss: for accelerators without bfloat16.",
    )
    activation_checkpointing: bool = False
    torch_compile: bool = later(
        default=False, description="Compile the model as it trains, for every shape of a batch."
    )
    torch_compile_backend: Literal["inductor", "aot_eager", "eager"] | None = later(
        default=None,
        description="With torch_compile; null for inductor, which needs a C++ compiler in the "
        "guest. The others build no code, and gain no speed.",
    )
    use_liger_kernel: bool = later(
        default=False,
        description="Compute layers and loss by Liger's kernels, on an accelerator alone.",
    )
    seed: Seed = 42
    data_seed: Seed | None = Field(default=None, description="Seed of the order; seed when null.")
    logging_steps: Steps = 10
    save_steps: Steps = 500
    save_total_limit: int = Field(
        default=2,
        ge=1,
        le=10_000,
        description="Newest checkpoints that stay; the best one stays besides.",
    )
    eval_steps: Steps | None = Field(
        default=None, description="Steps between two evaluations on the test split; null for none."
    )
    metric_for_best_model: MetricName | None = Field(
        default=None, description="Name the evaluation gives it, with or without eval_."
    )
    greater_is_better: bool | None = Field(
        default=None, description="When null: true unless the metric's name ends with loss."
    )
    load_best_model_at_end: bool = Field(
        default=False, description="End with the weights of the best evaluation."
    )
    early_stopping_patience: Steps | None = Field(
        default=None, description="Stop after this many evaluations without a better one."
    )
    early_stopping_threshold: float = Field(
        default=0.0, ge=0, le=1_000_000, description="What counts as better must exceed this."
    )

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.max_steps and self.num_train_epochs is not None:
            raise ValueError("max_steps and num_train_epochs exclude each other")
        if not self.max_steps and self.num_train_epochs is None:
            raise ValueError("write max_steps, or num_train_epochs")
        return self

    @model_validator(mode="after")
    def _warmup_is_steps_or_fraction(self) -> Self:
        if self.warmup_steps >= 1 and self.warmup_steps != int(self.warmup_steps):
            raise ValueError("warmup_steps is a whole number of steps, or a fraction below 1")
        return self

    @model_validator(mode="after")
    def _one_precision(self) -> Self:
        if self.fp16 and self.bf16:
            raise ValueError("fp16 and bf16 exclude each other")
        return self

    @model_validator(mode="after")
    def _backend_compiles(self) -> Self:
        if self.torch_compile_backend is not None and not self.torch_compile:
            raise ValueError("torch_compile_backend needs torch_compile: true")
        return self

    @model_validator(mode="after")
    def _the_best_needs_a_measure(self) -> Self:
        compared = self.early_stopping_patience is not None or self.load_best_model_at_end
        if compared and (self.eval_steps is None or self.metric_for_best_model is None):
            raise ValueError(
                "early_stopping_patience and load_best_model_at_end need eval_steps and "
                "metric_for_best_model"
            )
        return self
