"""The story of ``evaluate``, with the classifier sealed by the hospital that owns it."""

from __future__ import annotations

import importlib.util
from pathlib import Path


def prepare(folder: Path) -> dict[str, Path]:
    """Records of two hospitals, and the model folder of a third."""
    place = Path(__file__).with_name("evaluate.py")
    spec = importlib.util.spec_from_file_location("story_evaluate", place)
    assert spec is not None
    assert spec.loader is not None
    story = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(story)
    records: dict[str, Path] = story.prepare(folder)
    return {**records, "hospital-a.risk-model": folder / "models" / "classifier"}
