"""569 real biopsies in pairs: a malignant one is seen sooner than a benign one."""

from __future__ import annotations

import json
import random
from pathlib import Path

from sklearn.datasets import load_breast_cancer

TRAINER = {
    "max_steps": 100,
    "save_steps": 50,
    "eval_steps": 25,
    "logging_steps": 25,
    "per_device_eval_batch_size": 64,
    "learning_rate": 0.01,
    "warmup_steps": 10,
    "max_length": 96,
}
MEASURES = ("radius", "texture", "concave points", "smoothness")


def prepare(folder: Path) -> dict[str, Path]:
    """Write pairs of patients, and a model that starts from nothing."""
    _base(folder / "models" / "base")
    sooner, later = _patients()
    shares = {
        "hospital-a.rankings": (sooner[:90], later[:150]),
        "hospital-b.rankings": (sooner[90:170], later[150:280]),
        "hospital-b.rankings-test": (sooner[170:], later[280:]),
    }
    return {key: _pairs(folder / f"{key}.jsonl", *share) for key, share in shares.items()}


def _patients() -> tuple[list[str], list[str]]:
    """Malignant and benign biopsies; each measurement a digit between smallest and largest."""
    records = load_breast_cancer()
    columns = [list(records.feature_names).index(f"worst {name}") for name in MEASURES]
    values = records.data[:, columns]
    low, high = values.min(axis=0), values.max(axis=0)
    digits = ((values - low) / (high - low) * 9.99).astype(int)
    found = [
        ", ".join(f"{name} {digit}" for name, digit in zip(MEASURES, row, strict=True))
        for row in digits
    ]
    kinds = [
        [text for text, target in zip(found, records.target, strict=True) if target == kind]
        for kind in (0, 1)
    ]
    return kinds[0], kinds[1]


def _pairs(path: Path, sooner: list[str], later: list[str]) -> Path:
    source = random.Random(path.stem)  # noqa: S311 - example records
    rows = [{"sooner": source.choice(sooner), "later": text} for text in later]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def _base(folder: Path) -> None:
    """A small Llama with random weights that reads bytes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from sealtrain.training.models import byte_tokenizer

    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=True,
        )
    ).save_pretrained(folder)
