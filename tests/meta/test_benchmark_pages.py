"""Pages of figures: each names the machine, and the command that made it, which still exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = REPOSITORY / "docs" / "reference" / "benchmarks"
_MADE_BY = re.compile(r"Made by `python (benchmarks/[a-z_]+\.py)((?: [^`]+)?)` in \d+ s")


@pytest.mark.parametrize("name", ["scale", "gpu-twin", "medical", "verifiers"])
def test_a_page_names_its_machine_and_a_command_that_exists(name: str) -> None:
    text = (PAGES / f"{name}.md").read_text("utf-8")
    assert re.search(r"\d+ processors; python 3\.", text)
    made = _MADE_BY.search(text)
    assert made is not None
    script, options = REPOSITORY / made[1], re.findall(r"--[a-z]+", made[2])
    asked = subprocess.run(
        [sys.executable, str(script), "--help"], capture_output=True, text=True, check=True
    )
    assert options
    assert set(options) <= set(re.findall(r"--[a-z]+", asked.stdout))
