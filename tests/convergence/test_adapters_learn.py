"""Adapters of every kind teach a trained model the opposite of what it learned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from language_world import ADAPTERS, write_files
from training_world import LLAMA, checkpoint_store, run, seal_records, sft, sources_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

WIDE = LLAMA | {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
TRAINER = {
    "max_length": 32,
    "per_device_train_batch_size": 8,
    "per_device_eval_batch_size": 32,
    "save_steps": 1000,
    "warmup_steps": 0,
}
STRONG = {"r": 8, "lora_dropout": 0.0, "target_modules": "all-linear"}
KINDS: dict[str, tuple[dict[str, Any], float]] = {
    "dora": (ADAPTERS["dora"] | STRONG, 0.02),
    "qlora": (ADAPTERS["qlora"] | STRONG, 0.02),
    "ia3": (ADAPTERS["ia3"], 0.3),
    "p-tuning-v2": (ADAPTERS["p-tuning-v2"] | {"encoder_hidden_size": 32}, 0.03),
    "prompt": (ADAPTERS["prompt"] | {"num_virtual_tokens": 8}, 0.3),
}


def write_words(folder: Path, yes: str, no: str) -> dict[str, Path]:
    paths = {}
    for key in ("hospital-a.records", "hospital-b.records", "hospital-a.held-out"):
        paths[key] = folder / f"{key}.jsonl"
        rows = [
            {"prompt": f"{number}{sign}", "completion": yes if sign == "+" else no}
            for number in range(10, 40)
            for sign in "+-"
        ]
        paths[key].write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return paths


@pytest.fixture(scope="module")
def taught(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a model that learned one rule, and sealed records of the opposite one."""
    folder = tmp_path_factory.mktemp("taught")
    (folder / "one").mkdir()
    (folder / "other").mkdir()
    sealed = dict(seal_records(write_words(folder / "one", " yes", " no"), folder / "one"))
    recipe = sft(
        model={"config": WIDE, "init_seed": 7, "tokenizer": {"kind": "bytes"}},
        trainer=TRAINER | {"max_steps": 60, "learning_rate": 0.01},
    )
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(folder / "store"))
    assert ran.trained.metrics["accuracy"] == 1
    write_files(folder / "base", ran.trained.files)
    paths = write_words(folder / "other", " no", " yes")
    return folder, dict(seal_records(paths, folder / "other"))


@pytest.mark.parametrize("name", KINDS)
def test_an_adapter_teaches_the_opposite(
    name: str, taught: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    base_dir, sealed = taught
    peft, rate = KINDS[name]
    policy = sft().release_policy.to_dict() | {"metrics": ["accuracy", "eval_loss"]}
    found = {}
    for steps, speed in ((1, 1e-12), (40, rate)):
        settings = TRAINER | {"max_steps": steps, "learning_rate": speed}
        recipe = sft(model={"path": "base"}, peft=peft, trainer=settings, release_policy=policy)
        store = checkpoint_store(tmp_path / str(steps))
        found[steps] = run(
            recipe, sources_of(recipe, sealed), store, base_dir=base_dir
        ).trained.metrics
    assert found[1]["accuracy"] < 0.1
    assert found[40]["eval_loss"] < found[1]["eval_loss"] / 3
    # A learned prompt before a tiny model can forget the old rule, not state the new one.
    if recipe.peft is not None and recipe.peft.changes_weights:
        assert found[40]["accuracy"] >= 0.9
