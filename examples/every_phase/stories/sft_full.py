"""569 real biopsies as sentences: a small model learns to end them with the diagnosis."""

from __future__ import annotations

from pathlib import Path

from making import lines
from sklearn.datasets import load_breast_cancer

TRAINER = {"max_steps": 60, "save_steps": 30, "per_device_train_batch_size": 8}
MEASURES = (0, 1, 4, 5, 7)


def prepare(folder: Path) -> dict[str, Path]:
    """Write one file of prompts and completions a dataset."""
    records = load_breast_cancer()
    names = [str(records.feature_names[at]).removeprefix("mean ") for at in MEASURES]
    rows = []
    for values, target in zip(records.data, records.target, strict=True):
        measured = ", ".join(
            f"{name} {values[at]:.3g}" for name, at in zip(names, MEASURES, strict=True)
        )
        diagnosis = str(records.target_names[target])
        rows.append({"prompt": f"{measured}. Diagnosis:", "completion": f" {diagnosis}"})
    shares = {
        "hospital-a.records": rows[0:450:2],
        "hospital-b.records": rows[1:450:2],
        "hospital-c.held-out": rows[450:],
    }
    return lines(folder, shares)
