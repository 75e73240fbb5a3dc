"""Tiny recipes, prompts, policies and reward models, for tests of ``rlhf``."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from training_world import CANARY, LLAMA, OWNERS, TRAINER

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
    document = {
        "version": 1,
        "name": "tiny",
        "phase": "rlhf",
        "model": {"config": LLAMA, "init_seed": 7, "tokenizer": {"kind": "bytes"}},
        "datasets": [
            *({"owner": owner, "name": "records", "role": "train"} for owner in OWNERS),
            {"owner": OWNERS[0], "name": "held-out", "role": "test"},
        ],
        "columns": {"prompt": "prompt"},
        "trainer": TRAINER | TRAINERS[algorithm] | (trainer or {}),
        "reward": SCORER,
        "peft": None,
        "privacy": {"dp": "none"},
        "release_policy": {
            "metrics": METRICS,
            "round_to": 8,
            "model": {"recipients": [OWNERS[0]]},
        },
        "hardware": {
            "platforms": ["simulator"],
            "image": None,
            "key_provider": "none",
            "key_provider_id": None,
        },
    }
    return parse_recipe(document | changed)


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
    """JSONL of every dataset, by ``owner.name``."""
    paths = {}
    for owner, name in ((OWNERS[0], "records"), (OWNERS[1], "records"), (OWNERS[0], "held-out")):
        rows = questions(count if name == "records" else count // 2, f"{owner}.{name}")
        paths[f"{owner}.{name}"] = path = folder / f"{owner}.{name}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return paths


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
