"""178 real wines as questions: a base in four bits learns which grower a wine is from."""

from __future__ import annotations

from pathlib import Path

from making import base_model, lines
from sklearn.datasets import load_wine

TRAINER = {
    "max_steps": 60,
    "save_steps": 30,
    "logging_steps": 15,
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "learning_rate": 0.01,
    "max_length": 128,
    "bf16": False,
    "activation_checkpointing": False,
}
MEASURES = (0, 6, 9, 12)


def prepare(folder: Path) -> dict[str, Path]:
    """Write questions with answers, and a model that starts from nothing."""
    base_model(folder, layers=2, longest=256, tie_word_embeddings=True)
    wines = load_wine()
    rows = []
    for values, target in zip(wines.data, wines.target, strict=True):
        measured = ", ".join(f"{wines.feature_names[at]} {values[at]:.3g}" for at in MEASURES)
        rows.append({"question": f"{measured}. Grower?", "answer": f" {'ABC'[target]}"})
    shares = {
        "hospital-a.questions": rows[0::3],
        "hospital-b.questions": rows[1::3],
        "hospital-b.questions-test": rows[2::3],
    }
    return lines(folder, shares)
