"""What ``make demo`` plays comes to its end, and what it shows is there."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from stage import interpreter
from variants import variants

pytestmark = pytest.mark.long

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
STEPS = 300


@pytest.mark.slow
@pytest.mark.parametrize("steps", variants([STEPS, 40], each_time=[40]))
def test_three_hospitals_train_and_plaintext_gives_the_same_losses(
    tmp_path: Path, steps: int
) -> None:
    out, story = tmp_path / "out", tmp_path / "three_hospitals"
    shutil.copy(EXAMPLES / "staging.py", tmp_path)
    shutil.copytree(EXAMPLES / "three_hospitals", story)
    recipe = (story / "recipe.yaml").read_text()
    assert recipe.count(f"max_steps: {STEPS}\n") == 1
    if steps != STEPS:
        recipe = recipe.replace(f"max_steps: {STEPS}\n", f"max_steps: {steps}\n")
        recipe = recipe.replace("logging_steps: 10\n", f"logging_steps: {steps // 10}\n")
        (story / "recipe.yaml").write_text(recipe)
    done = subprocess.run(
        [interpreter(), story / "demo.py", "--out", out],
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
