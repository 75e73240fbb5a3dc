"""A reward model is an input like the base model: pinned, shown, and not to be swapped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from carrying import carries
from manifest_world import NOW, World, make_world
from world import RECIPE

from sealtrain.base.canonical import canonical_json
from sealtrain.base.digests import sha256_hex
from sealtrain.errors import RecipeChanged
from sealtrain.manifest.errors import ClaimContradicted
from sealtrain.manifest.report import render
from sealtrain.manifest.verify import examine, verify_manifest

Facts = dict[str, Any]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    folder = tmp_path_factory.mktemp("rewarded")
    scorer = folder / "scorer"
    scorer.mkdir()
    (scorer / "config.json").write_text('{"model_type": "llama"}')
    (scorer / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    recipe = dict(RECIPE) | {
        "phase": "rlhf",
        "columns": {"prompt": "prompt"},
        "trainer": {"algorithm": "ppo", "max_steps": 300},
        "reward": {"model": {"path": "scorer", "tokenizer": {"kind": "bytes"}}},
    }
    return make_world(folder, recipe)


def verify(world: World, change: Callable[[Facts], None] | None = None) -> Any:
    data = world.manifest(change)
    return verify_manifest(data, world.trust(), artefacts=world.artefacts, now=NOW)


def test_verification_and_report_name_the_reward_model(world: World) -> None:
    digest = world.locked.lock.models["reward"].model.sha256
    details = {check.name: check.detail for check in verify(world).checks}
    assert f"reward model {digest[:16]}" in details["recipe"]
    page = render(examine(world.manifest(), world.trust(), artefacts=world.artefacts, now=NOW))
    assert "Reward model" in page
    assert digest in page


@pytest.mark.parametrize("rehashed", [False, True])
def test_another_reward_model_is_not_what_was_measured(world: World, rehashed: bool) -> None:
    def swapped(facts: Facts) -> None:
        facts["recipe"]["lock"]["models"]["reward"]["model"]["sha256"] = "00" * 32
        if rehashed:
            facts["recipe"]["recipe_hash"] = sha256_hex(canonical_json(facts["recipe"]["lock"]))

    with pytest.raises(
        RecipeChanged if rehashed else ClaimContradicted,
        check=carries(check="recipe" if rehashed else "recipe hash"),
    ):
        verify(world, swapped)


@pytest.mark.parametrize(
    "models",
    [
        {},
        {"reward": {"model": {"kind": "config", "sha256": "00" * 32}, "tokenizer": None}},
    ],
)
def test_a_reward_model_cannot_be_left_out(world: World, models: dict[str, Any]) -> None:
    def dropped(facts: Facts) -> None:
        facts["recipe"]["lock"]["models"] = models
        facts["recipe"]["recipe_hash"] = sha256_hex(canonical_json(facts["recipe"]["lock"]))

    with pytest.raises(ClaimContradicted, check=carries(check="recipe")):
        verify(world, dropped)
