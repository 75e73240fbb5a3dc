"""The backend of a recipe: one spelling of each meaning, and no name that nothing stands behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from carrying import carries

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.errors import LockInvalid, RecipeInvalid
from sealtrain.recipe.backends import DEFAULT
from sealtrain.recipe.diff import diff
from sealtrain.recipe.lock import LockedRecipe, parse_lock
from sealtrain.recipe.schema import parse_recipe

Locks = Callable[..., LockedRecipe]


def test_a_recipe_without_backend_locks_to_the_bytes_it_always_had(
    sft: dict[str, Any], lock_of: Locks
) -> None:
    without = lock_of(sft)
    assert without.lock.recipe.backend == DEFAULT
    assert b"backend" not in without.lock_bytes
    assert lock_of(sft | {"backend": {"name": "trl"}}).lock_bytes == without.lock_bytes
    assert lock_of(sft | {"backend": {"name": "trl", "ranks": 1}}).lock_bytes == without.lock_bytes


def test_a_lock_that_writes_the_default_out_is_not_normalised(
    sft: dict[str, Any], lock_of: Locks
) -> None:
    document = parse_json(lock_of(sft).lock_bytes)
    document["recipe"]["backend"] = {"name": "trl", "ranks": 1}
    with pytest.raises(LockInvalid, check=carries(check="lock")):
        parse_lock(canonical_json(document))


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("trl", "backend"),
        (None, "backend"),
        ({}, "name"),
        ({"name": "torch"}, "torch"),
        ({"name": "accelerate"}, "accelerate"),
        ({"name": "trl", "ranks": 0}, "ranks"),
        ({"name": "trl", "ranks": 65}, "ranks"),
        ({"name": "trl", "ranks": "2"}, "ranks"),
        ({"name": "trl", "zero_stage": 1}, "zero_stage"),
        ({"name": "trl", "rank": 1}, "rank"),
        ({"name": "fsdp", "reshard": False}, "reshard"),
        ({"name": "deepspeed"}, "zero_stage"),
        ({"name": "deepspeed", "zero_stage": 4}, "zero_stage"),
        ({"name": "deepspeed", "zero_stage": 1, "offload": "nvme"}, "offload"),
    ],
)
def test_what_no_backend_knows_is_refused(sft: dict[str, Any], backend: Any, why: str) -> None:
    with pytest.raises(RecipeInvalid, match=why):
        parse_recipe(sft | {"backend": backend})


def test_a_backend_is_in_lock_and_difference(sft: dict[str, Any], lock_of: Locks) -> None:
    before = lock_of(sft).lock
    after = lock_of(sft | {"backend": {"name": "fsdp", "ranks": 4}}).lock
    assert after.to_dict()["recipe"]["backend"] == {
        "name": "fsdp",
        "ranks": 4,
        "reshard_after_forward": True,
    }
    found = {change.path: (change.kind, change.area) for change in diff(before, after)}
    assert found == {
        f"recipe.backend.{name}": ("added", "trainer")
        for name in ("name", "ranks", "reshard_after_forward")
    }


@pytest.mark.parametrize(
    "backend",
    [{"name": "fsdp"}, {"name": "trl", "ranks": 2}, {"name": "deepspeed", "zero_stage": 2}],
    ids=lambda backend: backend["name"],
)
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"scripts": ["train.py"]}, "script"),
        ({"trainer": {"max_steps": 2, "packing": True}}, "packing"),
        ({"trainer": {"max_steps": 2, "padding_free": True, "max_length": None}}, "padding_free"),
        ({"peft": {"method": "prompt_tuning", "num_virtual_tokens": 2}}, "prompt_tuning"),
    ],
)
def test_what_a_backend_cannot_train_is_refused(
    sft: dict[str, Any], backend: Any, changed: dict[str, Any], why: str
) -> None:
    parse_recipe(sft | {"backend": backend})
    parse_recipe(sft | changed)
    with pytest.raises(RecipeInvalid, match=why):
        parse_recipe(sft | {"backend": backend} | changed)


def test_other_phases_train_in_one_process(tabular: dict[str, Any]) -> None:
    parse_recipe(tabular)
    with pytest.raises(RecipeInvalid, match=r"backend\.ranks"):
        parse_recipe(tabular | {"backend": {"name": "trl", "ranks": 2}})


def test_adapters_over_weights_of_another_kind_are_not_shared_out(sft: dict[str, Any]) -> None:
    half = sft | {"model": sft["model"] | {"dtype": "bfloat16"}}
    parse_recipe(half | {"backend": {"name": "trl", "ranks": 2}})
    with pytest.raises(RecipeInvalid, match="float32"):
        parse_recipe(half | {"backend": {"name": "fsdp"}})
