"""569 real biopsies of three hospitals; a quarter is kept for the test."""

from __future__ import annotations

from pathlib import Path

from making import tables
from sklearn.datasets import load_breast_cancer


def prepare(folder: Path) -> dict[str, Path]:
    """Write one CSV file a dataset."""
    records = load_breast_cancer()
    names = [str(name) for name in records.feature_names[:10]]
    labels = [str(records.target_names[target]) for target in records.target]
    rows = [[*values[:10], label] for values, label in zip(records.data, labels, strict=True)]
    shares = {
        "hospital-a.biopsies": rows[0::4],
        "hospital-b.biopsies": rows[1::4],
        "hospital-c.biopsies": rows[2::4],
        "hospital-c.biopsies-test": rows[3::4],
    }
    return tables(folder, [*names, "diagnosis"], shares)
