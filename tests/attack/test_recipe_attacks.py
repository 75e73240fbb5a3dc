"""Attacks through the recipe, its lock and the deployment document that a guest measures."""

from __future__ import annotations

import copy
import json
import time
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.base.canonical import canonical_json
from sealtrain.recipe.compose import build_compose, compose_hash
from sealtrain.recipe.diff import diff
from sealtrain.recipe.errors import LockInvalid, RecipeInvalid
from sealtrain.recipe.lock import Lock, LockedRecipe, parse_lock
from sealtrain.recipe.schema import load_recipe, parse_recipe

pytestmark = [pytest.mark.claim("C7"), pytest.mark.claim("C8")]

VECTORS = json.loads(
    (Path(__file__).resolve().parents[2] / "vectors" / "recipe" / "compose.json").read_text()
)["cases"]
ON_DSTACK = next(vector for vector in VECTORS if vector["name"] == "dstack, KMS")
SIMULATED = next(vector for vector in VECTORS if vector["name"] == "simulator, bash")


def relock(vector: dict[str, Any], change: Any) -> Lock:
    document = json.loads(vector["lock"])
    change(document["recipe"])
    return parse_lock(canonical_json(document))


BOMBS = {
    "billion laughs": "a: &a [x, x]\n" + "".join(
        f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(20)
    ),
    "recursive": "a: &a [*a]",
    "deep flow": "[" * 50_000,
    "deep block": "\n".join(" " * level + "a:" for level in range(300)),
    "deep dashes": "- " * 40_000,
    "many keys": "\n".join(f"k{i}: 1" for i in range(19_000)),
    "object": "!!python/object/new:os.system [echo]",
    "long number": "version: " + "9" * 100_000,
    "too long": "#" * (1 << 21),
}  # fmt: skip


@pytest.mark.parametrize("text", BOMBS.values(), ids=BOMBS)
def test_a_yaml_bomb_is_refused_quickly(text: str, tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    start = time.monotonic()
    with pytest.raises(RecipeInvalid):
        load_recipe(path)
    assert time.monotonic() - start < 20


def test_a_later_duplicate_key_cannot_override_what_a_reviewer_read(tmp_path: Path) -> None:
    recipe = json.loads(SIMULATED["lock"])["recipe"]
    text = json.dumps(recipe)
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    load_recipe(path)
    path.write_text(text[:-1] + ', "privacy": {"dp": "none"}}')
    with pytest.raises(RecipeInvalid, match="'privacy'"):
        load_recipe(path)


@pytest.mark.parametrize(
    "path", ["../../etc", "/etc", "a/../../b", "../..", "./a", "a/.git", "C:\\m", "a\n", "file:/m"]
)
def test_a_model_path_cannot_leave_the_project(path: str) -> None:
    recipe = json.loads(SIMULATED["lock"])["recipe"]
    recipe["model"] = {"path": path}
    with pytest.raises(RecipeInvalid):
        parse_recipe(recipe)


def test_text_cannot_hide_from_the_reader_of_a_diff() -> None:
    recipe = json.loads(SIMULATED["lock"])["recipe"]
    for hidden in ("\u200b", "\u202e", "\u2066", "\ufeff", "\u00ad", "\x1b[2K", "\x7f", "\u2028"):
        for change in (
            {"description": f"a{hidden}b"},
            {"columns": {"text": f"a{hidden}b"}},
            {"trainer": recipe["trainer"] | {"eos_token": hidden}},
        ):
            with pytest.raises(RecipeInvalid):
                parse_recipe(recipe | change)
        config = {"model_type": "llama", f"a{hidden}": 1}
        with pytest.raises(RecipeInvalid):
            parse_recipe(recipe | {"model": recipe["model"] | {"config": config}})


def test_a_lock_swapped_inside_a_document_is_another_document() -> None:
    """The operator adds themselves as recipient and puts that lock into the approved document."""

    def add_recipient(recipe: dict[str, Any]) -> None:
        recipe["release_policy"]["model"]["recipients"] = ["a", "operator"]

    swapped = relock(ON_DSTACK, add_recipient)
    document = json.loads(ON_DSTACK["compose"])
    services = json.loads(document["docker_compose_file"])
    services["configs"]["recipe.lock.json"]["content"] = swapped.to_bytes().decode()
    document["docker_compose_file"] = canonical_json(services).decode()
    data = canonical_json(document)
    assert LockedRecipe.parse(data).lock_bytes == swapped.to_bytes()
    assert compose_hash(data) != ON_DSTACK["compose_hash"]
    assert swapped.recipe_hash != ON_DSTACK["recipe_hash"]
    changes = diff(parse_lock(ON_DSTACK["lock"].encode()), swapped)
    assert [(change.path, change.severity) for change in changes] == [
        ("recipe.release_policy.model.recipients", "critical")
    ]


def test_a_weaker_lock_cannot_ride_in_a_stronger_frame() -> None:
    """Fields outside the lock must be those that the lock gives."""

    def unpin(recipe: dict[str, Any]) -> None:
        recipe["hardware"] |= {"key_provider": "none", "key_provider_id": None}

    document = json.loads(ON_DSTACK["compose"])
    services = json.loads(document["docker_compose_file"])
    services["configs"]["recipe.lock.json"]["content"] = (
        relock(ON_DSTACK, unpin).to_bytes().decode()
    )
    document["docker_compose_file"] = canonical_json(services).decode()
    with pytest.raises(LockInvalid, check=carries(check="document")):
        LockedRecipe.parse(canonical_json(document))


def test_a_simulated_frame_cannot_carry_a_recipe_for_hardware() -> None:
    document = json.loads(SIMULATED["compose"])
    document["bash_script"] = document["bash_script"].replace(SIMULATED["lock"], ON_DSTACK["lock"])
    with pytest.raises(LockInvalid):
        LockedRecipe.parse(canonical_json(document))
    frame = json.loads(ON_DSTACK["compose"])
    services = json.loads(frame["docker_compose_file"])
    services["configs"]["recipe.lock.json"]["content"] = SIMULATED["lock"]
    frame["docker_compose_file"] = canonical_json(services).decode()
    with pytest.raises(LockInvalid):
        LockedRecipe.parse(canonical_json(frame))


@pytest.mark.parametrize("runner", [None, "", "docker-compose\n", "Bash", 1, ["bash"], {}])
def test_an_odd_runner_is_refused(runner: Any) -> None:
    document = json.loads(ON_DSTACK["compose"]) | {"runner": runner}
    with pytest.raises(LockInvalid, check=carries(check="document")):
        LockedRecipe.parse(canonical_json(document))


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PYTHONPATH", "HF_ENDPOINT"])
def test_an_environment_cannot_be_injected(name: str) -> None:
    for place in ("allowed_envs", "environment"):
        document = json.loads(ON_DSTACK["compose"])
        if place == "allowed_envs":
            document["allowed_envs"] = [name]
        else:
            services = json.loads(document["docker_compose_file"])
            services["services"]["guest"]["environment"] = [f"{name}=/run-data/x"]
            document["docker_compose_file"] = canonical_json(services).decode()
        with pytest.raises(LockInvalid, match=place):
            LockedRecipe.parse(canonical_json(document))


def test_an_image_moved_to_a_tag_is_refused_in_recipe_and_document() -> None:
    recipe = copy.deepcopy(json.loads(ON_DSTACK["lock"])["recipe"])
    recipe["hardware"]["image"] = "registry.example/sealtrain:latest"
    with pytest.raises(RecipeInvalid, check=carries(field="hardware.image")):
        parse_recipe(recipe)
    document = json.loads(ON_DSTACK["compose"])
    text = document["docker_compose_file"]
    document["docker_compose_file"] = text.replace(f"@sha256:{'5a' * 32}", ":latest", 1)
    with pytest.raises(LockInvalid):
        LockedRecipe.parse(canonical_json(document))


def test_a_dollar_sign_in_a_recipe_stays_a_dollar_sign() -> None:
    def describe(recipe: dict[str, Any]) -> None:
        recipe["description"] = "$X ${X} $$X $"

    lock = relock(ON_DSTACK, describe)
    document = build_compose(lock)
    assert LockedRecipe.parse(document).lock_bytes == lock.to_bytes()
    content = json.loads(json.loads(document)["docker_compose_file"])["configs"][
        "recipe.lock.json"
    ]["content"]
    assert "$X" not in content.replace("$$", "")
