"""A small valid recipe to change one thing of, and an installation that needs no measuring."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sealtrain.base.distributions import DISTRIBUTIONS
from sealtrain.base.yamltext import yaml_text
from sealtrain.recipe.installation import CodePin, EnvironmentPin, PackagePin
from sealtrain.recipe.lock import Installation, LockedRecipe, lock_recipe

CONSORTIUM = "c0" * 32
BROKERS = ("b0" * 32, "b1" * 32)
IMAGE = f"registry.example/sealtrain:1@sha256:{'5a' * 32}"

SFT: dict[str, Any] = {
    "version": 1,
    "name": "diagnosis",
    "phase": "sft",
    "model": {
        "config": {"model_type": "llama", "hidden_size": 64},
        "init_seed": 7,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": [
        {"owner": "hospital-a", "name": "biopsies", "role": "train", "weight": 2},
        {"owner": "hospital-b", "name": "biopsies", "role": "train"},
        {"owner": "hospital-a", "name": "held-out", "role": "test"},
    ],
    "columns": {"prompt": "prompt", "completion": "completion"},
    "trainer": {"max_steps": 30, "learning_rate": 0.003},
    "peft": {"method": "lora", "target_modules": ["q_proj"]},
    "privacy": {"dp": "none"},
    "release_policy": {
        "metrics": ["loss"],
        "round_to": 4,
        "model": {"recipients": ["hospital-a", "hospital-b"]},
    },
    "hardware": {
        "platforms": ["simulator"],
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}


@pytest.fixture
def sft() -> dict[str, Any]:
    return copy.deepcopy(SFT)


@pytest.fixture
def tabular(sft: dict[str, Any]) -> dict[str, Any]:
    return sft | {
        "phase": "classify",
        "model": {"config": {"model_type": "sealtrain-tabular"}, "init_seed": 1},
        "columns": {"features": ["radius", "texture"], "label": "diagnosis"},
        "labels": ["benign", "malignant"],
        "peft": None,
    }


@pytest.fixture
def on_dstack(sft: dict[str, Any]) -> dict[str, Any]:
    hardware = {
        "platforms": ["dstack", "simulator"],
        "tier": "processor",
        "image": IMAGE,
        "key_provider": "kms",
        "key_provider_id": "3059301306",
    }
    return sft | {"hardware": hardware}


@pytest.fixture
def installation() -> Installation:
    return Installation(
        code=tuple(CodePin(name=name, version="0.1.0", sha256="11" * 32) for name in DISTRIBUTIONS),
        environment=EnvironmentPin(
            python="3.11.7",
            packages={
                "torch": PackagePin(version="2.9.0+cpu", record_sha256="22" * 32),
                "trl": PackagePin(version="1.16.0", record_sha256="33" * 32),
            },
        ),
    )


@pytest.fixture
def lock_of(tmp_path: Path, installation: Installation) -> Callable[..., LockedRecipe]:
    """Writes a recipe to a folder and locks it there."""

    def lock(recipe: dict[str, Any], **changed: Any) -> LockedRecipe:
        path = tmp_path / "recipe.yaml"
        path.write_text(yaml_text(recipe), "utf-8")
        arguments = {
            "consortium_id": CONSORTIUM,
            "brokers": BROKERS,
            "installation": installation,
        } | changed
        return lock_recipe(path, **arguments)

    return lock


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """The look of a model saved by Transformers; nothing reads the weights here."""
    folder = tmp_path / "base"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "_name_or_path": "x"}')
    (folder / "model.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0{}      ")
    (folder / "tokenizer.json").write_text('{"model": {"vocab": {"auto_map": 1}}}')
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "X"}')
    (folder / "README.md").write_text("a model")
    return folder
