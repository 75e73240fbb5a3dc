"""A lock takes its packages from an image, and an image is held to a lock."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from carrying import carries
from container_world import ImageWorld, make_image_world, rewritten
from container_world import written as written_tar
from world import simulated_policy

from sealtrain.base.encoding import to_base64
from sealtrain.client.pin import BrokerPin
from sealtrain.errors import ExtraMissing, ImageRefused
from sealtrain.image.account import account_for, verify_image
from sealtrain.image.layout import read_image
from sealtrain.image.packages import code_of, keeps, measure_image
from sealtrain.recipe.lock import lock_recipe
from sealtrain.recipe.lockfile import Lock, load_lock
from sealtrain.recipe.schema import load_recipe

pytestmark = pytest.mark.claim("C127")

RECIPE: dict[str, Any] = {
    "version": 1,
    "name": "diagnosis",
    "phase": "sft",
    "model": {
        "config": {"model_type": "llama", "hidden_size": 64},
        "init_seed": 7,
        "tokenizer": {"kind": "bytes"},
    },
    "datasets": [{"owner": "hospital-a", "name": "biopsies", "role": "train"}],
    "columns": {"prompt": "prompt", "completion": "completion"},
    "trainer": {"max_steps": 30, "learning_rate": 0.003},
    "privacy": {"dp": "none"},
    "release_policy": {"metrics": [], "round_to": 4, "model": {"recipients": ["hospital-a"]}},
    "hardware": {
        "platforms": ["simulator"],
        "tier": "processor",
        "image": None,
        "key_provider": "none",
        "key_provider_id": None,
    },
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> ImageWorld:
    return make_image_world(tmp_path_factory.mktemp("image"))


def written(folder: Path, image: str | None = None, **changed: Any) -> Path:
    hardware = RECIPE["hardware"]
    if image is not None:
        hardware = {
            "platforms": ["dstack"],
            "tier": "processor",
            "image": f"registry.example/toy@{image}",
            "key_provider": "kms",
            "key_provider_id": "3059301306",
        }
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE | {"hardware": hardware} | changed))
    return path


def locked(world: ImageWorld, path: Path) -> Lock:
    found = measure_image(read_image(world.layout, keeps), load_recipe(path))
    return lock_recipe(path, consortium_id="c0" * 32, brokers=["b0" * 32], installation=found).lock


def test_a_lock_pins_the_packages_of_the_image(world: ImageWorld, tmp_path: Path) -> None:
    image = read_image(world.layout, keeps)
    lock = locked(world, written(tmp_path, image.digest))
    pins = json.loads((world.source / "deploy/images/toy/pins.json").read_bytes())
    assert lock.environment.python == "3.11.2"
    assert {name: pin.to_dict() for name, pin in lock.environment.packages.items()} == {
        name: {"version": pin["version"], "record_sha256": pin["record_sha256"]}
        for name, pin in pins["wheels"].items()
    }
    assert lock.code == code_of(image)
    assert verify_image(image, world.source, lock=lock).findings == ()


def test_a_lock_of_other_code_refuses_the_image(world: ImageWorld, tmp_path: Path) -> None:
    image = read_image(world.layout, keeps)
    lock = locked(world, written(tmp_path))
    for changed in (
        {"code": (lock.code[0].model_copy(update={"sha256": "00" * 32}),)},
        {"environment": lock.environment.model_copy(update={"python": "3.11.9"})},
        {"environment": lock.environment.model_copy(update={"packages": {}})},
    ):
        other = lock.model_copy(update=changed)
        account = account_for(image, world.source, lock=other)
        assert [finding.check for finding in account.findings] == ["lock"]


def test_a_lock_that_names_another_image_refuses_this_one(
    world: ImageWorld, tmp_path: Path
) -> None:
    image = read_image(world.layout, keeps)
    lock = locked(world, written(tmp_path, image.digest))
    named = lock.recipe.hardware.model_copy(
        update={"image": f"registry.example/toy@sha256:{'5a' * 32}"}
    )
    other = lock.model_copy(update={"recipe": lock.recipe.model_copy(update={"hardware": named})})
    with pytest.raises(ImageRefused, check=carries(check="lock")):
        verify_image(image, world.source, lock=other)
    with pytest.raises(ImageRefused, check=carries(check="lock")):
        locked(world, written(tmp_path, f"sha256:{'5a' * 32}"))


def test_an_image_that_lacks_a_package_cannot_be_locked_for(
    world: ImageWorld, tmp_path: Path
) -> None:
    layout = tmp_path / "toy"
    shutil.copytree(world.layout, layout)
    rewritten(layout, layers=lambda tars: [tars[0], written_tar([]), tars[2]])
    with pytest.raises(ExtraMissing):
        locked(replace(world, layout=layout), written(tmp_path))


def test_the_command_line_locks_for_an_image(world: ImageWorld, tmp_path: Path) -> None:
    image = read_image(world.layout, keeps)
    program = [sys.executable, "-m", "sealtrain"]
    pin = BrokerPin(
        url="http://127.0.0.1:1",
        signing_key=to_base64(bytes(31) + b"\1"),
        compose_hash="c0" * 32,
        appraisal=simulated_policy(),
    )
    (tmp_path / "broker.yaml").write_text(pin.to_yaml())
    for words in (
        ["keygen", "hospital-a"],
        ["consortium", "create", "one", "--owner", "hospital-a.public.json"],
        [
            "lock", written(tmp_path, image.digest), "--broker", "broker.yaml",
            "--image", world.layout,
        ],
        ["image", "verify", world.layout, "--source", world.source, "--lock", "recipe.lock.json"],
    ):  # fmt: skip
        done = subprocess.run([*program, *words], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert load_lock(tmp_path / "recipe.lock.json").code == code_of(image)
    source = tmp_path / "source"
    shutil.copytree(world.source, source)
    (source / "src/sealtrain/__init__.py").write_text("")
    done = subprocess.run(
        [*program, "image", "verify", world.layout, "--source", source],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
