"""What ``make demo`` plays comes to its end, and what it shows is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from stage import interpreter

pytestmark = pytest.mark.long

DEMO = Path(__file__).resolve().parents[2] / "examples" / "three_hospitals" / "demo.py"


@pytest.mark.slow
def test_three_hospitals_train_and_plaintext_gives_the_same_losses(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = subprocess.run(
        [interpreter(), DEMO, "--out", out],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr
    refused = re.search(r"refused \[approvals-missing\]: (.*)", done.stdout)
    assert refused
    assert re.findall(r"hospital-[abc]", refused[1]) == ["hospital-c"]
    assert re.search(r"all [1-9]\d+ logged losses are equal", done.stdout)
    assert "SIMULATED — NOT ATTESTED" in done.stdout
    assert {path.name for path in (out / "guest" / "out").iterdir()} >= {"manifest.json", "model"}
    assert (out / "hospital-a" / "model" / "model.safetensors").is_file()
    assert (out / "report.html").is_file()
