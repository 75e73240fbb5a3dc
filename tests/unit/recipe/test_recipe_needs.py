"""Which thresholds a recipe takes, from nothing but the recipe."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from world import OWNERS, RECIPE

from sealtrain.recipe.needs import needs_of
from sealtrain.recipe.schema import parse_recipe


def recipe(**changed: Any) -> Any:
    document = copy.deepcopy(dict(RECIPE)) | changed
    return parse_recipe(document)


def test_training_lets_a_model_out_and_reads_the_data_of_its_owners() -> None:
    needs = needs_of(recipe())
    assert needs.actions == ("approve", "export_model")
    assert needs.owners == OWNERS


@pytest.mark.parametrize("logs", ["error-summary", "structured"])
def test_any_log_beyond_none_raises_it(logs: str) -> None:
    policy = dict(RECIPE["release_policy"]) | {"logs": logs}
    assert "raise_logging" in needs_of(recipe(release_policy=policy)).actions
    policy["logs"] = "none"
    assert "raise_logging" not in needs_of(recipe(release_policy=policy)).actions


def test_an_evaluation_lets_no_model_out() -> None:
    measured = recipe(
        phase="evaluate",
        model={"sealed": "weights", "tokenizer": {"kind": "bytes"}},
        datasets=[
            {"owner": "hospital-b", "name": "weights", "role": "model"},
            {"owner": "hospital-a", "name": "biopsies", "role": "test"},
        ],
        columns={"text": "text", "label": "label"},
        num_labels=2,
        trainer={},
        peft=None,
        release_policy=dict(RECIPE["release_policy"]) | {"metrics": ["accuracy"]},
    )
    needs = needs_of(measured)
    assert needs.actions == ("approve",)
    assert needs.owners == ("hospital-a", "hospital-b")
