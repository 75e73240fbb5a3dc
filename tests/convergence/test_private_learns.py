"""Private training learns: real biopsies of three hospitals at epsilon 8."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from collecting import COLLECTING
from training_world import SECRET, checkpoint_store, run, seal_records, sources_of

from sealtrain.recipe.schema import load_recipe, parse_recipe

if not COLLECTING:
    from sklearn.datasets import load_breast_cancer

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "classify-dp.yaml"


@pytest.fixture(scope="module")
def sealed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    data = load_breast_cancer()
    folder = tmp_path_factory.mktemp("biopsies")
    rows = [
        {**dict(zip(data.feature_names, map(float, features), strict=True)),
         "diagnosis": str(data.target_names[label])}
        for features, label in zip(data.data, data.target, strict=True)
    ]  # fmt: skip
    parts = {
        "hospital-a.biopsies": rows[0::4],
        "hospital-b.biopsies": rows[1::4],
        "hospital-c.biopsies": rows[2::4],
        "hospital-c.biopsies-test": rows[3::4],
    }
    paths = {}
    for key, part in parts.items():
        paths[key] = folder / f"{key}.jsonl"
        paths[key].write_text("".join(json.dumps(row) + "\n" for row in part), "utf-8")
    return dict(seal_records(paths, tmp_path_factory.mktemp("sealed")))


def test_the_ready_recipe_learns_within_its_epsilon(sealed: dict[str, Any], tmp_path: Path) -> None:
    recipe = load_recipe(RECIPE)
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), secret=SECRET)
    metrics, spent = ran.trained.metrics, ran.trained.privacy
    assert spent["epsilon"] <= 8.0
    assert metrics["accuracy"] >= metrics["majority"] + 0.2
    assert metrics["auroc"] >= 0.9


def test_almost_no_budget_teaches_less(sealed: dict[str, Any], tmp_path: Path) -> None:
    document = load_recipe(RECIPE).to_dict()
    document["privacy"] |= {"noise_multiplier": 300.0, "accountant": "rdp"}
    recipe = parse_recipe(document)
    ran = run(recipe, sources_of(recipe, sealed), checkpoint_store(tmp_path), secret=SECRET)
    assert ran.trained.metrics["accuracy"] <= ran.trained.metrics["majority"] + 0.15
