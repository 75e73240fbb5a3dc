"""Collection is cheap: it comes before the first test, also of a run of one file."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from collecting import LOADED

ROOT = Path(__file__).resolve().parents[2]


def test_collection_loads_no_training_library(request: pytest.FixtureRequest) -> None:
    """Each package names the file that loaded it: see ``tests/support/collecting.py``."""
    assert request.config.stash[LOADED] == {}


def test_no_test_outlasts_the_time_after_which_its_process_is_ended(
    pytestconfig: pytest.Config,
) -> None:
    """The watchdog (``hanging.py``) ends the whole process, and every other test of it."""
    patience = float(pytestconfig.getini("hang_seconds"))
    nights = re.findall(r"hang_seconds=([0-9]+)", (ROOT / "Makefile").read_text())
    (night,) = set(map(float, nights))
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text("utf-8")
        longest = max(map(int, re.findall(r"mark\.timeout\(([0-9]+)", text)), default=0)
        assert longest < (night if re.search(r"mark[.]nightly", text) else patience), path.name
