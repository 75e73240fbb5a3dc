"""The recipes that ship: each validates, is explained, and locks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from sealtrain.recipe.lock import Installation, lock_recipe
from sealtrain.recipe.modelspec import ModelFromFolder
from sealtrain.recipe.schema import load_recipe

FOLDER = Path(__file__).resolve().parents[3] / "recipes"
READY = sorted(FOLDER.glob("*.yaml"))


def test_both_phases_are_shown_with_and_without_adapters() -> None:
    kinds = {(r.phase, r.columns.kind, r.peft is not None) for r in map(load_recipe, READY)}
    assert kinds >= {
        ("sft", "prompt-completion", False),
        ("sft", "messages", True),
        ("classify", "text", True),
        ("classify", "tabular", False),
    }


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_a_ready_recipe_is_named_as_its_file_and_explained(path: Path) -> None:
    recipe = load_recipe(path)
    assert recipe.name == path.stem
    assert recipe.description
    assert path.read_text("utf-8").startswith("# ")


@pytest.mark.parametrize("path", READY, ids=lambda path: path.stem)
def test_a_ready_recipe_locks(
    path: Path, tmp_path: Path, model_folder: Path, installation: Installation
) -> None:
    here = tmp_path / "recipes" / path.name
    here.parent.mkdir()
    here.write_bytes(path.read_bytes())
    recipe = load_recipe(path)
    for model in (recipe.model, *recipe.further_models.values()):
        if isinstance(model, ModelFromFolder):
            shutil.copytree(model_folder, (here.parent / model.path).resolve())
    locked = lock_recipe(
        here, consortium_id="c0" * 32, brokers=["b0" * 32], installation=installation
    )
    assert locked.lock.recipe == load_recipe(path)
