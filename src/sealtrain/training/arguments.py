"""From a recipe's trainer settings to Transformers' arguments; those that could leak are fixed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from sealtrain.recipe.trainersettings import transformers_settings
from sealtrain.training.devices import compute_device, one_gpu_each

if TYPE_CHECKING:
    from sealtrain.recipe.trainers import TrainerArguments


def trainer_arguments(arguments: TrainerArguments, scratch: Path) -> dict[str, Any]:
    """Keyword arguments for ``TrainingArguments`` and its subclasses.

    Args:
        arguments: The recipe's.
        scratch: Empty folder for the trainer; it stays empty.
    """
    device = compute_device()
    one_gpu_each()
    return {
        **transformers_settings(arguments),
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
        "include_num_input_tokens_seen": "non_padding",
        "remove_unused_columns": True,
    }
