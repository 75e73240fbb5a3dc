"""The page of two ranks says what the schema answers, and what is played in two ranks, no more."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks_matrix import BACKENDS, ROWS, refusal, section
from ranks_world import recipe_of

from sealtrain.recipe.schema import PHASES

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "every_phase"


@pytest.fixture(scope="module")
def ranks() -> Any:
    sys.path.insert(0, str(FOLDER))
    try:
        spec = importlib.util.spec_from_file_location("ranks_page", FOLDER / "ranks.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    finally:
        sys.path.remove(str(FOLDER))


def test_the_page_says_what_the_schema_answers(ranks: Any) -> None:
    page = ranks.PAGE.read_text("utf-8")
    rest = ranks.written_elsewhere(page)
    assert page == ranks.rendered(ranks.recorded(page), rest), (
        "python examples/every_phase/ranks.py"
    )
    assert rest == section(), "python tests/support/ranks_matrix.py"


def test_a_recipe_that_is_refused_did_not_run(ranks: Any) -> None:
    refused = {
        path.stem
        for path in ranks.RECIPES.glob("*.yaml")
        if ranks.refusal(ranks.in_two_ranks(ranks.document(path.stem), None))
    }
    page = ranks.PAGE.read_text("utf-8")
    assert refused
    assert not refused & ranks.recorded(page).keys()
    ran = {"sft-lora": ("trl", 1)} | dict.fromkeys(refused, ("trl", 1))
    assert ranks.recorded(ranks.rendered(ran, "")) == {"sft-lora": ("trl", 1)}


def test_every_phase_has_a_row_for_each_adapter() -> None:
    rows = [(phase.split()[0], adapter) for phase, adapter in ROWS]
    assert set(rows) == {(phase, kind) for phase in PHASES for kind in ("full", "LoRA", "QLoRA")}


def test_a_row_without_a_play_is_refused_by_every_backend() -> None:
    """Only a play by name is trained by ``test_ranks_phases``."""
    unplayed = [play for play in ROWS.values() if not isinstance(play, str)]
    assert unplayed
    for play in unplayed:
        assert all(refusal(play, backend) for backend in BACKENDS.values())


PLAYED = [row for row, play in ROWS.items() if isinstance(play, str)]


@pytest.mark.parametrize("row", PLAYED, ids=" ".join)
def test_a_row_is_of_the_phase_and_adapter_that_it_names(row: tuple[str, str]) -> None:
    recipe = recipe_of(ROWS[row])
    kind = "full" if recipe.peft is None else "LoRA"
    if recipe.peft is not None and recipe.peft.quantization is not None:
        kind = "QLoRA"
    assert (recipe.phase, kind) == (row[0].split()[0], row[1])
