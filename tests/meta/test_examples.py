"""The examples say what they promise: few changed lines, a story for every ready recipe."""

from __future__ import annotations

import difflib
from pathlib import Path

import pytest

from sealtrain.recipe.schema import load_recipe

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
RECIPES = EXAMPLES.parent / "recipes"


def test_a_script_of_ones_own_needs_an_import_and_three_changed_lines() -> None:
    before, after = (
        (EXAMPLES / "own_script" / name).read_text().splitlines()[1:]
        for name in ("before.py", "train.py")
    )
    new = [line[2:] for line in difflib.ndiff(before, after) if line.startswith("+ ")]
    written = [line.strip() for line in new if line.strip()]
    assert written[0] == "import sealtrain"
    assert len(written) == 4
    assert all("sealtrain." in line for line in written[1:])


def test_the_recipe_of_that_script_holds() -> None:
    recipe = load_recipe(EXAMPLES / "own_script" / "recipe.yaml")
    assert recipe.scripts == ("train.py",)


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("scripts/*/recipe.yaml")), ids=str)
def test_the_recipes_of_other_scripts_hold(path: Path) -> None:
    assert load_recipe(path).scripts == ("train.py",)


@pytest.mark.parametrize("recipe", sorted(RECIPES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_ready_recipe_has_a_story(recipe: Path) -> None:
    story = EXAMPLES / "every_phase" / "stories" / f"{recipe.stem.replace('-', '_')}.py"
    assert story.is_file(), f"{recipe.name} has no story"
    assert "def prepare(folder: Path)" in story.read_text()
