"""Tiny recipes, prompts, policies and reward models, for tests of ``rlhf``."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from training_world import CANARY, LLAMA, TRAINER, document, releasing, write_records

from sealtrain.recipe.schema import Recipe, parse_recipe

GROUPS = {"num_generations": 2, "max_completion_length": 6}
TRAINERS: dict[str, dict[str, Any]] = {
    "ppo": {"algorithm": "ppo", "num_ppo_epochs": 2, "max_completion_length": 6},
    "rloo": {"algorithm": "rloo", **GROUPS},
    "grpo": {"algorithm": "grpo", "beta": 0.04, **GROUPS},
}
METRICS = ["loss", "reward", "kl", "entropy", "kl_coef", "eval_reward", "eval_reward_before"]
METRICS += ["eval_kl", "eval_length", "grad_norm", "value_loss", "policy_kl"]
SCORER = {"model": {"path": "scorer", "tokenizer": {"kind": "bytes"}}}


def rlhf(algorithm: str, *, trainer: dict[str, Any] | None = None, **changed: Any) -> Recipe:
    """A recipe on two hospitals' prompts with a reward model in ``scorer``, with changes."""
    usual: dict[str, Any] = {
        "phase": "rlhf",
        "columns": {"prompt": "prompt"},
        "trainer": TRAINER | TRAINERS[algorithm] | (trainer or {}),
        "reward": SCORER,
        "release_policy": releasing(*METRICS),
    }
    return parse_recipe(document(**usual | changed))


def questions(count: int, label: str) -> list[dict[str, Any]]:
    """Which of two sizes is larger, and the answer. Each record holds the canary."""
    source = random.Random(label)  # noqa: S311 - test records
    rows = []
    for number in range(count):
        first, second = source.sample(range(10), 2)
        question = f"{CANARY} {number}{' long' * (number % 5)}: {first} or {second}?"
        rows.append(
            {
                "prompt": question,
                "answer": "first" if first > second else "second",
                "asked": [{"role": "user", "content": question}],
                "size": first,
            }
        )
    return rows


def write_questions(folder: Path, count: int = 40) -> dict[str, Path]:
    return write_records(folder, count, made=questions)


def write_scorer(
    folder: Path, kind: str = "LlamaForSequenceClassification", labels: int = 1
) -> Path:
    """A model of random weights in ``folder / "scorer"``."""
    import torch
    import transformers

    config = {key: value for key, value in LLAMA.items() if key != "model_type"}
    torch.manual_seed(3)
    model = getattr(transformers, kind)(
        transformers.LlamaConfig(**config, num_labels=labels, pad_token_id=0)
    )
    model.save_pretrained(folder / "scorer")
    return folder
