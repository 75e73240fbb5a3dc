"""What a federation may promise patients, and what would break it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from policies import intel

from sealtrain.base.canonical import parse_json
from sealtrain.recipe.collaborations.patients import patient_privacy_of
from sealtrain.recipe.diff import diff
from sealtrain.recipe.errors import RecipeInvalid
from sealtrain.recipe.lock import LockedRecipe, parse_lock
from sealtrain.recipe.schema import parse_recipe

pytestmark = [pytest.mark.claim("C78"), pytest.mark.claim("C550")]

Document = dict[str, Any]
PROMISED: Document = {
    "patient": "patient",
    "records_a_patient": 4,
    "patients_a_round": 20,
    "target_epsilon": 8,
    "delta": 1e-5,
}
FEDERATED: Document = {
    "kind": "federated",
    "policy": "policy.yaml",
    "rounds": 30,
    "local_steps": 1,
    "min_parties": 2,
    "aggregation": "ffa",
}


@pytest.fixture
def hiding(sft: Document) -> Document:
    return sft | {
        "phase": "classify",
        "columns": {"text": "note", "label": "finding"},
        "labels": ["benign", "malignant"],
        "datasets": [
            {k: v for k, v in dataset.items() if k != "weight"} for dataset in sft["datasets"]
        ],
        "release_policy": sft["release_policy"] | {"metrics": ["accuracy"]},
        "collaboration": FEDERATED | {"patient_privacy": PROMISED},
    }


def test_defaults_are_written_out_and_the_column_is_no_input(hiding: Document) -> None:
    recipe: Any = parse_recipe(hiding)
    promised = patient_privacy_of(recipe)
    assert promised is not None
    assert (promised.max_patient_norm, promised.accountant, promised.noise_multiplier) == (
        1.0,
        "prv",
        None,
    )
    assert promised.mechanism().max_grad_norm == 1.0
    assert recipe.columns.names == ("note", "finding")


def test_a_recipe_without_it_locks_to_the_bytes_it_always_had(
    hiding: Document, lock_of: Callable[..., LockedRecipe], tmp_path: Path
) -> None:
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(intel()), "utf-8")
    with_it = lock_of(hiding)
    assert parse_lock(with_it.lock_bytes) == with_it.lock
    without = lock_of(hiding | {"collaboration": FEDERATED})
    assert b"patient" not in without.lock_bytes
    null = lock_of(hiding | {"collaboration": FEDERATED | {"patient_privacy": None}})
    assert null.lock_bytes == without.lock_bytes
    document = parse_json(with_it.lock_bytes)["recipe"]["collaboration"]["patient_privacy"]
    assert document == PROMISED | {
        "max_patient_norm": 1.0,
        "noise_multiplier": None,
        "accountant": "prv",
    }
    changes = diff(without.lock, with_it.lock)
    assert {(change.area, change.severity) for change in changes} == {("collaboration", "critical")}


@pytest.mark.parametrize(
    ("place", "changed", "named"),
    [
        ("collaboration", {"aggregation": "exact"}, "aggregation ffa"),
        ("collaboration", {"aggregation": "median"}, "aggregation ffa"),
        ("collaboration", {"local_steps": 2, "rounds": 15}, "local_steps 1"),
        ("collaboration", {"max_update_norm": 1.0}, "max_update_norm"),
        ("collaboration", {"products": {"pads": "own"}}, "patient_privacy"),
        ("promised", {"patient": "note"}, r"patient_privacy\.patient\b"),
        ("promised", {"patient": "finding"}, r"patient_privacy\.patient\b"),
        ("promised", {"records_a_patient": 0}, "records_a_patient"),
        ("promised", {"patients_a_round": 0}, "patients_a_round"),
        ("promised", {"target_epsilon": 0}, "target_epsilon"),
        ("promised", {"delta": 0.1}, "delta"),
        ("promised", {"max_patient_norm": 0}, "max_patient_norm"),
        ("promised", {"noise_multiplier": 0.01}, "noise_multiplier"),
        ("promised", {"accountant": "gdp"}, "accountant"),
        ("promised", {"budgets": {}}, "budgets"),
        ("release_policy", {"metrics": ["accuracy", "loss"]}, "loss"),
        ("peft", {"use_dora": True}, "use_dora"),
        ("peft", {"lora_dropout": 0.1}, r"peft\.lora_dropout"),
        ("trainer", {"weight_decay": 0.1}, "trainer.weight_decay"),
        ("trainer", {"lr_scheduler_type": "cosine"}, "trainer.lr_scheduler_type"),
        ("trainer", {"gradient_accumulation_steps": 2}, "gradient_accumulation_steps"),
        ("trainer", {"bf16": True}, "trainer.bf16"),
    ],
)
def test_what_would_break_the_promise_is_refused(
    place: str, changed: Document, named: str, hiding: Document
) -> None:
    where = hiding["collaboration"]["patient_privacy"] if place == "promised" else hiding[place]
    other = where | changed
    if place == "promised":
        place, other = "collaboration", FEDERATED | {"patient_privacy": other}
    with pytest.raises(RecipeInvalid, match=named):
        parse_recipe(hiding | {place: other})


def test_other_phases_weights_and_varied_records_are_refused(
    sft: Document, hiding: Document
) -> None:
    how = hiding["collaboration"]
    with pytest.raises(RecipeInvalid, match=r"collaboration\.patient_privacy.*\bclassify\b"):
        parse_recipe(sft | {"collaboration": how})
    with pytest.raises(RecipeInvalid, match=r"datasets\.weight"):
        parse_recipe(hiding | {"datasets": sft["datasets"]})
    with pytest.raises(RecipeInvalid, match="augmentation"):
        parse_recipe(hiding | {"augmentation": {"token_dropout": 0.1}})
