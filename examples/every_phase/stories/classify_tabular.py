"""569 real biopsies, shared out over three hospitals by the records' own order."""

from __future__ import annotations

from pathlib import Path

from making import tables
from sklearn.datasets import load_breast_cancer

TRAINER = {"max_steps": 200, "save_steps": 100}


def prepare(folder: Path) -> dict[str, Path]:
    """Write one CSV file a dataset."""
    records = load_breast_cancer()
    names = [str(name) for name in records.feature_names[:10]]
    labels = [str(records.target_names[target]) for target in records.target]
    rows = [[*values[:10], label] for values, label in zip(records.data, labels, strict=True)]
    shares = {
        "hospital-a.biopsies": rows[0:450:3],
        "hospital-b.biopsies": rows[1:450:3],
        "hospital-c.biopsies": rows[2:450:3],
        "hospital-c.biopsies-test": rows[450:],
    }
    return tables(folder, [*names, "diagnosis"], shares)
