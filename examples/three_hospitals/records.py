"""Real records for the demo: 569 patients of scikit-learn's breast cancer data, in three hospitals.

Each patient becomes one instruction: ten measurements of the cell nuclei in a biopsy (the largest
values seen), each as a digit on the scale between the smallest and largest value that the data
set's description prints; the diagnosis is the answer. Every hospital keeps some of its patients for
testing. The split is stratified by diagnosis and the same everywhere.

    python examples/three_hospitals/records.py OUT      writes OUT/hospital-*/biopsies[-test].jsonl
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

HOSPITALS = ("hospital-a", "hospital-b", "hospital-c")
TRAIN, TEST = "biopsies", "biopsies-test"
# One patient in five is kept for testing.
TEST_EVERY = 5
SPLIT_SEED = 569
# Name in the instruction → range of the "worst" value, from the description of the data set. The
# scale is public, so no hospital learns from it what another one measured.
SCALES = {
    "radius": (7.93, 36.04),
    "texture": (12.02, 49.54),
    "perimeter": (50.41, 251.2),
    "area": (185.2, 4254.0),
    "smoothness": (0.071, 0.223),
    "compactness": (0.027, 1.058),
    "concavity": (0.0, 1.252),
    "concave points": (0.0, 0.291),
    "symmetry": (0.156, 0.664),
    "fractal dimension": (0.055, 0.208),
}


def make_records(
    hospitals: Sequence[str] = HOSPITALS,
) -> dict[str, dict[str, list[dict[str, str]]]]:
    """Records by hospital and dataset name, each ``{"prompt": …, "completion": …}``."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    columns = [list(data.feature_names).index(f"worst {name}") for name in SCALES]
    records: dict[str, dict[str, list[dict[str, str]]]] = {
        hospital: {TRAIN: [], TEST: []} for hospital in hospitals
    }
    shuffled = random.Random(SPLIT_SEED)  # noqa: S311 - a reproducible split, not a secret
    for diagnosis in (0, 1):
        patients = [index for index, label in enumerate(data.target) if label == diagnosis]
        shuffled.shuffle(patients)
        for position, patient in enumerate(patients):
            hospital = hospitals[position % len(hospitals)]
            kept = (position // len(hospitals)) % TEST_EVERY == 0
            values = [float(data.data[patient, column]) for column in columns]
            records[hospital][TEST if kept else TRAIN].append(
                {
                    "prompt": _instruction(values),
                    "completion": f" {data.target_names[diagnosis]}",
                }
            )
    for datasets in records.values():
        for rows in datasets.values():
            shuffled.shuffle(rows)
    return records


def write_records(out: Path, hospitals: Sequence[str] = HOSPITALS) -> dict[str, int]:
    """Write every hospital's JSONL files.

    Args:
        out: Folder that gets one folder per hospital.
        hospitals: Their names.

    Returns:
        Number of patients by ``hospital/dataset``.
    """
    counts = {}
    for hospital, datasets in make_records(hospitals).items():
        folder = out / hospital
        folder.mkdir(parents=True, exist_ok=True)
        for name, rows in datasets.items():
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}.jsonl").write_text(lines, "utf-8")
            counts[f"{hospital}/{name}"] = len(rows)
    return counts


def _instruction(values: list[float]) -> str:
    described = ", ".join(
        f"{name} {_digit(value, *scale)}"
        for value, (name, scale) in zip(values, SCALES.items(), strict=True)
    )
    return f"Biopsy: {described}. Diagnosis:"


def _digit(value: float, low: float, high: float) -> int:
    return min(9, max(0, int(10 * (value - low) / (high - low))))


if __name__ == "__main__":
    for name, count in write_records(Path(sys.argv[1])).items():
        print(f"{name}: {count} patients")
