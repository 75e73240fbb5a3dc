"""569 real biopsies: a model that mostly guesses is rewarded for the right diagnosis."""

from __future__ import annotations

import random
from pathlib import Path

from making import byte_llama, lines, saved, taught
from sklearn.datasets import load_breast_cancer

TRAINER = {
    "max_steps": 40,
    "save_steps": 20,
    "eval_steps": 10,
    "logging_steps": 10,
    "per_device_train_batch_size": 64,
    "gradient_accumulation_steps": 1,
    "per_device_eval_batch_size": 64,
    "num_generations": 4,
    "max_completion_length": 11,
    "learning_rate": 0.004,
    "beta": 0.05,
    "warmup_steps": 4,
}
DIAGNOSES = (" malignant", " benign")


def prepare(folder: Path) -> dict[str, Path]:
    """Write the biopsies' largest radius with the diagnosis, and the model that guesses."""
    model, tokenizer = byte_llama(width=32, tie_word_embeddings=True)
    taught(model, tokenizer, _guess, seed=1, steps=300, rows=16, rate=0.01)
    saved(folder / "models" / "base", model, tokenizer)
    rows = _biopsies()
    shares = {
        "hospital-a.biopsies": rows[:220],
        "hospital-b.biopsies": rows[220:430],
        "hospital-a.biopsies-test": rows[430:],
    }
    return lines(folder, shares)


def _biopsies() -> list[dict[str, str]]:
    """The radius is a digit between smallest and largest."""
    records = load_breast_cancer()
    radii = records.data[:, list(records.feature_names).index("worst radius")]
    low, high = min(radii), sorted(radii)[-30]
    rows = [
        {
            "findings": f"radius {min(9, int((radius - low) / (high - low) * 10))}:",
            "diagnosis": DIAGNOSES[target],
        }
        for radius, target in zip(radii, records.target, strict=True)
    ]
    random.Random(569).shuffle(rows)  # noqa: S311 - a repeatable split
    return rows


def _guess(source: random.Random) -> str:
    """What two in three would say of a radius."""
    digit = source.randrange(10)
    said = DIAGNOSES[(digit < 5) is (source.random() < 0.7)]
    return f"radius {digit}:{said}<eos>"
