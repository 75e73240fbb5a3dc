"""An encoder learns which of two ways of writing a thing belong together; so does MiniLM."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from language_world import BERT, embed, minilm
from training_world import checkpoint_store, run, seal_records, sources_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

PARTS = ["valve", "motor", "sensor", "filter", "switch", "seal", "gear", "fuse", "hose", "lamp"]
CODES = dict(zip(PARTS, "kwqzvxjybu", strict=True))
WIDE = BERT | {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}


def write_faults(folder: Path) -> dict[str, Path]:
    """Two parts in words, and the same two by the letters of a code the encoder does not know."""
    pairs = [(part, other) for part in PARTS for other in PARTS if part != other]
    random.Random(4).shuffle(pairs)  # noqa: S311 - test records
    shares = {
        "hospital-a.records": pairs[:35],
        "hospital-b.records": pairs[35:70],
        "hospital-a.held-out": pairs[70:],
    }
    paths = {}
    for key, share in shares.items():
        paths[key] = folder / f"{key}.jsonl"
        rows = [{"fault": f"{CODES[a]} {CODES[b]}", "words": f"{a} and {b}"} for a, b in share]
        paths[key].write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return paths


def learned(tmp_path: Path, steps: int, rate: float, **changed: Any) -> dict[str, float]:
    """Recall of unseen pairs before and after."""
    sealed = dict(seal_records(write_faults(tmp_path), tmp_path))
    found = {}
    for name, count, speed in (("before", 1, 1e-12), ("after", steps, rate)):
        settings = {
            "max_steps": count,
            "learning_rate": speed,
            "per_device_train_batch_size": 16,
            "per_device_eval_batch_size": 64,
            "max_length": 32,
            "save_steps": 1000,
        }
        recipe = embed(
            trainer=settings, columns={"anchor": "fault", "positive": "words"}, **changed
        )
        store = checkpoint_store(tmp_path / name)
        ran = run(recipe, sources_of(recipe, sealed), store, base_dir=tmp_path)
        found[name] = ran.trained.metrics["mrr_at_10"]
    return found


def test_an_encoder_from_random_weights_finds_unseen_pairs(tmp_path: Path) -> None:
    model = {"config": WIDE, "init_seed": 3, "tokenizer": {"kind": "bytes"}}
    found = learned(tmp_path, 150, 0.01, model=model)
    assert found["after"] > found["before"] + 0.25


def test_a_real_encoder_learns_a_code_it_never_saw(tmp_path: Path) -> None:
    shutil.copytree(minilm(), tmp_path / "encoder")
    peft = {"method": "lora", "r": 8, "target_modules": ["query", "value"]}
    found = learned(tmp_path, 25, 5e-3, model={"path": "encoder"}, peft=peft)
    assert found["after"] > found["before"] + 0.2
