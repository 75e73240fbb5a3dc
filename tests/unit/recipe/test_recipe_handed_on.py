"""A recipe that hands its model on to another: what it may say, and what its lock pins."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from carrying import carries
from manifest_world import ROOM, C, handing_on, with_room
from world import BROKER_IDS, OWNERS, RECIPE, digest, locked_in

from sealtrain.base.canonical import canonical_json, parse_json
from sealtrain.recipe.diff import diff
from sealtrain.recipe.errors import LockInvalid, ModelInvalid, RecipeInvalid
from sealtrain.recipe.lockfile import parse_lock
from sealtrain.recipe.schema import parse_recipe

A, *_ = OWNERS
TO_PERSONS = RECIPE | {
    "model": ROOM["model"],
    "datasets": [*RECIPE["datasets"], ROOM["datasets"][0]],
}
"""Trains from a sealed model and seals what it makes of it to owners."""


def test_the_lock_pins_the_next_recipe_and_its_sealed_model(tmp_path: Path) -> None:
    room = with_room(tmp_path)
    locked = locked_in(tmp_path, handing_on()).lock
    assert locked.handed_on is not None
    assert locked.handed_on.to_dict() == {
        "app_id": room.app_id,
        "compose_hash": room.compose_hash,
        "recipe_hash": room.recipe_hash,
        "owner": C,
        "dataset": "diagnosis",
    }
    assert parse_lock(locked.to_bytes()) == locked
    changes = [path for path in diff(None, locked) if path.path.startswith("handed_on")]
    assert {(change.area, change.severity) for change in changes} == {
        ("release policy", "critical")
    }
    assert len(changes) == 5


def test_the_next_recipe_does_not_know_the_one_before(tmp_path: Path) -> None:
    room = with_room(tmp_path)
    assert room.lock.handed_on is None
    assert b"handed_on" not in room.lock_bytes


@pytest.mark.parametrize(
    "changed",
    [
        {"recipients": [A], "handed_on": {"deployment": "room/app-compose.json"}},
        {"recipients": []},
        {},
        {"handed_on": {"deployment": "../../room/app-compose.json"}},
        {"handed_on": {"deployment": "room/app-compose.json", "threshold": 0}},
    ],
)
def test_a_model_goes_to_persons_or_to_guests(changed: dict[str, Any]) -> None:
    recipe = handing_on()
    recipe["release_policy"]["model"] = changed
    with pytest.raises(RecipeInvalid):
        parse_recipe(recipe)


@pytest.mark.parametrize(
    "changed",
    [
        {"peft": RECIPE["peft"]},
        {"peft": {"method": "prompt_tuning", "num_virtual_tokens": 4}},
        {"datasets": [dataset for dataset in RECIPE["datasets"] if dataset["owner"] == A]},
    ],
    ids=["adapter", "prompt", "one owner"],
)
def test_what_cannot_be_handed_on_is_refused(changed: dict[str, Any]) -> None:
    parse_recipe(handing_on())
    with pytest.raises(RecipeInvalid):
        parse_recipe(handing_on(**changed))


def test_an_evaluation_hands_no_model_on() -> None:
    policy = ROOM["release_policy"] | {"model": handing_on()["release_policy"]["model"]}
    with pytest.raises(RecipeInvalid):
        parse_recipe(ROOM | {"release_policy": policy})


@pytest.mark.parametrize(
    ("room", "how"),
    [
        (RECIPE, {}),
        (TO_PERSONS, {}),
        (ROOM, {"brokers": BROKER_IDS[:2]}),
        (ROOM, {"consortium_id": digest("another")}),
    ],
    ids=["no sealed model", "to persons", "fewer brokers", "another consortium"],
)
def test_a_recipe_that_cannot_take_the_model_is_not_pinned(
    tmp_path: Path, room: dict[str, Any], how: dict[str, Any]
) -> None:
    with_room(tmp_path, room, **how)
    with pytest.raises(RecipeInvalid, check=carries(check="handed on")):
        locked_in(tmp_path, handing_on())


def test_the_next_recipe_is_locked_before(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid):
        locked_in(tmp_path, handing_on())


@pytest.mark.parametrize(
    ("brokers", "threshold"), [(1, 1), (1, 2), (2, None), (2, 1), (3, None), (3, 1), (3, 4)]
)
def test_a_threshold_that_the_brokers_cannot_keep_is_refused(
    tmp_path: Path, brokers: int, threshold: int | None
) -> None:
    with_room(tmp_path)
    recipe = handing_on()
    recipe["release_policy"]["model"]["handed_on"]["threshold"] = threshold
    with pytest.raises(LockInvalid, check=carries(check="threshold")):
        locked_in(tmp_path, recipe, brokers=BROKER_IDS[:brokers])


@pytest.mark.parametrize(("brokers", "threshold"), [(1, None), (2, 2), (3, 2), (3, 3)])
def test_a_threshold_that_the_brokers_can_keep_is_locked(
    tmp_path: Path, brokers: int, threshold: int | None
) -> None:
    with_room(tmp_path)
    recipe = handing_on()
    recipe["release_policy"]["model"]["handed_on"]["threshold"] = threshold
    assert locked_in(tmp_path, recipe, brokers=BROKER_IDS[:brokers]).lock.handed_on is not None


def test_a_lock_pins_it_exactly_where_its_recipe_names_it(tmp_path: Path) -> None:
    with_room(tmp_path)
    handed_on = parse_json(locked_in(tmp_path, handing_on()).lock_bytes)
    plain = parse_json(locked_in(tmp_path, RECIPE).lock_bytes)
    pin = handed_on.pop("handed_on")
    for document in (handed_on, plain | {"handed_on": pin}):
        with pytest.raises(LockInvalid, check=carries(check="handed on")):
            parse_lock(canonical_json(document))
