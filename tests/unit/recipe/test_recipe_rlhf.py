"""Recipes of ``rlhf``: their own rules, and the reward model that their lock pins."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.base.canonical import canonical_json
from sealtrain.recipe.diff import diff
from sealtrain.recipe.errors import EnvironmentChanged, LockInvalid, ModelInvalid, RecipeInvalid
from sealtrain.recipe.lock import Installation, LockedRecipe, parse_lock
from sealtrain.recipe.measure import check_environment
from sealtrain.recipe.schema import parse_recipe

Document = dict[str, Any]
LockOf = Callable[..., LockedRecipe]


@pytest.fixture
def rlhf(sft: Document) -> Document:
    return sft | {
        "phase": "rlhf",
        "columns": {"prompt": "prompt", "answer": "completion"},
        "trainer": {"algorithm": "ppo", "max_steps": 30},
        "reward": {"rule": "contains"},
    }


@pytest.fixture
def scored(rlhf: Document, model_folder: Path, tmp_path: Path) -> Document:
    """With a reward model in the folder ``scorer``."""
    model_folder.rename(tmp_path / "scorer")
    return rlhf | {"columns": {"prompt": "prompt"}, "reward": {"model": {"path": "scorer"}}}


def test_each_algorithm_has_its_own_settings(rlhf: Document) -> None:
    group = {"max_steps": 3, "num_generations": 4}
    kinds = [
        parse_recipe(rlhf | {"trainer": trainer}).trainer
        for trainer in (
            {"algorithm": "ppo", "max_steps": 3, "lam": 0.9},
            {"algorithm": "rloo", "normalize_advantages": True} | group,
            {"algorithm": "grpo", "loss_type": "dr_grpo"} | group,
        )
    ]
    assert [type(kind).__name__ for kind in kinds] == [
        "PpoArguments",
        "RlooArguments",
        "GrpoArguments",
    ]


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"trainer": {"max_steps": 3}}, "algorithm"),
        ({"trainer": {"algorithm": "dqn", "max_steps": 3}}, "algorithm"),
        (
            {"trainer": {"algorithm": "ppo", "max_steps": 3, "num_generations": 2}},
            "num_generations",
        ),
        (
            {"trainer": {"algorithm": "grpo", "max_steps": 3, "num_generations": 3}},
            "num_generations",
        ),
        (
            {"trainer": {"algorithm": "grpo", "max_steps": 3, "num_generations": 1}},
            "num_generations",
        ),
        ({"trainer": {"algorithm": "grpo", "max_steps": 3, "num_iterations": 3}}, "save_steps"),
        ({"trainer": {"algorithm": "ppo", "max_steps": 3, "neftune_noise_alpha": 1}}, "neftune"),
        (
            {"trainer": {"algorithm": "ppo", "max_steps": 3, "log_completions": True}},
            "log_completions",
        ),
        ({"columns": {"prompt": "prompt"}}, "columns.answer"),
        ({"reward": {"rule": "python"}}, "rule"),
        ({"reward": {"model": {"config": {"model_type": "llama"}, "init_seed": 1}}}, "path"),
        ({"reward": {"model": {"path": "scorer"}}}, r"columns\.answer"),
        ({"reward": {"model": {"path": "/scorer"}}, "columns": {"prompt": "p"}}, "path"),
    ],
)
def test_what_does_not_fit_is_refused(rlhf: Document, changed: Document, problem: str) -> None:
    with pytest.raises(RecipeInvalid, match=problem):
        parse_recipe(rlhf | changed)


def test_the_lock_pins_the_reward_model(scored: Document, lock_of: LockOf, tmp_path: Path) -> None:
    locked = lock_of(scored)
    pin = locked.lock.models["reward"]
    assert (pin.model.kind, pin.tokenizer.kind) == ("folder", "folder")
    assert pin.model.sha256 not in (locked.lock.model.sha256, pin.tokenizer.sha256)
    (tmp_path / "scorer" / "model.safetensors").write_bytes(b"other weights")
    changed = lock_of(scored)
    (change,) = diff(locked.lock, changed.lock)
    assert change.path == "models.reward.model.sha256"
    assert (change.area, change.severity) == ("model", "critical")


def test_a_rule_pins_no_model(rlhf: Document, lock_of: LockOf) -> None:
    locked = lock_of(rlhf)
    assert locked.lock.models == {}
    other = lock_of(rlhf | {"reward": {"rule": "exact-match"}})
    assert [change.severity for change in diff(locked.lock, other.lock)] == ["critical"]


def test_a_reward_model_that_may_carry_code_is_not_locked(
    scored: Document, lock_of: LockOf, tmp_path: Path
) -> None:
    (tmp_path / "scorer" / "modeling.py").write_text("print()")
    with pytest.raises(ModelInvalid, match=r"modeling\.py"):
        lock_of(scored)


@pytest.mark.parametrize("missing", [False, True])
def test_a_lock_without_its_reward_model_is_refused(
    missing: bool, scored: Document, lock_of: LockOf
) -> None:
    document = json.loads(lock_of(scored).lock_bytes)
    if missing:
        document["models"] = {}
    else:
        document["models"]["reward"]["tokenizer"] = {"kind": "bytes", "sha256": None}
    with pytest.raises(LockInvalid, check=carries(check="models" if missing else "tokenizer")):
        parse_lock(canonical_json(document))


@pytest.mark.parametrize(
    ("file", "content", "named"),
    [
        ("model.safetensors", b"other weights", "reward model"),
        ("tokenizer.json", b"{}", "reward model"),
        ("extra.safetensors", b"more weights", "reward model"),
        ("pytorch_model.bin", b"pickled", r"pytorch_model\.bin"),
    ],
)
def test_a_reward_model_changed_after_locking_is_refused(
    file: str,
    content: bytes,
    named: str,
    scored: Document,
    lock_of: LockOf,
    installation: Installation,
    tmp_path: Path,
) -> None:
    lock = lock_of(scored).lock
    check_environment(lock, tmp_path, installation=installation)
    (tmp_path / "scorer" / file).write_bytes(content)
    with pytest.raises(EnvironmentChanged, match=named):
        check_environment(lock, tmp_path, installation=installation)


def test_a_tokenizer_of_its_own_is_pinned_too(
    scored: Document, lock_of: LockOf, installation: Installation, tmp_path: Path
) -> None:
    folder = tmp_path / "words"
    folder.mkdir()
    (folder / "tokenizer.json").write_text("{}")
    scored["reward"]["model"]["tokenizer"] = {"path": "words"}
    lock = lock_of(scored).lock
    (folder / "tokenizer.json").write_text('{"version": "2"}')
    with pytest.raises(EnvironmentChanged, check=carries(check="environment")):
        check_environment(lock, tmp_path, installation=installation)


def test_an_absent_reward_model_is_refused(
    scored: Document, lock_of: LockOf, installation: Installation, tmp_path: Path
) -> None:
    lock = lock_of(scored).lock
    (tmp_path / "scorer").rename(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentChanged, match="scorer"):
        check_environment(lock, tmp_path, installation=installation)
