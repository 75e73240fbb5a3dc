"""Locks and deployment documents against an independent generator (tools/vectorgen/recipe.py)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.yamltext import parse_yaml
from sealtrain.recipe.compose import build_compose, compose_hash
from sealtrain.recipe.errors import LockInvalid, RecipeInvalid
from sealtrain.recipe.installation import record_digest
from sealtrain.recipe.lock import LockedRecipe, parse_lock

FOLDER = Path(__file__).resolve().parents[2] / "vectors" / "recipe"


def vectors(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))["cases"]
    assert found
    return found


@pytest.mark.parametrize("vector", vectors("compose"), ids=lambda vector: vector["name"])
def test_a_lock_gives_its_deployment_document_and_back(vector: dict[str, Any]) -> None:
    lock = parse_lock(vector["lock"].encode())
    assert lock.recipe_hash == vector["recipe_hash"]
    document = vector["compose"].encode()
    assert build_compose(lock) == document
    assert compose_hash(document) == vector["compose_hash"]
    assert LockedRecipe.parse(document).app_id == vector["app_id"]
    assert LockedRecipe.parse(document).lock_bytes == vector["lock"].encode()


REFUSED: dict[str, Any] = json.loads((FOLDER / "compose.json").read_text("utf-8"))


@pytest.mark.claim("C671")
@pytest.mark.parametrize("vector", REFUSED["refused"], ids=lambda vector: vector["name"])
def test_the_size_of_an_enclave_is_of_nitro_alone(vector: dict[str, Any]) -> None:
    with pytest.raises(LockInvalid):
        LockedRecipe.parse(vector["compose"].encode())


ADOPTED: dict[str, Any] = json.loads((FOLDER / "adopted.json").read_text("utf-8"))


@pytest.mark.claim("C440")
@pytest.mark.parametrize("vector", ADOPTED["cases"], ids=lambda vector: vector["name"])
def test_a_document_that_a_platform_added_to_is_read_or_refused(vector: dict[str, Any]) -> None:
    lock = ADOPTED["locks"][vector["lock"]]
    document = vector["compose"].replace("@@", lock["runs"]).encode()
    assert compose_hash(document) == vector["compose_hash"]
    if vector["outcome"] == "ok":
        assert LockedRecipe.parse(document).lock_bytes == lock["text"].encode()
    else:
        with pytest.raises(LockInvalid) as refusal:
            LockedRecipe.parse(document)
        assert refusal.value.code == vector["outcome"]


@pytest.mark.parametrize("vector", vectors("records"), ids=lambda vector: vector["name"])
def test_a_record_has_its_digest(vector: dict[str, Any]) -> None:
    assert record_digest(vector["record"]) == vector["sha256"]


@pytest.mark.parametrize("vector", vectors("yaml"), ids=lambda vector: repr(vector["yaml"]))
def test_yaml_has_one_value_or_none(vector: dict[str, Any]) -> None:
    data = vector["yaml"].encode()
    if vector["outcome"] != "ok":
        with pytest.raises(RecipeInvalid):
            parse_yaml(data, error=RecipeInvalid, what="recipe")
    else:
        assert repr(parse_yaml(data, error=RecipeInvalid, what="recipe")) == repr(vector["value"])
