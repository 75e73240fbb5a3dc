"""Every way of learning from preferences learns diagnoses from real biopsies."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from biopsies import opinions, write_split
from preference_world import kto, preferring
from training_world import LLAMA, OWNERS, checkpoint_store, run, seal_records, sources_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

MODEL = {
    "config": LLAMA
    | {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
    },
    "init_seed": 7,
    "tokenizer": {"kind": "bytes"},
}
TRAINER = {
    "max_steps": 60,
    "learning_rate": 0.006,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 64,
    "warmup_steps": 10,
    "save_steps": 1000,
    "max_length": 96,
}
# What each must beat: always preferring the more common diagnosis, by so much.
MARGIN = 0.15


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return write_split(opinions, tmp_path_factory.mktemp("opinions"))


@pytest.fixture(scope="module")
def sealed(paths: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


def held_out(paths: dict[str, Path]) -> list[dict[str, Any]]:
    lines = paths[f"{OWNERS[0]}.held-out"].read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("loss", ["sigmoid", "ipo", "orpo"])
def test_pairs_teach_the_diagnosis(
    loss: str, paths: dict[str, Path], sealed: dict[str, Any], tmp_path: Path
) -> None:
    settings = TRAINER | {"loss_type": loss} | ({"beta": 1.0} if loss == "orpo" else {})
    recipe = preferring("dpo", model=MODEL, trainer=settings)
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))
    rows = held_out(paths)
    common = Counter(row["chosen"] for row in rows).most_common(1)[0][1] / len(rows)
    assert ran.trained.metrics["reward_accuracy"] >= common + MARGIN
    assert ran.trained.metrics["reward_margin"] > 0.3


def test_single_answers_teach_the_diagnosis(
    paths: dict[str, Path], sealed: dict[str, Any], tmp_path: Path
) -> None:
    from sklearn.metrics import roc_auc_score

    settings = {"max_steps": 80, "learning_rate": 0.01, "beta": 0.5}
    recipe = kto(model=MODEL, trainer=TRAINER | settings)
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path))
    rows = held_out(paths)
    labels = [row["label"] for row in rows]
    common = max(
        roc_auc_score(labels, [row["completion"] == answer for row in rows])
        for answer in (" benign", " malignant")
    )
    assert ran.trained.metrics["reward_accuracy"] >= common + MARGIN
    assert ran.trained.metrics["reward_margin"] > 0.5
