"""Reinforcement learning teaches a model that mostly guesses the diagnosis of real biopsies."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from biopsies import guessing_model, questions, write_split
from preference_world import rlhf
from training_world import OWNERS, checkpoint_store, run, seal_records, sources_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

TRAINER = {
    "learning_rate": 0.004,
    "max_completion_length": 11,
    "per_device_eval_batch_size": 64,
    "warmup_steps": 3,
    "save_steps": 1000,
}
GROUPS = {"max_steps": 30, "per_device_train_batch_size": 64, "num_generations": 4, "beta": 0.05}
TRAINERS: dict[str, dict[str, Any]] = {
    "ppo": {
        "max_steps": 25,
        "per_device_train_batch_size": 32,
        "learning_rate": 0.003,
        "init_kl_coef": 0.05,
        "kl_target": None,
    },
    "rloo": GROUPS,
    "grpo": GROUPS,
}


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_split(questions, tmp_path_factory.mktemp("questions"))


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return guessing_model(tmp_path_factory.mktemp("models") / "base").parent


@pytest.mark.parametrize("algorithm", TRAINERS)
def test_right_answers_become_likelier(
    algorithm: str, paths: dict[str, Path], base_dir: Path, tmp_path: Path
) -> None:
    recipe = rlhf(
        algorithm,
        model={"path": "base"},
        columns={"prompt": "prompt", "answer": "answer"},
        reward={"rule": "exact-match"},
        trainer=TRAINER | TRAINERS[algorithm],
    )
    sealed = dict(seal_records(paths, tmp_path))
    store = checkpoint_store(tmp_path / "checkpoints")
    ran = run(recipe, sources_of(recipe, sealed), store, base_dir=base_dir)
    metrics = ran.trained.metrics
    lines = paths[f"{OWNERS[0]}.held-out"].read_text("utf-8").splitlines()
    answers = Counter(json.loads(line)["answer"] for line in lines)
    common = answers.most_common(1)[0][1] / len(lines)
    assert metrics["eval_reward"] >= metrics["eval_reward_before"] + 0.15
    # Not only the more common diagnosis is said more often.
    assert metrics["eval_reward"] >= common + 0.1
    assert 0 < metrics["eval_kl"] < 5
