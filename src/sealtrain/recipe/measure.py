"""Measure again what a lock pins, where it is about to run.

In this order, so that the first difference named is the one nearest to the code: version and code,
Python, packages, script, base model, tokenizer, further models.
"""

from __future__ import annotations

from pathlib import Path

from sealtrain.errors import EnvironmentChanged, ExtraMissing, ModelInvalid
from sealtrain.recipe.installation import EnvironmentPin, check_package_files
from sealtrain.recipe.lock import (
    Installation,
    measure_further_models,
    measure_installation,
    measure_model,
    measure_scripts,
    measure_tokenizer,
)
from sealtrain.recipe.lockfile import Lock

__all__ = ["check_environment"]


def check_environment(
    lock: Lock,
    base_dir: Path,
    *,
    installation: Installation | None = None,
    package_files: bool = False,
) -> None:
    """Refuse to run when anything differs from the lock.

    Args:
        lock: What was approved.
        base_dir: The recipe's folder in this place; its paths are relative to it.
        installation: Code and packages that run; measured here when ``None``.
        package_files: Also hash every file of every package, not only the packages' records.

    Raises:
        EnvironmentChanged: Names the first difference, with got and expected.
    """
    try:
        here = installation or measure_installation(lock.recipe.backend)
    except ExtraMissing as error:
        raise EnvironmentChanged(
            error.message,
            check="environment",
            got=error.got,
            expected=error.expected,
            hint=error.hint,
        ) from error
    _same("sealtrain's version", here.code.sealtrain, lock.code.sealtrain)
    _same("sealtrain's code", here.code.sha256, lock.code.sha256)
    _check_packages(here.environment, lock.environment)
    if package_files:
        check_package_files(tuple(lock.environment.packages))
    try:
        scripts = measure_scripts(lock.recipe, base_dir)
        model = measure_model(lock.recipe.model, base_dir)
        tokenizer = measure_tokenizer(lock.recipe.model, base_dir)
        further = measure_further_models(lock.recipe, base_dir)
    except ModelInvalid as error:
        raise EnvironmentChanged(error.message, check="models", hint=error.hint or _HINT) from error
    for path, digest in lock.scripts.items():
        _same(f"the script {path}", scripts.get(path), digest)
    _same("the base model", model.sha256, lock.model.sha256)
    _same("the tokenizer", tokenizer.sha256, lock.tokenizer.sha256)
    for name, pin in lock.models.items():
        _same(f"the {name} model", further[name].model.sha256, pin.model.sha256)
        _same(f"the {name} model's tokenizer", further[name].tokenizer.sha256, pin.tokenizer.sha256)


_HINT = "install what the lock names, or lock again and have the new lock approved"


def _check_packages(here: EnvironmentPin, locked: EnvironmentPin) -> None:
    _same("Python", here.python, locked.python)
    for name in sorted(here.packages.keys() | locked.packages.keys()):
        got, expected = here.packages.get(name), locked.packages.get(name)
        _same(
            f"package {name}",
            got.version if got else "absent",
            expected.version if expected else "absent",
        )
        if got and expected:
            _same(f"the files of package {name}", got.record_sha256, expected.record_sha256)


def _same(what: str, got: str | None, expected: str | None) -> None:
    if got != expected:
        raise EnvironmentChanged(
            f"{what} differs from the lock",
            check="environment",
            got=got,
            expected=expected,
            hint=_HINT,
        )
