"""Every ready recipe in two ranks on CPU: it runs, or is refused by name before it is locked."""

from __future__ import annotations

from pathlib import Path

import pytest

from every_phase import program
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.schema import parse_recipe

RANKS = program("ranks")
NAMES = sorted(path.stem for path in RANKS.RECIPES.glob("*.yaml"))
CANNOT = {
    "classify-dp": "dp: sgd",
    "sft-axolotl": "backend.axolotl.ranks",
    "sft-dora": "trainer.packing",
    "sft-lora-dp": "dp: sgd",
    "sft-unsloth": "backend.unsloth.ranks",
}
"""Recipe → what its refusal names (spec/recipe.md §2.13)."""


@pytest.mark.parametrize("name", NAMES)
def test_a_ready_recipe_takes_two_ranks_or_says_why_not(name: str) -> None:
    document = RANKS.in_two_ranks(RANKS.document(name), None)
    if name not in CANNOT:
        assert parse_recipe(document).backend.ranks == 2
        return
    with pytest.raises(RecipeInvalid) as refused:
        parse_recipe(document)
    assert CANNOT[name] in f"{refused.value} {refused.value.field}"


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in NAMES if name not in CANNOT])
def test_a_ready_recipe_trains_in_two_ranks(name: str, tmp_path: Path) -> None:
    """``played`` ends with an error unless the verified manifest states two ranks."""
    backend, _ = RANKS.played(name, tmp_path)
    assert backend == RANKS.document(name).get("backend", {"name": "trl"})["name"]
