"""A recipe as Axolotl's configuration. Pure: the same recipe gives the same mapping.

Every setting that a recipe can hold is carried over or has been refused by ``recipe.backends``.
Axolotl's own additions (fused kernels, packing, trackers, workers, plaintext checkpoints, padding
to a multiple of 64) are explicitly off. Axolotl never reads records itself: ``datasets`` says how
its prompt strategies turn a record into tokens.
"""

from __future__ import annotations

import math
from typing import Any, Final

from sealtrain.recipe.trainersettings import axolotl_settings

_OFF: Final[dict[str, Any]] = {
    "fp16": False,
    "tf32": False,
    "sample_packing": False,
    "eval_sample_packing": False,
    "pad_to_sequence_len": False,
    "dataloader_num_workers": 0,
    "dataloader_prefetch_factor": None,
    "dataset_num_proc": 1,
    "accelerator_config": {"dispatch_batches": False},
    "save_strategy": "no",
    "val_set_size": 0,
    "include_tkps": False,
    "use_wandb": False,
    "use_mlflow": False,
    "use_comet": False,
    "use_trackio": False,
    "use_tensorboard": False,
    "lora_mlp_kernel": False,
    "lora_qkv_kernel": False,
    "lora_o_kernel": False,
    "lora_embedding_kernel": False,
    "trust_remote_code": False,
}


def axolotl_config(recipe: Any, *, model: str, tokenizer: str, output: str) -> dict[str, Any]:
    """The arguments of ``axolotl.utils.schemas.config.AxolotlInputConfig``.

    Args:
        recipe: A recipe of backend axolotl.
        model: Folder of the base model on this machine.
        tokenizer: Folder of the tokenizer.
        output: Folder for Axolotl's own files.
    """
    trainer = recipe.trainer
    learned = trainer.completion_only_loss is not False and recipe.columns.kind != "text"
    if recipe.columns.kind == "messages":
        learned = trainer.assistant_only_loss
    return {
        **_OFF,
        **axolotl_settings(trainer),
        **_adapter(recipe.peft),
        "base_model": model,
        "tokenizer_config": tokenizer,
        "output_dir": output,
        "datasets": [
            {"path": f"{dataset.owner}.{dataset.name}", **_strategy(recipe.columns, trainer)}
            for dataset in recipe.datasets
            if dataset.role == "train"
        ],
        "chat_template": "tokenizer_default" if recipe.columns.kind == "messages" else None,
        "train_on_inputs": not learned,
        "sequence_len": trainer.max_length,
        "pad_to_multiple_of": trainer.pad_to_multiple_of,
        "warmup_steps": _warmup(trainer),
        "num_epochs": 1,
        "gradient_checkpointing_kwargs": {"use_reentrant": False},
    }


def _warmup(trainer: Any) -> int:
    """Warm-up in whole steps; a value below 1 is a fraction, which Transformers rounds up."""
    wanted = trainer.warmup_steps
    return math.ceil(wanted * trainer.max_steps) if wanted < 1 else int(wanted)


def _adapter(peft: Any) -> dict[str, Any]:
    if peft is None:
        return {"adapter": None}
    every = peft.target_modules == "all-linear"
    layers, saved = peft.layers_to_transform, peft.modules_to_save
    return {
        "adapter": "lora",
        "lora_r": peft.r,
        "lora_alpha": peft.lora_alpha,
        "lora_dropout": peft.lora_dropout,
        "lora_target_linear": every,
        "lora_target_modules": None if every else list(peft.target_modules),
        "lora_modules_to_save": None if saved is None else list(saved),
        "peft_layers_to_transform": None if layers is None else list(layers),
        "peft_use_rslora": peft.use_rslora,
    }


def _strategy(columns: Any, trainer: Any) -> dict[str, Any]:
    """Axolotl's prompt strategy for rows whose columns training has renamed."""
    if columns.kind == "text":
        return {"type": "completion", "field": "text"}
    if columns.kind == "messages":
        return {
            "type": "chat_template",
            "field_messages": "messages",
            "roles_to_train": ["assistant"],
            "train_on_eos": "turn" if trainer.assistant_only_loss else "all",
        }
    as_they_are = {"format": "{instruction}", "no_input_format": "{instruction}"}
    named = {"field_instruction": "prompt", "field_output": "completion"}
    return {"type": {"system_prompt": "", **named, **as_they_are}}
