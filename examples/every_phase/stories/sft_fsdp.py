"""178 real wines as sentences: two processes that share one model learn to name the cultivar."""

from __future__ import annotations

from pathlib import Path

from making import lines
from sklearn.datasets import load_wine

TRAINER = {"max_steps": 60, "save_steps": 30}
MEASURES = (0, 6, 9, 11, 12)
SHORT = ("alcohol", "flavanoids", "colour", "dilution", "proline")


def prepare(folder: Path) -> dict[str, Path]:
    """Write one file of prompts and completions a dataset."""
    records = load_wine()
    rows = []
    for values, target in zip(records.data, records.target, strict=True):
        measured = ", ".join(
            f"{name} {values[at]:.3g}" for name, at in zip(SHORT, MEASURES, strict=True)
        )
        rows.append({"prompt": f"{measured}. Cultivar:", "completion": f" {'ABC'[target]}"})
    # The records come sorted by cultivar: everyone gets some of each.
    shares = {
        "grower-a.wines": [row for at, row in enumerate(rows) if at % 5 in (0, 1)],
        "grower-b.wines": [row for at, row in enumerate(rows) if at % 5 in (2, 3)],
        "grower-c.held-out": rows[4::5],
    }
    return lines(folder, shares)
