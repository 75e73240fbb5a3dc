"""Tiny recipes with differential privacy, beside those of ``training_world``."""

from __future__ import annotations

import functools
from typing import Any

from training_world import LORA, classify, releasing, sft

from sealtrain.recipe.schema import Recipe
from sealtrain.sealing.datakey import DataKey

SECRET = DataKey(b"\x07" * 32)
"""Stands for what a run's key would give."""

SGD: dict[str, Any] = {
    "dp": "sgd",
    "target_epsilon": 8.0,
    "delta": 1e-4,
    "noise_multiplier": 1.0,
    "accountant": "rdp",
}
RANGES = {"size": [200.0, 800.0], "spread": [-0.4, 0.4]}
POLICY = releasing("accuracy", "majority", "f1", "auroc", "eval_loss")
STEADY = {"learning_rate": 0.05, "lr_scheduler_type": "constant", "warmup_steps": 0}


def private_classify(
    *, privacy: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None, **changed: Any
) -> Recipe:
    """A private classifier of two columns of numbers, with changes."""
    settings = SGD | {"feature_ranges": RANGES} | (privacy or {})
    return classify(
        trainer=STEADY | (trainer or {}),
        **({"privacy": settings, "release_policy": POLICY} | changed),
    )


def private_sft(
    *, privacy: dict[str, Any] | None = None, trainer: dict[str, Any] | None = None, **changed: Any
) -> Recipe:
    """Private LoRA on prompts and completions, with changes."""
    rest = {"privacy": SGD | (privacy or {}), "release_policy": POLICY, "peft": LORA}
    return sft(trainer=STEADY | (trainer or {}), **(rest | changed))


RECIPES = {
    "classify-dp": private_classify,
    "classify-dp-in-parts": functools.partial(
        private_classify,
        trainer={"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3},
    ),
    "sft-lora-dp": private_sft,
}
