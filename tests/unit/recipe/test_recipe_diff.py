from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from sealtrain.recipe.diff import AREAS, diff
from sealtrain.recipe.lock import LockedRecipe

Document = dict[str, Any]
LockOf = Callable[..., LockedRecipe]


def test_equal_locks_have_no_difference(sft: Document, lock_of: LockOf) -> None:
    assert diff(lock_of(sft).lock, lock_of(sft).lock) == []


def test_a_first_approval_sees_everything(sft: Document, lock_of: LockOf) -> None:
    changes = diff(None, lock_of(sft).lock)
    assert {change.kind for change in changes} == {"added"}
    assert {change.area for change in changes} == set(AREAS) - {"collaboration"}
    areas = [change.area for change in changes]
    assert areas == sorted(areas, key=list(AREAS).index)
    assert "environment.packages[torch]" in {change.path for change in changes}


def test_another_broker_is_a_change_of_its_own(sft: Document, lock_of: LockOf) -> None:
    before, after = lock_of(sft).lock, lock_of(sft, brokers=["b1" * 32, "b2" * 32]).lock
    found = [(path.path, path.kind, path.severity) for path in diff(before, after)]
    assert found == [
        (f"brokers[{'b0' * 32}]", "removed", "critical"),
        (f"brokers[{'b2' * 32}]", "added", "critical"),
    ]


def test_what_leaves_and_whose_data_weighs_more_than_a_step_size(
    sft: Document, lock_of: LockOf
) -> None:
    before = lock_of(sft).lock
    sft["trainer"]["learning_rate"] = 0.01
    sft["release_policy"]["model"]["recipients"].append("stranger")
    sft["datasets"][0]["weight"] = 5
    sft["description"] = "words"
    found = {change.path: change for change in diff(before, lock_of(sft).lock)}
    assert {path: change.severity for path, change in found.items()} == {
        "recipe.datasets[hospital-a/biopsies].weight": "critical",
        "recipe.release_policy.model.recipients": "critical",
        "recipe.trainer.learning_rate": "review",
        "recipe.description": "routine",
    }
    rate = found["recipe.trainer.learning_rate"]
    assert (rate.kind, rate.before, rate.after) == ("changed", 0.003, 0.01)


def test_datasets_are_followed_by_name(sft: Document, lock_of: LockOf) -> None:
    before = lock_of(sft).lock
    removed = sft["datasets"].pop(1)
    sft["datasets"].append(removed | {"owner": "hospital-c"})
    changes = diff(before, lock_of(sft).lock)
    assert {(change.path.split("].")[0], change.kind) for change in changes} == {
        ("recipe.datasets[hospital-a/held-out", "changed"),
        ("recipe.datasets[hospital-b/biopsies", "removed"),
        ("recipe.datasets[hospital-c/biopsies", "added"),
    }


def test_a_setting_that_turns_into_null_is_seen(sft: Document, lock_of: LockOf) -> None:
    before = lock_of(sft).lock
    after = lock_of(sft | {"peft": None}).lock
    changes = {change.path: change for change in diff(before, after)}
    assert changes["recipe.peft"].kind == "added"
    assert changes["recipe.peft"].after is None
    assert changes["recipe.peft.r"].kind == "removed"
    assert all(json.dumps(change.to_dict()) for change in changes.values())


def test_a_series_is_followed_by_its_name(sft: Document, lock_of: LockOf) -> None:
    before = lock_of(sft).lock
    series = json.loads(json.dumps(sft))
    named = series["datasets"][0].pop("name")
    series["datasets"][0]["series"] = "cohort"
    owner = series["datasets"][0]["owner"]
    paths = [path.path for path in diff(before, lock_of(series).lock)]
    assert f"recipe.datasets[{owner}/cohort].series" in paths
    assert any(path.startswith(f"recipe.datasets[{owner}/{named}]") for path in paths)
