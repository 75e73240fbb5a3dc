"""The page of two ranks says what the schema answers, and what is played in two ranks, no more."""

from __future__ import annotations

import pytest
from ranks_matrix import BACKENDS, ROWS, refusal, section
from ranks_world import recipe_of

from every_phase import program
from sealtrain.recipe.schema import PHASES

RANKS = program("ranks")


def test_the_page_says_what_the_schema_answers() -> None:
    page = RANKS.PAGE.read_text("utf-8")
    rest = RANKS.written_elsewhere(page)
    assert page == RANKS.rendered(RANKS.recorded(page), rest), (
        "python examples/every_phase/ranks.py"
    )
    assert rest == section(), "python tests/support/ranks_matrix.py"


def test_a_recipe_that_is_refused_did_not_run() -> None:
    refused = {
        path.stem
        for path in RANKS.RECIPES.glob("*.yaml")
        if RANKS.refusal(RANKS.in_two_ranks(RANKS.document(path.stem), None))
    }
    page = RANKS.PAGE.read_text("utf-8")
    assert refused
    assert not refused & RANKS.recorded(page).keys()
    ran = {"sft-lora": ("trl", 1)} | dict.fromkeys(refused, ("trl", 1))
    assert RANKS.recorded(RANKS.rendered(ran, "")) == {"sft-lora": ("trl", 1)}


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
