from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from carrying import carries

from sealtrain.errors import ExtraMissing
from sealtrain.recipe import measure
from sealtrain.recipe.errors import EnvironmentChanged, ModelInvalid
from sealtrain.recipe.installation import Installation, PackagePin
from sealtrain.recipe.lock import LockedRecipe
from sealtrain.recipe.measure import check_environment, check_models

Document = dict[str, Any]


def with_packages(installation: Installation, **packages: PackagePin | None) -> Installation:
    merged = {**installation.environment.packages, **packages}
    kept = {name: pin for name, pin in merged.items() if pin is not None}
    environment = installation.environment.model_copy(update={"packages": kept})
    return dataclasses.replace(installation, environment=environment)


def with_code(installation: Installation, **fields: str) -> Installation:
    core, *rooms = installation.code
    return dataclasses.replace(installation, code=(core.model_copy(update=fields), *rooms))


@pytest.mark.parametrize(
    ("change", "problem", "got", "expected"),
    [
        (lambda i: with_code(i, version="0.2.0"), "version", "0.2.0", "0.1.0"),
        (lambda i: with_code(i, sha256="99" * 32), "code", "99" * 32, "11" * 32),
        (lambda i: dataclasses.replace(i, code=i.code[1:]), "version", "absent", "0.1.0"),
        (lambda i: with_packages(i, trl=None), "trl", "absent", "1.16.0"),
        (
            lambda i: with_packages(i, xtra=PackagePin(version="1", record_sha256="0" * 64)),
            "xtra", "1", "absent",
        ),
        (
            lambda i: with_packages(i, trl=PackagePin(version="1.17", record_sha256="33" * 32)),
            "trl", "1.17", "1.16.0",
        ),
        (
            lambda i: with_packages(i, trl=PackagePin(version="1.16.0", record_sha256="0" * 64)),
            "trl", "0" * 64, "33" * 32,
        ),
    ],
)  # fmt: skip
def test_the_first_difference_is_named_with_got_and_expected(
    sft: Document,
    lock_of: Callable[..., LockedRecipe],
    installation: Installation,
    tmp_path: Path,
    change: Callable[[Installation], Installation],
    problem: str,
    got: str,
    expected: str,
) -> None:
    lock = lock_of(sft).lock
    check_environment(lock, tmp_path, installation=installation)
    with pytest.raises(EnvironmentChanged, match=problem) as refusal:
        check_environment(lock, tmp_path, installation=change(installation))
    assert (refusal.value.got, refusal.value.expected) == (got, expected)


def test_a_changed_base_model_is_refused(
    sft: Document,
    lock_of: Callable[..., LockedRecipe],
    installation: Installation,
    tmp_path: Path,
    model_folder: Path,
) -> None:
    lock = lock_of(sft | {"model": {"path": "base"}}).lock
    check_environment(lock, tmp_path, installation=installation)
    (model_folder / "model.safetensors").write_bytes(b"poisoned")
    with pytest.raises(EnvironmentChanged, check=carries(check="environment")):
        check_environment(lock, tmp_path, installation=installation)
    (model_folder / "extra.bin").write_bytes(b"pickle")
    with pytest.raises(EnvironmentChanged, match=r"extra\.bin"):
        check_environment(lock, tmp_path, installation=installation)
    with pytest.raises(EnvironmentChanged, match="base"):
        check_environment(lock, tmp_path / "base", installation=installation)


@pytest.mark.claim("C579")
def test_models_alone_are_compared_where_only_they_matter(
    sft: Document, lock_of: Callable[..., LockedRecipe], tmp_path: Path, model_folder: Path
) -> None:
    lock = lock_of(sft | {"model": {"path": "base"}}).lock
    check_models(lock, tmp_path)
    (model_folder / "model.safetensors").write_bytes(b"another")
    with pytest.raises(EnvironmentChanged, check=carries(check="environment")):
        check_models(lock, tmp_path)
    with pytest.raises(ModelInvalid):
        check_models(lock, tmp_path / "elsewhere")


def test_a_missing_extra_is_a_changed_environment(
    sft: Document,
    lock_of: Callable[..., LockedRecipe],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(recipe: Any) -> Installation:
        raise ExtraMissing("the recipe needs the package trl", got="absent", expected=">=1")

    monkeypatch.setattr(measure, "measure_installation", absent)
    with pytest.raises(EnvironmentChanged, match="trl"):
        check_environment(lock_of(sft).lock, tmp_path)


def test_this_machine_fits_its_own_lock(
    sft: Document, lock_of: Callable[..., LockedRecipe], tmp_path: Path
) -> None:
    if importlib.util.find_spec("trl") is None:
        pytest.skip("sealtrain[train] is not installed")
    lock = lock_of(sft, installation=None).lock
    assert {"torch", "transformers", "trl", "peft", "cryptography"} <= set(
        lock.environment.packages
    )
    check_environment(lock, tmp_path)
