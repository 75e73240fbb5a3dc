"""What becomes of each trainer setting, in Transformers' and TRL's trainers and in Axolotl.

One row for each field of ``TrainerArguments``. Trainers get their arguments from it
(``training.arguments``), backend axolotl its configuration and what it may not change
(``training.backends``), and ``sealtrain recipe import`` what Axolotl's keys are called here. A
phase's own settings are in the phase.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

InAxolotl = Literal["ours", "handed", "kept"]


@dataclass(frozen=True, slots=True)
class SettingUse:
    """Where a setting goes.

    Attributes:
        axolotl: Key of an Axolotl file that means it; ``None`` where there is none.
        there: In a run of backend axolotl: it is Axolotl's (``handed``), and the trainer that
            Axolotl makes must still have it (``kept``); or it is no business of Axolotl's
            (``ours``): our own loop does it, or ``recipe.backends`` refuses it.
        transformers: ``transformers.TrainingArguments`` takes it under the recipe's name.
    """

    axolotl: str | None
    there: InAxolotl
    transformers: bool = True


SETTINGS: Final[Mapping[str, SettingUse]] = {
    "max_steps": SettingUse("max_steps", "kept"),
    "num_train_epochs": SettingUse("num_epochs", "ours", transformers=False),
    "per_device_train_batch_size": SettingUse("micro_batch_size", "kept"),
    "per_device_eval_batch_size": SettingUse("eval_batch_size", "handed"),
    "gradient_accumulation_steps": SettingUse("gradient_accumulation_steps", "kept"),
    "learning_rate": SettingUse("learning_rate", "kept"),
    "lr_scheduler_type": SettingUse("lr_scheduler", "kept"),
    "lr_scheduler_kwargs": SettingUse("lr_scheduler_kwargs", "kept"),
    "warmup_steps": SettingUse("warmup_steps", "handed"),
    "optim": SettingUse("optimizer", "kept"),
    "weight_decay": SettingUse("weight_decay", "kept"),
    "adam_beta1": SettingUse("adam_beta1", "kept"),
    "adam_beta2": SettingUse("adam_beta2", "kept"),
    "adam_epsilon": SettingUse("adam_epsilon", "kept"),
    "max_grad_norm": SettingUse("max_grad_norm", "kept"),
    "label_smoothing_factor": SettingUse("label_smoothing_factor", "ours"),
    "neftune_noise_alpha": SettingUse("neftune_noise_alpha", "kept"),
    "bf16": SettingUse("bf16", "kept"),
    "fp16": SettingUse(None, "ours"),
    "activation_checkpointing": SettingUse("gradient_checkpointing", "kept"),
    "torch_compile": SettingUse("torch_compile", "ours"),
    "torch_compile_backend": SettingUse("torch_compile_backend", "ours"),
    "use_liger_kernel": SettingUse(None, "ours"),
    "seed": SettingUse("seed", "kept"),
    "data_seed": SettingUse(None, "ours", transformers=False),
    "logging_steps": SettingUse("logging_steps", "kept"),
    "save_steps": SettingUse("save_steps", "ours"),
    "save_total_limit": SettingUse("save_total_limit", "ours", transformers=False),
    "eval_steps": SettingUse("eval_steps", "ours", transformers=False),
    "metric_for_best_model": SettingUse("metric_for_best_model", "ours", transformers=False),
    "greater_is_better": SettingUse(None, "ours", transformers=False),
    "load_best_model_at_end": SettingUse(None, "ours", transformers=False),
    "early_stopping_patience": SettingUse("early_stopping_patience", "ours", transformers=False),
    "early_stopping_threshold": SettingUse(None, "ours", transformers=False),
}
"""By name in a recipe's ``trainer``, in the order of ``TrainerArguments``."""


def transformers_settings(arguments: Any) -> dict[str, Any]:
    """The settings of a recipe's ``trainer`` that Transformers' trainers take, by their name."""
    return {name: getattr(arguments, name) for name, use in SETTINGS.items() if use.transformers}


def axolotl_settings(arguments: Any) -> dict[str, Any]:
    """The settings of a recipe's ``trainer`` that are Axolotl's, by its keys."""
    return {
        use.axolotl: getattr(arguments, name)
        for name, use in SETTINGS.items()
        if use.axolotl is not None and use.there != "ours"
    }
