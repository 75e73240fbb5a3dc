"""From a recipe's trainer settings to Transformers' arguments; those that could leak are fixed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.training.devices import compute_device, one_gpu_each

if TYPE_CHECKING:
    from sealtrain.recipe.trainers import TrainerArguments

__all__ = ["trainer_arguments"]

_SAME_NAME = (
    "max_steps",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "optim",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "label_smoothing_factor",
    "neftune_noise_alpha",
    "bf16",
    "fp16",
    "seed",
    "logging_steps",
    "save_steps",
)


def trainer_arguments(arguments: TrainerArguments, scratch: Path) -> dict[str, Any]:
    """Keyword arguments for ``TrainingArguments`` and its subclasses.

    Args:
        arguments: The recipe's.
        scratch: Empty folder for the trainer; it stays empty.
    """
    device = compute_device()
    one_gpu_each()
    chosen = {name: getattr(arguments, name) for name in _SAME_NAME}
    return {
        **chosen,
        "output_dir": str(scratch),
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "steps",
        "logging_first_step": True,
        "logging_nan_inf_filter": False,
        "report_to": "none",
        "push_to_hub": False,
        "disable_tqdm": True,
        "log_level": "critical",
        "use_cpu": device == "cpu",
        "accelerator_config": {"dispatch_batches": False},
        "dataloader_num_workers": 0,
        "dataloader_pin_memory": device == "cuda",
        "activation_checkpointing": arguments.activation_checkpointing,
        "include_num_input_tokens_seen": "non_padding",
        "remove_unused_columns": True,
    }
