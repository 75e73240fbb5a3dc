"""The counts of the two verifiers are those that were recorded, of the questions there are now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from lock_mutants import locks
from manifest_world import make_world
from mutants import Mutants
from second_counts import FIGURES, PAGE, rendered

ROWS = json.loads(FIGURES.read_text("utf-8"))


def test_the_page_says_what_was_counted() -> None:
    assert PAGE.read_text("utf-8") == rendered(ROWS), "tests/support/second_counts.py --render"
    assert len(ROWS) == 6
    assert {differ for _, differ in ROWS.values()} == {0}


@pytest.mark.nightly
def test_every_mutant_that_there_is_now_was_counted(tmp_path: Path) -> None:
    world = make_world(tmp_path / "world")
    mutants = len(Mutants(world, world.manifest()).all())
    assert ROWS["mutants of a manifest, signed anew"][0] == mutants
    assert ROWS["mutants of locks, rules between fields aside"][0] > 1000 * len(
        locks(tmp_path / "locks")
    )
