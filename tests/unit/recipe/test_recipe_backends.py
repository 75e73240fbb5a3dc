"""The backend of a recipe: one spelling of each meaning, and no name that nothing stands behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.errors import LockInvalid, RecipeInvalid
from sealtrain.recipe.backends import DEFAULT
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
    with pytest.raises(LockInvalid, match="normalised"):
        parse_lock(canonical_json(document))


@pytest.mark.parametrize(
    ("backend", "why"),
    [
        ("trl", "backend"),
        (None, "backend"),
        ({}, "name"),
        ({"name": "torch"}, "expected tags"),
        ({"name": "accelerate"}, "expected tags"),
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


@pytest.mark.parametrize(
    "backend",
    [{"name": "fsdp"}, {"name": "deepspeed", "zero_stage": 2}, {"name": "trl", "ranks": 2}],
)
def test_names_without_code_are_refused(sft: dict[str, Any], backend: Any) -> None:
    with pytest.raises(RecipeInvalid, match="cannot train yet"):
        parse_recipe(sft | {"backend": backend})
