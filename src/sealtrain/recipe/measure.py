"""Measure again everything that a lock pins, on the machine that is about to run it.

The order is such that the first difference named is the one nearest to the code: version and code,
Python, packages, base model, tokenizer, further models. Scripts are part of the lock.
"""

from __future__ import annotations

from pathlib import Path

from sealtrain.base.privatefolder import PrivateFolder
from sealtrain.errors import ExtraMissing
from sealtrain.recipe.errors import EnvironmentChanged, ModelInvalid
from sealtrain.recipe.installation import (
    EnvironmentPin,
    Installation,
    check_package_files,
    measure_installation,
)
from sealtrain.recipe.lockfile import Lock
from sealtrain.recipe.models import ModelPins, measure_models


def check_environment(
    lock: Lock,
    base_dir: Path,
    *,
    into: PrivateFolder | None = None,
    installation: Installation | None = None,
    package_files: bool = False,
) -> Installation:
    """Refuse to run when anything differs from the lock.

    Args:
        lock: The approved lock.
        base_dir: The recipe's folder on this machine; its paths are relative to it.
        into: Gets a copy of each model and tokenizer file, of the very bytes that were hashed.
        installation: Code and packages that run; measured here when ``None``.
        package_files: Also hash every file of every package, not only the packages' RECORDs.

    Returns:
        The installation of this machine, the same as in the lock.

    Raises:
        EnvironmentChanged: Names the first difference, with got and expected.
    """
    try:
        here = installation or measure_installation(lock.recipe)
    except ExtraMissing as error:
        raise EnvironmentChanged(
            error.message,
            check="environment",
            got=error.got,
            expected=error.expected,
            hint=error.hint,
        ) from error
    check_installation(here, lock)
    if package_files:
        check_package_files(tuple(lock.environment.packages))
    try:
        found = measure_models(lock.recipe, base_dir, into=into)
    except ModelInvalid as error:
        raise EnvironmentChanged(error.message, check="models", hint=error.hint or _HINT) from error
    _same_models(found, lock)
    return here


def check_models(lock: Lock, base_dir: Path) -> None:
    """Compare base models and tokenizers on this machine with the lock, as far as it pins them.

    Args:
        lock: Of the recipe.
        base_dir: As for ``check_environment``.

    Raises:
        ModelInvalid: A folder is missing or breaks the rules of modelfolder.py.
        EnvironmentChanged: Names the first difference, with got and expected.
    """
    _same_models(measure_models(lock.recipe, base_dir), lock)


def _same_models(found: ModelPins, lock: Lock) -> None:
    _same("the base model", found.model.sha256, lock.model.sha256)
    _same("the tokenizer", found.tokenizer.sha256, lock.tokenizer.sha256)
    for name, pin in lock.models.items():
        here_pin = found.further[name]
        _same(f"the {name} model", here_pin.model.sha256, pin.model.sha256)
        _same(f"the {name} model's tokenizer", here_pin.tokenizer.sha256, pin.tokenizer.sha256)


def check_installation(here: Installation, lock: Lock) -> None:
    """Compare code, Python and packages with the lock.

    Raises:
        EnvironmentChanged: Names the first difference, with got and expected.
    """
    measured = {pin.name: pin for pin in here.code}
    for pin in lock.code:
        own = measured.get(pin.name)
        _same(f"the version of {pin.name}", own.version if own else "absent", pin.version)
        _same(f"the code of {pin.name}", own.sha256 if own else "absent", pin.sha256)
    _check_packages(here.environment, lock.environment)


_HINT = "install the versions of the lock, or lock again and have the new lock approved"


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
