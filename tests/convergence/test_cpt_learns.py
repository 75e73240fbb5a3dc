"""Pre-training on real English text: a held-out part costs fewer bits a byte than before."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from collecting import COLLECTING
from language_world import cpt, write_base
from training_world import LLAMA, checkpoint_store, run, seal_records, sources_of

if not COLLECTING:
    from sklearn.datasets import (
        load_breast_cancer,
        load_diabetes,
        load_iris,
        load_linnerud,
        load_wine,
    )

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

WIDE = LLAMA | {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
}


def write_paragraphs(folder: Path) -> dict[str, Path]:
    loaders = (load_breast_cancer, load_diabetes, load_iris, load_linnerud, load_wine)
    found = [part for loader in loaders for part in loader().DESCR.split("\n\n") if part.strip()]
    paths = {}
    for at, key in enumerate(("hospital-a.records", "hospital-b.records", "hospital-a.held-out")):
        paths[key] = folder / f"{key}.jsonl"
        lines = [json.dumps({"text": " ".join(part.split())}) + "\n" for part in found[at::3]]
        paths[key].write_text("".join(lines), "utf-8")
    return paths


def test_reading_on_makes_real_text_cheaper(tmp_path: Path) -> None:
    write_base(tmp_path / "base", WIDE)
    sealed = dict(seal_records(write_paragraphs(tmp_path), tmp_path))
    bits = {}
    for steps, rate in ((1, 1e-9), (60, 0.01)):
        settings = {
            "max_steps": steps,
            "learning_rate": rate,
            "block_size": 96,
            "per_device_train_batch_size": 8,
            "save_steps": 1000,
        }
        recipe = cpt(trainer=settings, model={"path": "base"})
        store = checkpoint_store(tmp_path / str(steps))
        ran = run(recipe, sources_of(recipe, sealed), store, base_dir=tmp_path)
        bits[steps] = ran.trained.metrics["bits_per_byte"]
    # Knowing nothing costs 8 bits; single letters of English cost about 4.5 here.
    assert 7.8 < bits[1] < 8.3
    assert bits[60] < 4.9
