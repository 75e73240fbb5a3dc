"""The benchmark that the documentation quotes runs from end to end. What it measures is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_the_benchmark_prints_every_promised_figure(repository: Path) -> None:
    script = repository / "benchmarks" / "sealed_vs_plain.py"
    done = subprocess.run(
        [sys.executable, str(script), "--json", "--quick"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    figures = results["ratios"] | results["command_seconds"]
    assert results["bars"].keys() == {"rows", "rows_map_style", "training", "help", "verify"}
    assert results["bars"].keys() <= figures.keys()
    assert all(figure > 0 for figure in figures.values())
    assert results["same_losses"]
    assert {"processor", "processors", "flags", "python", "pyarrow"} <= results["machine"].keys()
