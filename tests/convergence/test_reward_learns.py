"""A reward model learns from real biopsies which of two patients comes first."""

from __future__ import annotations

from pathlib import Path

import pytest
from biopsies import rankings, write_split
from preference_world import preferring
from training_world import LLAMA, checkpoint_store, run, seal_records, sources_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

COLUMNS = {"chosen": "chosen", "rejected": "rejected"}
TRAINER = {
    "learning_rate": 0.005,
    "per_device_train_batch_size": 16,
    "per_device_eval_batch_size": 64,
    "warmup_steps": 10,
    "save_steps": 1000,
    "max_length": 96,
}
WIDE = LLAMA | {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}
MODEL = {"config": WIDE, "init_seed": 7, "tokenizer": {"kind": "bytes"}}


@pytest.mark.parametrize(
    ("peft", "steps"),
    [(None, 40), ({"method": "lora", "r": 8, "target_modules": "all-linear"}, 60)],
    ids=["full", "lora"],
)
def test_pairs_teach_the_order(peft: dict[str, object] | None, steps: int, tmp_path: Path) -> None:
    sealed = dict(seal_records(write_split(rankings, tmp_path), tmp_path))
    accuracy = {}
    for count, rate in ((1, 1e-9), (steps, 0.005 if peft is None else 0.02)):
        settings = TRAINER | {"max_steps": count, "learning_rate": rate}
        recipe = preferring("reward", model=MODEL, columns=COLUMNS, trainer=settings, peft=peft)
        ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path / str(count)))
        accuracy[count] = ran.trained.metrics["reward_accuracy"]
    # One step at no rate to speak of leaves the model as it was.
    assert accuracy[steps] >= max(accuracy[1], 0.5) + 0.2
    assert ran.trained.metrics["reward_margin"] > 1
