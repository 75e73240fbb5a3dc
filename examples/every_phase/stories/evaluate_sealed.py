"""The story of ``evaluate``, with the classifier sealed by the hospital that owns it."""

from __future__ import annotations

from pathlib import Path

from stories import evaluate


def prepare(folder: Path) -> dict[str, Path]:
    """Records of two hospitals, and the model folder of a third."""
    records = evaluate.prepare(folder)
    return {**records, "hospital-a.risk-model": folder / "models" / "classifier"}
