"""569 real biopsies: the diagnosis that was right, against the other one."""

from __future__ import annotations

from pathlib import Path

from making import base_model, lines
from sklearn.datasets import load_breast_cancer

TRAINER = {
    "max_steps": 100,
    "save_steps": 50,
    "logging_steps": 20,
    "per_device_eval_batch_size": 64,
    "learning_rate": 0.006,
    "beta": 1.0,
    "warmup_steps": 10,
    "max_length": 96,
}
MEASURES = ("radius", "texture", "concave points", "smoothness")


def prepare(folder: Path) -> dict[str, Path]:
    """Write opinions on biopsies, and a model that starts from nothing."""
    base_model(folder, width=32, tie_word_embeddings=True)
    rows = _opinions()
    shares = {
        "hospital-a.opinions": rows[0:450:2],
        "hospital-b.opinions": rows[1:450:2],
        "hospital-a.opinions-test": rows[450::2],
        "hospital-b.opinions-test": rows[451::2],
    }
    return lines(folder, shares)


def _opinions() -> list[dict[str, str]]:
    """Each measurement as a digit between the smallest and the largest of all patients."""
    records = load_breast_cancer()
    columns = [list(records.feature_names).index(f"worst {name}") for name in MEASURES]
    values = records.data[:, columns]
    low, high = values.min(axis=0), values.max(axis=0)
    digits = ((values - low) / (high - low) * 9.99).astype(int)
    rows = []
    for row, target in zip(digits, records.target, strict=True):
        found = ", ".join(f"{name} {digit}" for name, digit in zip(MEASURES, row, strict=True))
        names = [f" {name}" for name in records.target_names]
        rows.append(
            {"findings": f"{found}:", "confirmed": names[target], "refused": names[1 - target]}
        )
    return rows
