"""569 real biopsies in pairs: a malignant one is seen sooner than a benign one."""

from __future__ import annotations

import random
from pathlib import Path

from making import base_model, lines
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
    base_model(folder, width=32, tie_word_embeddings=True)
    sooner, later = _patients()
    shares = {
        "hospital-a.rankings": (sooner[:90], later[:150]),
        "hospital-b.rankings": (sooner[90:170], later[150:280]),
        "hospital-b.rankings-test": (sooner[170:], later[280:]),
    }
    return lines(folder, {key: _pairs(key, *share) for key, share in shares.items()})


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


def _pairs(name: str, sooner: list[str], later: list[str]) -> list[dict[str, str]]:
    source = random.Random(name)  # noqa: S311 - example records
    return [{"sooner": source.choice(sooner), "later": text} for text in later]
